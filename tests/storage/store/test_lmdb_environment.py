"""A root page that cannot be written for want of room, where LMDB gives up and the store does not; the mapped file."""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import lmdb
import pytest
from processes.commands import execute
from samples.writer import ADDRESS, QID, Writer, seq_ids

from leveret.storage.errors import DiskFullError, Done, UnknownStateError
from leveret.storage.journal.batch import Batch
from leveret.storage.journal.reads import Loaded, Range
from leveret.storage.message import Persistent
from leveret.storage.store.environment import Environment
from leveret.storage.store.hole_punching import give_back, keep_reserve
from leveret.storage.store.lmdb_environment import MAP_SIZE, LmdbEnvironment, Mapping, file_octets

ALL = [Range(QID, 0, 1000)]
WAIT_SECONDS = 30.0


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    made = Environment(tmp_path)
    yield made
    made.close()


def fill(table: LmdbEnvironment) -> None:
    """Make the next write of the root page find no room, as the kernel does: the data pages are written before."""
    path = (table.path / "data.mdb").resolve()
    full = os.open("/dev/full", os.O_WRONLY)
    found = 0
    for link in list(Path("/proc/self/fd").iterdir()):
        number = int(link.name)
        with contextlib.suppress(OSError):  # that of the directory itself
            if link.readlink() == path and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_DSYNC:
                os.dup2(full, number, inheritable=False)
                found += 1
    os.close(full)

    assert 1 == found


def cut(writer: Writer, *numbers: int) -> Batch:
    for seq_id in numbers:
        writer.note(Persistent(ADDRESS, b"", 1, None, 0, 1), seq_id)
    return writer.journal.cut()


def refused(environment: Environment, batch: Batch) -> DiskFullError:
    with pytest.raises(DiskFullError, match="No space left on device") as caught:
        environment.commit(batch)
    return caught.value


def test_it_is_a_full_disk_as_any_other(tmp_path: Path) -> None:
    """A commit without room leaves only its deletions and all earlier data; later commits and starts go on from there."""
    environment = Environment(tmp_path)
    writer = Writer(environment)
    entries = writer.write(1, 2)
    for number in (10, 20, 30):
        batch = cut(writer, number)
        fill(environment.store)
        error = refused(environment, batch)

        assert (Done.DELETIONS, Done.ALL) == (error.durable, error.paged)
        assert number not in seq_ids(environment.read(ALL, 1 << 20))

        writer.journal.settled(error)
        writer.commit()

        assert number in seq_ids(environment.read(ALL, 1 << 20))

    writer.kill(entries[0])
    environment.close()
    environment = Environment(tmp_path)

    assert [2, 10, 20, 30] == seq_ids(environment.read(ALL, 1 << 20))

    environment.close()


def test_readers_do_not_notice(environment: Environment) -> None:
    """A reader in another thread gets the earlier data, each time."""
    writer = Writer(environment)
    writer.write(1, 2)
    reads: list[Loaded] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                reads.append(environment.read(ALL, 1 << 20))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    batch = cut(writer, 3)
    for _ in range(20):
        fill(environment.store)
        writer.journal.settled(refused(environment, batch))
        batch = writer.journal.cut()
    stop.set()
    thread.join(WAIT_SECONDS)

    assert not thread.is_alive()
    assert not errors
    assert {(1, 2)} == {tuple(seq_ids(each)) for each in reads}


def test_a_read_under_way_is_waited_for(environment: Environment) -> None:
    """A file being read is not opened again while a transaction uses its buffers."""
    writer = Writer(environment)
    (entry,) = writer.write(1)
    reads, ended = threading.Event(), threading.Event()
    found: list[bytes] = []

    def read() -> None:
        with environment.store.reading(buffers=True) as txn:
            value = txn.get(entry.block.key, db=environment.store.db["blocks"])
            reads.set()
            ended.wait(WAIT_SECONDS)
            found.append(bytes(value))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()

    assert reads.wait(WAIT_SECONDS)

    batch = cut(writer, 2)
    fill(environment.store)
    before = environment.store.env
    opened = environment.store._open
    with patch.object(LmdbEnvironment, "_open", side_effect=lambda: (found.append(b"opened"), opened())):
        given_up = LmdbEnvironment._is_given_up
        with patch.object(LmdbEnvironment, "_is_given_up", lambda table: (ended.set(), given_up(table))[1]):
            refused(environment, batch)
    thread.join(WAIT_SECONDS)

    assert before is not environment.store.env
    assert 2 == len(found)
    assert b"opened" == found[1]


def test_nothing_is_written_until_the_disk_has_the_old_root_page(environment: Environment) -> None:
    """A root page that LMDB put back is flushed before the next commit; without room that waits, reads do not."""
    writer = Writer(environment)
    writer.write(1)
    batch = cut(writer, 2)
    fill(environment.store)
    no_room = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with patch("leveret.storage.store.lmdb_environment.os.fdatasync", side_effect=no_room) as flush:
        for _ in range(3):
            error = refused(environment, batch)

            assert Done.NOTHING is error.durable
            assert [1] == seq_ids(environment.read(ALL, 1 << 20))

            writer.journal.settled(error)
            batch = writer.journal.cut()

        assert flush.call_count >= 3
    environment.commit(batch)

    assert [1, 2] == seq_ids(environment.read(ALL, 1 << 20))


def test_no_holes_are_made_until_the_disk_has_the_old_root_page(environment: Environment) -> None:
    """Pages that are free by what is read stay on the disk as long as its root page might need them."""
    writer = Writer(environment)
    for seq_id in range(40):
        writer.kill(*writer.write(seq_id, size=100_000))
    batch = cut(writer, 50)
    fill(environment.store)
    no_room = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with patch("leveret.storage.store.hole_punching.RESERVE", 0):
        with patch("leveret.storage.store.lmdb_environment.os.fdatasync", side_effect=no_room):
            refused(environment, batch)
            before = give_back(environment.store)
        after = give_back(environment.store)

    assert 0 == before.octets < after.octets


def test_a_transaction_that_is_in_after_all_is_the_end(environment: Environment) -> None:
    """A root page that counts although it could not be flushed leaves the disk's state unknown: that is no full disk."""
    writer = Writer(environment)
    batch = cut(writer, 1)
    fill(environment.store)
    table = environment.store
    opened = table._open

    def open_and_write() -> None:
        opened()
        with table.env.begin(write=True) as txn:
            txn.put(b"other", b"", db=table.db["meta"])

    with patch.object(table, "_open", open_and_write), pytest.raises(UnknownStateError):
        environment.commit(batch)


@pytest.mark.parametrize("place", ["lmdb.open", "leveret.storage.store.lmdb_environment.Mapping"])
@pytest.mark.parametrize("writer", ["commit", "give_back"])
def test_a_file_that_cannot_be_reopened_is_the_end(environment: Environment, place: str, writer: str) -> None:
    """A file that LMDB gave up and cannot reopen is no full disk, whoever has written and whatever is tried next."""
    batch = cut(Writer(environment), 1)
    table = environment.store
    fill(table)
    uses = {
        "commit": lambda: environment.commit(batch),
        "give_back": lambda: give_back(table),
        "keep_reserve": lambda: keep_reserve(table, set()),
        "read": lambda: environment.read(ALL, 1 << 20),
        "snapshot": environment.snapshot,
        "lag": table.reader_lag,
    }
    no_room = lmdb.DiskError(os.strerror(errno.ENOSPC))
    with patch(place, side_effect=no_room), pytest.raises(UnknownStateError, match="cannot be reopened"):
        uses[writer]()
    # with a hole, larger than what a file system may have reserved at the end of the file
    os.truncate(table.path / "data.mdb", (table.path / "data.mdb").stat().st_size + (1 << 26))
    for use in uses.values():
        with pytest.raises(UnknownStateError, match="No space left"):
            use()


def test_another_error_of_the_root_page_is_the_end(environment: Environment) -> None:
    """An error other than want of room is not waited out."""
    writer = Writer(environment)
    batch = cut(writer, 1)
    fill(environment.store)
    with patch.object(Environment, "is_full", return_value=False), pytest.raises(lmdb.DiskError):
        environment.commit(batch)


def test_paged_messages_have_the_same(environment: Environment) -> None:
    """The environment of paged messages, which is not flushed, goes on as well."""
    writer = Writer(environment)
    writer.write(1, paged=True)
    table = environment.paged
    opened = table._open
    table.env.close()
    with patch.object(table, "_sync", new=True):
        opened()
    writer.note(Persistent(ADDRESS, b"", 1, None, 0, 1), 2, paged=True)
    batch = writer.journal.cut()
    fill(table)
    error = refused(environment, batch)

    assert (Done.ALL, Done.DELETIONS) == (error.durable, error.paged)
    assert [1] == seq_ids(environment.read(ALL, 1 << 20))

    writer.journal.settled(error)
    writer.commit()

    assert [1, 2] == seq_ids(environment.read(ALL, 1 << 20))


def test_memory_is_given_back_where_the_file_is_now(environment: Environment) -> None:
    """Memory given back is that of the file's present map: other memory may be where the old one was."""
    writer = Writer(environment)
    batch = cut(writer, 1)
    fill(environment.store)
    opened = environment.store._open
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000  # MAP_NORESERVE
    others = []

    def open_elsewhere() -> None:
        others.append(mmap.mmap(-1, MAP_SIZE // 2, flags=flags))
        opened()

    with patch.object(environment.store, "_open", open_elsewhere):
        refused(environment, batch)
    now = Mapping(environment.store.path / "data.mdb")
    for each in others:
        each.close()

    assert now._spans
    assert now._spans == environment.store.mapping._spans


def counted(path: Path) -> int:
    """Octets of a file's map that count as memory of this process."""
    found = re.search(
        rf"{re.escape(str(path))}\n.*?Rss: +(\d+) kB", Path("/proc/self/smaps").read_text(), re.DOTALL
    )
    return int(found[1]) * 1024


def test_what_is_given_back_is_counted_no_more_and_still_there(tmp_path):
    """The map of a file stops counting as memory, keeps its contents, and counts again when it is used."""
    path = tmp_path / "data.mdb"
    size = 8 << 20
    path.write_bytes(b"x" * size)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as octets:
        mapping = Mapping(path)
        assert size == octets[:].count(b"x")
        assert size == counted(path)
        assert file_octets() >= size
        mapping.give_back()
        assert 0 == counted(path)
        assert b"xx" == octets[size // 2 : size // 2 + 2]
        assert 0 < counted(path) < size


def test_a_file_that_is_not_mapped_is_left_alone(tmp_path):
    """A file without a mapping is left alone."""
    Mapping(tmp_path / "other").give_back()


SMALL = """
import resource, sys
from pathlib import Path

from leveret.storage.store.environment import Environment

size = int(sys.argv[1]) << 30
resource.setrlimit(resource.RLIMIT_AS, (size, size))
for _ in range(2):
    Environment(Path(sys.argv[2])).close()
"""


@pytest.mark.parametrize(("gigabytes", "code"), [(512, 0), (40, 0), (1, 1)])
def test_a_small_address_space_limits_the_data(tmp_path: Path, gigabytes: int, code: int) -> None:
    """A process with few addresses, as on ARM with 39 bits of them, has smaller maps, and the log says so."""
    words = [sys.executable, "-c", SMALL, str(gigabytes), str(tmp_path)]
    done = execute(words)

    assert code == done.returncode, done.stderr
    assert ("the address space limits the data" if code == 0 else "Cannot allocate memory") in done.stderr

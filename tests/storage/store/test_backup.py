"""A copy of data that change meanwhile is one state of them, and is small in what it costs."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import lmdb
import pytest
from crash.judged import needs_small_disks
from crash.loopdisk import MemoryDisk

from leveret.storage.damage import Damages
from leveret.storage.errors import DamagedError, DiskFullError, StorageError, UnknownStateError
from leveret.storage.journal.batch import body_checksum
from leveret.storage.store import backup as backups
from leveret.storage.store.backup import Backup, CancelledError, Moment, Pace, last, latest
from leveret.storage.store.bodies import Bodies
from leveret.storage.store.lmdb_environment import LmdbEnvironment
from leveret.storage.store.lmdb_file import DataFile
from leveret.storage.store.store_header import FORMAT_ROW

SIZES = (10, 500, 500, 5000, 5000, 30_000)
PIECE = 65536
BODY = b"a body in a file"


class Site:
    """Data in which something changes whenever a copy waits.

    Args:
        home: where they are.
        seed: of all that is random.
        commits: how many follow each piece that is copied, in the mean.
    """

    clock: "Clock"

    def __init__(self, home: Path, seed: int = 0, commits: float = 0.3) -> None:
        self.home, self.rng, self.commits = home, Random(seed), commits
        self.data_dir, self.target = home / "data", home / "copy"
        self.table = LmdbEnvironment(
            self.data_dir / "store", ("meta", "blocks", "bodies"), Damages(), sync=False
        )
        self.blobs = self.data_dir / "blobs"
        self.blobs.mkdir()
        self.bodies = Bodies(self.blobs, b"")
        self.model: dict[bytes, bytes] = {}
        self.files: set[int] = set()
        self.held: list[int] = []
        """Files that nothing refers to any more, and that the last state may refer to."""
        self.number = 0
        self.moment: Moment | None = None
        self.seen: tuple[dict[bytes, bytes], set[int]] = {}, set()
        """Rows and bodies of the last state."""
        self.states = 0

    def commit(self, rows: int = 10) -> None:
        """Change some rows, and perhaps a body."""
        rng = self.rng
        with self.table.writing() as txn:
            for _ in range(rows):
                key = rng.randrange(400).to_bytes(8, "big")
                if rng.random() < 0.5:
                    self.model[key] = rng.randbytes(rng.choice(SIZES))
                    txn.put(key, self.model[key], db=self.table.db["blocks"])
                else:
                    self.model.pop(key, None)
                    txn.delete(key, db=self.table.db["blocks"])
            if rng.random() < 0.3:
                self.number += 1
                octets = body_checksum(self.number, BODY) + BODY
                self.bodies.path(self.number).write_bytes(octets)
                self.files.add(self.number)
                key = self.number.to_bytes(8, "big")
                txn.put(key, body_checksum(self.number, BODY), db=self.table.db["bodies"])
            if len(self.files) > 20:
                gone = rng.choice(sorted(self.files))
                self.files.discard(gone)
                self.held.append(gone)
                txn.delete(gone.to_bytes(8, "big"), db=self.table.db["bodies"])

    def advance(self) -> Moment:
        """Open the latest state, then release the last one, as a broker does."""
        moment, before = latest(self.table), self.moment
        if before is not None:
            before.check()
            before.close()
        self.moment, self.states = moment, self.states + 1
        self.seen = dict(self.model), set(self.files)
        self._remove()
        return moment

    def release(self) -> None:
        if self.moment is not None:
            self.moment.close()
            self.moment = None
        self._remove()

    def _remove(self) -> None:
        for number in self.held:
            self.bodies.path(number).unlink()
        self.held = []

    def wait(self, seconds: float) -> bool:
        self.clock.now += max(seconds, 0.001)
        for _ in range(int(self.commits + self.rng.random())):
            self.commit(self.rng.choice([1, 5, 20]))
        return False

    def back_up(self, rate: int = 0, wait: Callable[[float], bool] | None = None) -> backups.Copied:
        self.target.mkdir()
        return Backup(self.data_dir, self.target, self, Pace(rate, wait or self.wait)).run()

    @property
    def size(self) -> int:
        return (self.data_dir / "store" / "data.mdb").stat().st_size


class Clock:
    """The time, which passes only while a copy waits."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    """Let a wait take a millisecond at least and everything else no time; a step takes ten pieces."""
    Site.clock = Clock()
    monkeypatch.setattr(backups, "monotonic", Site.clock)
    monkeypatch.setattr(backups, "STEP_SECONDS", 0.01)
    monkeypatch.setattr(backups, "PIECE", PIECE)


@pytest.fixture
def site(tmp_path):
    made = Site(tmp_path)
    for _ in range(40):
        made.commit(40)
    yield made
    made.release()
    made.table.env.close()


def contents(data_dir: Path) -> tuple[dict[bytes, bytes], set[int]]:
    """Return the rows of a copy, and its bodies in files, all of which are whole; each page is used once or free."""
    with DataFile(data_dir / "store" / "data.mdb") as file:
        pages = [first + each for first, count in file.used_pages() for each in range(count)]
        pages += [page for _, freed in file.free_pages() for page in freed]
        assert sorted(pages) == list(range(2, file.meta.last_page + 1))
        assert (data_dir / "store" / "data.mdb").stat().st_size == (
            file.meta.last_page + 1
        ) * file.meta.page_size
    with lmdb.open(str(data_dir / "store"), max_dbs=16, map_size=1 << 40) as env:
        tables = {name: env.open_db(name, create=False) for name in (b"blocks", b"bodies")}
        with env.begin() as txn:
            rows = dict(txn.cursor(tables[b"blocks"]))
            bodies = {int.from_bytes(key, "big") for key, _ in txn.cursor(tables[b"bodies"])}
    names = {int(path.name, 16) for path in (data_dir / "blobs").iterdir()}
    assert names == bodies
    for number in names:
        octets = (data_dir / "blobs" / f"{number:016x}").read_bytes()
        assert body_checksum(number, BODY) + BODY == octets
    return rows, names


@pytest.mark.parametrize("seed", range(6))
def test_the_copy_is_one_state(tmp_path, seed):
    """Whatever is committed meanwhile: the copy has the rows and bodies of the last state that was opened."""
    site = Site(tmp_path, seed, commits=[0.1, 0.5, 2][seed % 3])
    for _ in range(40):
        site.commit(40)
    site.back_up()
    site.table.env.close()

    assert site.seen == contents(site.target)
    assert site.states > 3


def test_the_copy_can_be_written(site):
    """Transactions of the copy are independent of the original's, and are there when it is opened again."""
    site.back_up()
    rows, _ = site.seen
    for number in range(5):
        with lmdb.open(str(site.target / "store"), max_dbs=16, map_size=1 << 40) as env:
            table = env.open_db(b"blocks")
            with env.begin(write=True) as txn:
                txn.put(b"new", bytes(number), db=table)
    rows[b"new"] = bytes(4)

    assert rows == contents(site.target)[0]


def test_data_that_nobody_uses(site):
    """The data of a stopped broker are copied as they are."""
    with site.table.writing() as txn:
        txn.put(b"format", FORMAT_ROW, db=site.table.db["meta"])
    site.table.env.close()
    site.target.mkdir()
    with last(site.data_dir) as moment:
        Backup(site.data_dir, site.target, moment, Pace(0, lambda _: False)).run()

    assert (site.model, site.files) == contents(site.target)


def test_the_copy_takes_the_space_of_what_is_used(tmp_path):
    """Free pages of the data file take no space in the copy."""
    site = Site(tmp_path, commits=0)
    with site.table.writing() as txn:
        txn.put(b"large", bytes(30_000_000), db=site.table.db["blocks"])
    for _ in range(3):
        with site.table.writing() as txn:
            txn.delete(b"large", db=site.table.db["blocks"])
            txn.put(b"small", b"", db=site.table.db["blocks"])
    copied = site.back_up()
    stat = (site.target / "store" / "data.mdb").stat()

    assert stat.st_size == site.size
    assert stat.st_blocks * 512 < 1_000_000
    assert copied.octets < 1_000_000


def grown(home: Path, *, step: float) -> tuple[int, int]:
    """Return how many bytes the file grows beside a copy whose steps take that many seconds, and how many there are."""
    home.mkdir()
    site = Site(home, 5, commits=0.3)
    for _ in range(40):
        site.commit(40)
    before = site.size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backups, "STEP_SECONDS", step)
        site.back_up()
    site.release()
    site.table.env.close()
    return site.size - before, site.states


def test_the_file_hardly_grows(tmp_path):
    """The file grows by what is written during a step or two, not by what is written during the copy."""
    (in_steps, many), (at_once, one) = grown(tmp_path / "a", step=0.005), grown(tmp_path / "b", step=10.0)

    assert many > 10
    assert one == 1
    assert in_steps < at_once / 3


def test_a_copy_that_falls_behind_catches_up(tmp_path):
    """A limit that is below what is written is raised until the copy ends."""
    site = Site(tmp_path, 1, commits=0.5)
    for _ in range(40):
        site.commit(40)
    pace = Pace(1_000_000, site.wait)
    site.target.mkdir()
    Backup(site.data_dir, site.target, site, pace).run()
    site.table.env.close()

    assert site.seen == contents(site.target)
    assert pace.rate > 1_000_000


def test_a_cancelled_copy_is_no_data_file(site):
    """A copy that is cancelled ends, and LMDB does not open what it leaves."""
    count = iter(range(1000))
    with pytest.raises(CancelledError):
        site.back_up(wait=lambda _: next(count) > 40)

    assert site.moment is None
    with pytest.raises(lmdb.InvalidError):
        lmdb.open(str(site.target / "store"))


def test_a_list_of_free_pages_that_is_wrong(site, monkeypatch):
    """Nothing is copied from a file whose free pages LMDB counts differently."""
    advance = site.advance

    def miscounted() -> Moment:
        moment = advance()
        moment.listed += 1
        return moment

    monkeypatch.setattr(site, "advance", miscounted)
    with pytest.raises(DamagedError, match="pages of the data file are unused"):
        site.back_up()


def test_a_file_that_was_reopened(site):
    """A copy ends if the file was reopened, as nothing kept the pages that it had copied."""
    count = iter(range(1000))

    def wait(_seconds: float) -> bool:
        if next(count) == 30:
            assert site.moment is not None
            with pytest.raises(UnknownStateError, match="whose root page"):
                site.table._open_again(0)
        return False

    with pytest.raises(StorageError, match="was reopened"):
        site.back_up(wait=wait)


def test_a_body_that_is_missing(site):
    """A body whose file is missing is missing in the copy, too, and everything else is there."""
    site.commits = 0
    gone = min(site.files)
    site.bodies.path(gone).unlink()
    copied = site.back_up()

    assert len(site.files) - 1 == copied.files
    assert not (site.target / "blobs" / f"{gone:016x}").exists()


@needs_small_disks
def test_a_disk_without_space(site, tmp_path):
    """A disk that is too small is refused at once; one that becomes full ends the copy."""
    (tmp_path / "disk").mkdir()
    with MemoryDisk(tmp_path / "disk", 40) as disk:
        site.target = disk.mount_point / "copy"
        with pytest.raises(DiskFullError, match="bytes are needed"):
            Backup(site.data_dir, made(site.target), site, Pace(0, site.wait), 100_000_000).run()
        shutil.rmtree(site.target)
        filled = disk.mount_point / "other"

        def fill(_seconds: float) -> bool:
            if not filled.exists():
                with filled.open("wb") as file, contextlib.suppress(OSError):
                    for _ in range(100):
                        file.write(bytes(1_000_000))
            return False

        with pytest.raises(DiskFullError, match="not enough disk space"):
            site.back_up(wait=fill)


def made(path: Path) -> Path:
    path.mkdir()
    return path

"""Findings in sound data, and in damaged data."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import lmdb
import pytest
from samples.stored import Stored, example

from leveret.storage.journal.blocks import LAST_SEQ_ID, pack_bits, pack_key, read_header, unpack_key
from leveret.storage.store.check import Check, Finding, Stats
from leveret.storage.store.environment import Environment
from leveret.storage.store.lmdb_environment import MAP_SIZE
from leveret.storage.store.lmdb_file import DataFile
from leveret.storage.store.store_header import pack_number, seal


def checked(data_dir: Path) -> tuple[list[Finding], Stats | None]:
    findings: list[Finding] = []
    stats = Check(data_dir, findings.append).run()
    return findings, stats


class Surgery:
    """A transaction on the raw tables of a closed data directory."""

    def __init__(self, data_dir: Path) -> None:
        self.env = lmdb.open(str(data_dir / "store"), max_dbs=16, map_size=MAP_SIZE)
        self.txn: Any = None

    def __enter__(self) -> Self:
        self.txn = self.env.begin(write=True)
        return self

    def __exit__(self, *_error: object) -> None:
        self.txn.commit()
        self.env.close()

    def db(self, name: str) -> Any:
        return self.env.open_db(name.encode(), txn=self.txn)

    def rows(self, name: str) -> list[tuple[bytes, bytes]]:
        return list(self.txn.cursor(self.db(name)))

    def put(self, name: str, key: bytes, value: bytes) -> None:
        self.txn.put(key, value, db=self.db(name))

    def delete(self, name: str, key: bytes) -> None:
        assert self.txn.delete(key, db=self.db(name))


@pytest.mark.parametrize("clean", [False, True])
def test_whole_data_are_clean(tmp_path, clean):
    """Data with rows, bodies, files and dead records have nothing to find, after a clean stop and without one."""
    example(tmp_path, clean=clean)
    findings, stats = checked(tmp_path)

    assert [] == findings
    assert stats is not None
    assert (189, 5, clean, 1, 11, 32) == (
        stats.messages,
        stats.definitions,
        stats.clean,
        stats.files,
        stats.bodies,
        sum(queue.dead for queue in stats.queues),
    )
    assert [("/", "one", 180), ("/", "two", 9), ("/", "empty", 0)] == [
        (queue.vhost, queue.name, queue.messages) for queue in stats.queues
    ]


def test_stats_count_octets(tmp_path):
    """A queue's octets are those of its contents, wherever they lie, and garbage is what dead records take."""
    example(tmp_path)
    _, stats = checked(tmp_path)

    assert stats is not None
    two = stats.queues[1]
    assert 8 * 5000 + 30_000 < two.octets < 8 * 5100 + 30_100
    assert 0 < sum(queue.dead_octets for queue in stats.queues) == stats.dead_octets
    assert (tmp_path / "store" / "data.mdb").stat().st_size == stats.file_size
    assert 0 < stats.garbage_fraction < 1


def test_nothing_at_all(tmp_path):
    """A directory without data is reported."""
    assert ([Finding("store", "there is no data")], None) == checked(tmp_path)


def test_a_file_that_is_none_of_ours(tmp_path):
    """A file that LMDB does not know is damage, not a crash."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "data.mdb").write_bytes(b"hello" * 10_000)
    ((where, text, damage),), stats = checked(tmp_path)

    assert ("store", True, None) == (where, damage, stats)
    assert text.startswith("cannot be opened: ")


def flip(value: bytes, at: int) -> bytes:
    """The octets with one bit changed."""
    changed = bytearray(value)
    changed[at] ^= 1
    return bytes(changed)


def test_every_bit_of_a_block_counts(tmp_path):
    """A change anywhere in a block, key and bitmap included, is found."""
    stored = Stored(tmp_path / "whole", "q")
    for number in range(4):
        stored.publish(f"text {number}", "q")
    stored.commit()
    stored.close()
    with Surgery(tmp_path / "whole") as whole:
        ((key, value),) = whole.rows("blocks")
    for at in range(len(value)):
        with Surgery(tmp_path / "whole") as surgery:
            surgery.put("blocks", key, flip(value, at))
        findings, _ = checked(tmp_path / "whole")

        assert any(finding.damage and finding.where.startswith("blocks ") for finding in findings), at


DAMAGE = {
    "a definition": ("defs", "is damaged: wrong checksum"),
    "a body": ("bodies", "it is damaged"),
    "a missing body": ("bodies", "missing, and 2 records refer to it"),
    "a body too many": ("bodies", "no record refers to it"),
    "a wrong count": ("refs", "2 records refer to it, but the count is 7"),
    "a count of nothing": ("refs", "no record refers to it"),
    "a bitmap alone": ("acks", "a bitmap without a block"),
    "a long bitmap": ("acks", "a bitmap of 104 bytes for 64 records"),
    "a bitmap elsewhere": ("acks", "a bitmap is damaged"),
    "a flipped bit": ("acks", "a bitmap is damaged"),
    "bits too high": ("acks", "all records are settled"),
    "a block elsewhere": ("blocks", "it is block"),
    "a block twice": ("blocks", "duplicate seq_id"),
    "an id of tomorrow": ("meta", "the counter of starts is missing"),
    "another format": ("meta", "the data has format 9, this version reads format 2"),
    "an endless sweep": ("sweeps", "has an invalid end"),
    "an end that nobody wrote": ("sweeps", "has an invalid end"),
    "a wrong sum": ("queues", "180 messages, 5 in the saved state"),
    "what nobody saved": ("queues", "the saved state is damaged"),
    "starts that nobody counted": ("meta", "row b'boot' is damaged"),
    "a mark of nobody": ("meta", "row b'clean' is damaged"),
    "a file": ("bodies", "its file is damaged"),
    "no file": ("bodies", "cannot read its file: No such file or directory"),
    "a short key": ("acks", "has 3 bytes instead of 16"),
    "a narrow span": ("blocks", "it spans more than 2 seq_ids"),
}


def spoil(surgery: Surgery, blobs: Path, kind: str) -> None:
    """Damage the store in one way."""
    blocks, acks, bodies = (surgery.rows(name) for name in ("blocks", "acks", "bodies"))
    shared = next((key, value) for key, value in reversed(surgery.rows("refs")))
    body = next(value for key, value in bodies if key == shared[0])
    match kind:
        case "a definition":
            key, value = surgery.rows("defs")[-1]
            surgery.put("defs", key, flip(value, len(value) - 1))
        case "a body":
            surgery.put("bodies", shared[0], flip(body, 100))
        case "a missing body":
            surgery.delete("bodies", shared[0])
        case "a body too many":
            surgery.put("bodies", bytes(8), bytes(8))
        case "a wrong count":
            surgery.put("refs", shared[0], (7).to_bytes(4, "big"))
        case "a count of nothing":
            surgery.put("refs", bytes(8), (2).to_bytes(4, "big"))
        case "a bitmap alone":
            key = pack_key(unpack_key(acks[0][0])[0], 1)
            surgery.put("acks", key, pack_bits(key, 8, 1))
        case "a long bitmap":
            surgery.put("acks", acks[0][0], pack_bits(acks[0][0], 800, 1))
        case "bits too high":
            surgery.put("acks", acks[0][0], pack_bits(acks[0][0], 64, (1 << 64) - 1))
        case "a bitmap elsewhere":
            surgery.put("acks", acks[1][0], acks[0][1])
        case "a flipped bit":
            surgery.put("acks", acks[0][0], acks[0][1][:-1] + bytes((acks[0][1][-1] ^ 1,)))
        case "a block elsewhere":
            key, value = blocks[0]
            surgery.delete("blocks", key)
            surgery.put("blocks", key[:-1] + b"\x07", value)
        case "a block twice":
            from leveret.storage.store.compact import rewritten

            key, value, _ = rewritten(*blocks[0], pack_bits(blocks[0][0], read_header(*blocks[0]).records, 1))
            surgery.put("blocks", key, value)
        case "an id of tomorrow":
            surgery.delete("meta", b"boot")
        case "another format":
            surgery.put("meta", b"format", b"9")
        case "an endless sweep":
            surgery.put("sweeps", pack_key(1, 5), (3).to_bytes(8, "big"))
        case "an end that nobody wrote":
            key = pack_key(1, 5)
            surgery.put("sweeps", key, flip(pack_number(key, 1 << 40), 3))
        case "a wrong sum":
            key, value = surgery.rows("queues")[0]
            surgery.put("queues", key, seal(key, (5).to_bytes(8, "big") + value[8:-4], 1))
        case "what nobody saved":
            key, value = surgery.rows("queues")[0]
            surgery.put("queues", key, flip(value, 7))
        case "starts that nobody counted" | "a mark of nobody":
            name = b"boot" if kind.startswith("starts") else b"clean"
            surgery.put("meta", name, flip(dict(surgery.rows("meta"))[name], 7))
        case "a file":
            (path,) = blobs.iterdir()
            path.write_bytes(flip(path.read_bytes(), 1000))
        case "no file":
            (path,) = blobs.iterdir()
            path.unlink()
        case "a short key":
            surgery.put("acks", b"abc", pack_bits(b"abc", 8, 1))
        case "a narrow span":
            surgery.put("meta", b"span", pack_number(b"span", 2))


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found(tmp_path, kind):
    """Each kind of damage is a finding in the table where it is."""
    example(tmp_path, clean=True)
    with Surgery(tmp_path) as surgery:
        spoil(surgery, tmp_path / "blobs", kind)
    table, text = DAMAGE[kind]
    findings, _ = checked(tmp_path)

    assert [
        each for each in findings if each.where.startswith(table) and text in each.text and each.damage
    ], findings


def test_what_goes_at_the_next_start_is_no_damage(tmp_path):
    """Unknown files and blocks of deleted queues are left over; those of a sweep are not even reported."""
    example(tmp_path)
    (tmp_path / "blobs" / "00ab.part").write_bytes(b"x")
    with Surgery(tmp_path) as surgery:
        rows = [key for key, value in surgery.rows("defs") if key[:1] == b"Q" and b"one" in value]
        surgery.delete("defs", rows[0])
        qid = int.from_bytes(rows[0][1:], "big")
    before, _ = checked(tmp_path)
    with Surgery(tmp_path) as surgery:
        key = pack_key(qid, 0)
        surgery.put("sweeps", key, pack_number(key, (1 << 64) - 1))
    after, _ = checked(tmp_path)

    assert [("blobs/00ab.part", False), ("blocks", False)] == sorted(
        (each.where, each.damage) for each in before
    )
    assert ["blobs/00ab.part"] == [each.where for each in after]


def test_sweeps_under_way_are_clean(tmp_path, monkeypatch):
    """A queue that is deleted in parts has nothing to find between two of them."""
    monkeypatch.setattr("leveret.storage.store.lmdb_environment.SWEEP_WORK", 2)
    stored = Stored(tmp_path, "q", "other")
    for number in range(400):
        stored.publish(f"{number}" * 100, "q")
        stored.publish("x" * 5000, "q", "other")
    stored.commit()
    stored.journal.sweep(stored.queues["q"].qid, 0, LAST_SEQ_ID)
    stored.commit()
    stored.close()
    findings, stats = checked(tmp_path)

    assert [] == findings
    assert stats is not None
    assert 0 < stats.queues[0].messages < 800


def test_the_next_start_repairs_what_is_left_over(tmp_path):
    """A store has no leftovers after recovery."""
    from leveret.storage.store.recovery import recover

    example(tmp_path)
    (tmp_path / "blobs" / "00ab.part").write_bytes(b"x")
    environment = Environment(tmp_path, sync=False)
    recover(environment, [])
    environment.close()
    findings, stats = checked(tmp_path)

    assert [] == findings
    assert stats is not None
    assert (0, 0, 0) == (stats.messages, stats.bodies, stats.files)


def test_torn_files_never_go_unnoticed_as_a_crash(tmp_path):
    """A torn file, with any change to its pages, makes a process of its own report or end, and never hang."""
    example(tmp_path / "whole", clean=True)
    whole = (tmp_path / "whole" / "store" / "data.mdb").read_bytes()
    rng = random.Random(7)
    reported = 0
    for number in range(12):
        data_dir = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", data_dir)
        octets = bytearray(whole)
        match number % 3:
            case 0:
                octets = octets[: rng.randrange(8192, len(octets))]
            case 1:
                at = rng.randrange(2, len(octets) // 4096) * 4096
                octets[at : at + 4096] = rng.randbytes(4096)
            case _:
                for _ in range(20):
                    octets[rng.randrange(8192, len(octets))] ^= 1 << rng.randrange(8)
        (data_dir / "store" / "data.mdb").write_bytes(octets)
        words = [sys.executable, "-m", "leveret.storage.store.check", str(data_dir)]
        root = Path(__file__).parents[3]
        done = subprocess.run(words, capture_output=True, timeout=30, check=False, cwd=root)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.endswith(b"}")]
        reported += done.returncode != 0 or any("finding" in line for line in lines)

        assert done.returncode <= 0, done.stderr
    assert reported >= 6


def test_each_page_is_in_a_table_or_free(tmp_path):
    """Data whose rows have come, grown and gone have no page that is nowhere, or somewhere twice."""
    example(tmp_path)
    rng = random.Random(1)
    for _ in range(20):
        with Surgery(tmp_path) as surgery:
            for _ in range(200):
                surgery.txn.put(b"%05d" % rng.randrange(3000), bytes(rng.choice((10, 3000, 90_000))))
            for _ in range(150):
                surgery.txn.delete(b"%05d" % rng.randrange(3000))
    file = tmp_path / "store" / "data.mdb"
    with DataFile(file) as whole:
        free = sum(len(pages) for _, pages in whole.free_pages())
        used = sum(count for _, count in whole.used_pages())
        assert free > 500
        assert whole.meta.last_page + 1 == 2 + free + used

    assert [] == checked(tmp_path)[0]


@pytest.mark.parametrize("other", ["in use", "free twice", "beyond the end"])
def test_a_free_page_that_is_none_is_found(tmp_path, other):
    """A page in the list of free ones that is in use, there twice or not in the file is damage: LMDB would write over it."""
    example(tmp_path)
    for key in (b"gone", b"last"):
        with Surgery(tmp_path) as surgery:
            surgery.txn.put(key, bytes(900_000))
        with Surgery(tmp_path) as surgery:
            surgery.txn.delete(key)
    file = tmp_path / "store" / "data.mdb"
    with DataFile(file) as whole:
        lists = [pages for _, pages in whole.free_pages() if len(pages) > 10]
        used = next(first for first, _ in whole.used_pages())
        page = {"in use": used, "free twice": lists[0][1], "beyond the end": whole.meta.last_page + 1}[other]
    octets = file.read_bytes()
    before = b"".join(number.to_bytes(8, "little") for number in lists[0])
    file.write_bytes(octets.replace(before, page.to_bytes(8, "little") + before[8:]))

    assert [Finding] == [type(each) for each in checked(tmp_path)[0]]

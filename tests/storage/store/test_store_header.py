"""Formats of the data on disk: what a version says of one that it does not know; sizes and counts on disk."""

from pathlib import Path

import lmdb
import pytest
from checks.internals import stored_body
from samples.stored import Stored, content_of, example

from leveret import __version__
from leveret.storage.errors import UnknownFormatError
from leveret.storage.journal import blocks
from leveret.storage.journal.blocks import (
    pack_bits,
    read_bitmap,
    read_header,
    read_records,
)
from leveret.storage.message import Persistent, body_octets
from leveret.storage.store.check import Check, Finding
from leveret.storage.store.compact import compact
from leveret.storage.store.environment import Environment
from leveret.storage.store.lmdb_environment import MAP_SIZE
from leveret.storage.store.recovery import Recovered, recover
from leveret.storage.store.store_header import FORMAT, FORMAT_ROW, NEEDED, check_format, fault_of, number_of


def findings(data_dir: Path) -> list[Finding]:
    """Return the findings of a check of the whole store."""
    found: list[Finding] = []
    Check(data_dir, found.append).run()
    return found


def recovered(data_dir: Path) -> list[Recovered]:
    """Return the state that a start finds of each queue that has messages."""
    environment = Environment(data_dir, sync=False)
    qids = {read_header(key, value).qid for key, value in environment.rows("blocks")}
    found = recover(environment, qids)
    environment.close()
    return [each for _, each in sorted(found.items())]


def rows_of(data_dir: Path, table: str) -> list[tuple[bytes, bytes]]:
    path = str(data_dir / "store")
    with lmdb.open(path, readonly=True, lock=False, max_dbs=16, map_size=MAP_SIZE) as env:
        db = env.open_db(table.encode(), create=False)
        with env.begin() as txn:
            return list(txn.cursor(db))


def octets_on_disk(data_dir: Path) -> list[int]:
    """Octets of the bodies of each queue's live messages, read from their contents."""
    environment = Environment(data_dir, sync=False)
    bitmaps = dict(environment.rows("acks"))
    found: dict[int, int] = {}
    for key, value in environment.rows("blocks"):
        header = read_header(key, value)
        for record in read_records(value, header, read_bitmap(bitmaps.get(key), header).dead):
            assert not isinstance(record, int)
            content = record.content or stored_body(environment, record.msg_id)
            assert isinstance(content, bytes)
            found[header.qid] = found.get(header.qid, 0) + body_octets(content)
    environment.close()
    return [octets for _, octets in sorted(found.items())]


def test_the_row_names_the_version_that_is_needed():
    """The format that a version writes is the one it reads, and the version that it names is not newer than itself."""
    assert FORMAT == number_of(FORMAT_ROW)
    assert "" == fault_of(FORMAT_ROW)
    assert f"2 (needs leveret {NEEDED} or newer)".encode() == FORMAT_ROW
    assert [int(part) for part in NEEDED.split(".")] <= [int(part) for part in __version__.split(".")]


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (b"1", "format 1"),
        (b"3 (needs leveret 0.9.0 or newer)", "format 3 (needs leveret 0.9.0 or newer)"),
        (b"x", "format x"),
        (None, "no format"),
    ],
)
def test_an_unknown_format_is_refused_by_name(row, text):
    """The text of the row is shown as a whole, so the version that wrote it says which one is needed."""
    with pytest.raises(UnknownFormatError) as caught:
        check_format(Path("/data"), row)

    assert f"the data in /data has {text}, this version reads format 2" == str(caught.value)


@pytest.mark.parametrize("clean", [False, True])
def test_octets_are_exact_after_a_start(tmp_path, clean):
    """Octets of bodies are those of the live messages: rows, bodies apart and files, after either end."""
    example(tmp_path, clean=clean)
    found = [each.octets for each in recovered(tmp_path)]

    assert octets_on_disk(tmp_path) == found
    assert [] == findings(tmp_path)


def returned(data_dir: Path, counts: dict[int, int]) -> Stored:
    """A store of one queue of 20 messages, some of which came back; nothing of it is settled."""
    stored = Stored(data_dir, "q")
    queue = stored.queues["q"]
    for number in range(20):
        stored.publish(f"{number}", "q")
    stored.commit()
    first = queue.fetch(20, ack_required=True).seq_ids[0]
    queue.note_returns({first + place: count for place, count in counts.items()})
    queue.requeue(range(first, first + 20))
    stored.commit()
    return stored


def counts_on_disk(data_dir: Path) -> dict[str, int]:
    blocks = dict(rows_of(data_dir, "blocks"))
    found = {}
    for key, bitmap in rows_of(data_dir, "acks"):
        header = read_header(key, blocks[key])
        records = list(read_records(blocks[key], header))
        for place, count in read_bitmap(bitmap, header).returns.items():
            content = records[place].content
            body = Persistent(b"", content, 1, None, 0, 1).body.decode()
            found[body] = count
    return found


def test_delivery_counts_are_written_with_the_next_commit(tmp_path):
    """Delivery counts are on disk after the next commit, whether they were on disk before or not."""
    stored = returned(tmp_path, {3: 2, 7: 70_000})
    queue = stored.queues["q"]
    stored.publish("early", "q")
    queue.fetch(20, ack_required=True)
    (seq_id,) = queue.fetch(1, ack_required=True).seq_ids
    queue.note_returns({seq_id: 5})
    queue.requeue([seq_id])
    stored.commit()
    stored.commit()
    stored.close()

    assert {"3": 2, "7": 70_000, "early": 5} == counts_on_disk(tmp_path)
    assert [] == findings(tmp_path)


def test_delivery_counts_survive_a_compaction(tmp_path):
    """Delivery counts go with their messages to the new block, and those of settled messages go."""
    stored = returned(tmp_path, {3: 2, 7: 3})
    stored.take("q", 5)
    stored.commit()
    stored.close()
    compact(tmp_path)

    assert {"7": 3} == counts_on_disk(tmp_path)
    assert [] == findings(tmp_path)


def test_a_delivery_count_of_nothing_is_found(tmp_path):
    """A check reports counts that belong to no record."""
    returned(tmp_path, {3: 2}).close()
    with lmdb.open(str(tmp_path / "store"), map_size=MAP_SIZE, max_dbs=16) as env:
        acks = env.open_db(b"acks")
        with env.begin(write=True) as txn:
            ((key, _),) = list(txn.cursor(acks))
            txn.put(key, pack_bits(key, 20, 0, {25: 1}), db=acks)

    assert ["a delivery count of a record that does not exist"] == [each.text for each in findings(tmp_path)]


def test_a_wrong_directory_is_found(tmp_path, monkeypatch):
    """A check holds the octets that a directory says against the bodies."""
    stored = Stored(tmp_path, "q")
    stored.publish("three", "q")
    with monkeypatch.context() as context:
        context.setattr(blocks, "unpack_body", lambda _: (4,))
        stored.commit()
    stored.close()

    assert ["record 0 has a body of 5 bytes, 4 in the directory"] == [
        each.text for each in findings(tmp_path)
    ]


def test_contents_are_as_large_as_they_say():
    """The octets of a body are those that its header declares."""
    assert 5 == body_octets(content_of("three"))
    assert 0 == body_octets(content_of("three")[:18])

"""Blocks: reading returns what was written, and nothing else."""

import pytest
from hypothesis import given, strategies as st

from leveret.storage.errors import DamagedError
from leveret.storage.journal.blocks import (
    BLOCK_RECORDS,
    FAILURE_BITS,
    RUN_SPACE,
    WRITING,
    Bitmap,
    Entry,
    Header,
    Record,
    RunEntry,
    encode_block,
    offsets_of,
    pack_bits,
    pack_key,
    plain_entries,
    plan_blocks,
    read_bitmap,
    read_header,
    read_records,
)
from leveret.storage.journal.runs import PackedRun, Run, messages_of
from leveret.storage.message import Message

QID = 7 << 32 | 5
SEGMENT = 64
HUNDRED = Header(7, 0, 99, 100, 0, False, False)
"""Header of a block of a hundred records."""
HUNDRED_KEY = pack_key(7, 0)


def entry(seq_id: int, address: bytes = b"\x01x\x01k", content: bytes = b"content", msg_id: int = 0) -> Entry:
    made = Entry(seq_id, Message(address, content, 1), len(content), durable=True)
    made.msg_id = msg_id
    return made


messages = st.tuples(
    st.binary(min_size=2, max_size=20), st.binary(max_size=300), st.sampled_from([0, 0, 0, 9])
)


@given(
    contents=st.lists(messages, min_size=1, max_size=40),
    gaps=st.lists(st.integers(1, 30), min_size=40, max_size=40),
    limit=st.integers(1, 2000),
)
def test_what_is_written_is_read(contents, gaps, limit):
    """Every record comes back in order with its seq_id, address and content or reference."""
    seq_ids = [sum(gaps[: at + 1]) for at in range(len(contents))]
    entries = [entry(seq_id, *content) for seq_id, content in zip(seq_ids, contents, strict=True)]
    found = []
    for plan in plan_blocks(QID, entries, SEGMENT, paged=False, limit=limit):
        value = encode_block(plan)
        header = read_header(plan.block.key, value)
        first, last = plan.entries[0].seq_id, plan.entries[-1].seq_id

        assert (QID, first, last, len(plan.entries)) == header[:4]
        assert sum(each.size for each in plan.entries) == header.octets
        assert any(each.msg_id for each in plan.entries) is header.has_references
        assert first // SEGMENT == last // SEGMENT
        for record in read_records(value, header):
            assert isinstance(record, Record)
            assert plan.entries[record.place].seq_id == record.seq_id
            found.append(record)
    expected = [
        (seq_id, address, None if msg_id else content, msg_id, len(content))
        for seq_id, (address, content, msg_id) in zip(seq_ids, contents, strict=True)
    ]

    assert expected == [(each.seq_id, each.address, each.content, each.msg_id, each.size) for each in found]


def test_entries_know_where_they_lie() -> None:
    """Planning gives each entry its block and its place there, and marks it as being written."""
    entries = [entry(seq_id) for seq_id in range(60, 70)]
    plans = plan_blocks(QID, entries, SEGMENT, paged=True)

    assert [(60, 4), (64, 6)] == [(plan.block.first, plan.block.count) for plan in plans]
    assert [*range(4), *range(6)] == [each.index for each in entries]
    assert {WRITING} == {each.state for each in entries}
    assert all(plan.block.paged and plan.block.live == plan.block.count for plan in plans)


def test_a_block_of_references_stays_readable() -> None:
    """References of one block are bounded, because a reader may need all of that in memory."""
    entries = [entry(seq_id, content=bytes(500), msg_id=1 + seq_id) for seq_id in range(60)]
    plans = plan_blocks(QID, entries, SEGMENT, paged=False, limit=100)

    assert all(sum(each.size for each in plan.entries) <= 1600 for plan in plans)


def test_a_block_has_a_bounded_number_of_records() -> None:
    """A block has a bounded number of records, however small the messages are."""
    entries = [entry(seq_id, content=b"") for seq_id in range(BLOCK_RECORDS + 1)]
    plans = plan_blocks(QID, entries, 1 << 20, paged=False, limit=1 << 30)

    assert [BLOCK_RECORDS, 1] == [len(plan.entries) for plan in plans]


def test_dead_records_are_left_out() -> None:
    """Records whose bit is set are not read."""
    (plan,) = plan_blocks(QID, [entry(seq_id) for seq_id in range(10)], SEGMENT, paged=False)
    value = encode_block(plan)
    left = read_records(value, read_header(plan.block.key, value), 0b1111011110)

    assert [0, 5] == [each.place for each in left if isinstance(each, Record)]


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_damaged_octet_is_found(flip: int) -> None:
    """An altered octet of a block makes its header damaged or just the record it belongs to, never a wrong message."""
    (plan,) = plan_blocks(QID, [entry(seq_id, content=b"abc") for seq_id in range(3)], SEGMENT, paged=False)
    value = encode_block(plan)
    whole = list(read_records(value, read_header(plan.block.key, value)))
    for at in range(len(value)):
        damaged = value[:at] + bytes([value[at] ^ flip]) + value[at + 1 :]
        try:
            header = read_header(plan.block.key, damaged)
        except DamagedError:
            continue
        found = list(read_records(damaged, header))

        assert 2 == sum(isinstance(each, Record) for each in found), at
        assert all(each in (place, whole[place]) for place, each in enumerate(found))


def test_every_torn_block_is_found() -> None:
    """A block that ends early has a damaged header or loses its last records, and says so."""
    (plan,) = plan_blocks(QID, [entry(seq_id) for seq_id in range(3)], SEGMENT, paged=False)
    value = encode_block(plan)
    for length in range(len(value)):
        try:
            header = read_header(plan.block.key, value[:length])
        except DamagedError:
            continue

        assert any(isinstance(each, int) for each in read_records(value[:length], header))


def test_a_record_of_another_block_or_place_is_damaged() -> None:
    """Records are bound to their block and to their place in it: a whole one in the wrong place is not believed."""
    (plan,) = plan_blocks(QID, [entry(seq_id) for seq_id in (1, 2, 3)], SEGMENT, paged=False)
    value = encode_block(plan)
    header = read_header(plan.block.key, value)
    first, second, third = offsets_of(value, header)
    assert second - first == third - second
    twice = value[:second] + value[first:second] + value[third:]

    assert [0, 1, 2] == list(read_records(value, header._replace(qid=QID + 1)))
    assert [0, 1, 2] == list(read_records(value, header._replace(first=2)))
    assert [1, 2, 3] == [record.seq_id for record in read_records(value, header)]
    assert [False, True, False] == [isinstance(record, int) for record in read_records(twice, header)]
    assert plain_entries(twice, header, 0, plan.block, range(9), durable=True) is None


@given(st.sets(st.integers(0, 99)))
def test_bitmaps(indexes: set[int]) -> None:
    """A bitmap is as long as its block has records, and comes back as it was."""
    bits = sum(1 << index for index in indexes)

    bitmap = pack_bits(HUNDRED_KEY, 100, bits)

    assert 4 + 13 == len(bitmap)
    assert bits == read_bitmap(bitmap, HUNDRED).dead
    assert not read_bitmap(bitmap, HUNDRED).is_damaged
    assert 0 == read_bitmap(None, HUNDRED).dead


@given(st.integers(0, 8 * 17 - 1))
def test_a_damaged_bitmap_settles_nothing(bit: int) -> None:
    """A bitmap with any bit flipped settles nothing: messages come back, and none vanishes."""
    bitmap = bytearray(pack_bits(HUNDRED_KEY, 100, 0b1011))
    bitmap[bit // 8] ^= 1 << bit % 8

    assert read_bitmap(bytes(bitmap), HUNDRED).is_damaged
    assert 0 == read_bitmap(bytes(bitmap), HUNDRED).dead


def test_a_bitmap_of_another_block_settles_nothing() -> None:
    """A bitmap and its delivery counts say nothing of a block with another queue or position."""
    for other in (HUNDRED._replace(qid=8), HUNDRED._replace(first=1)):
        bitmap = pack_bits(pack_key(other.qid, other.first), 100, 0b1011, {5: 2})

        assert (0, {}) == (read_bitmap(bitmap, HUNDRED).dead, read_bitmap(bitmap, HUNDRED).returns)
        assert (0b1011, {5: 2}) == (read_bitmap(bitmap, other).dead, read_bitmap(bitmap, other).returns)


def test_an_empty_bitmap_is_damaged() -> None:
    """A row without even a checksum was written for no block; a missing row is not damaged."""
    assert read_bitmap(b"", HUNDRED) == Bitmap(is_damaged=True)
    assert read_bitmap(None, HUNDRED) == Bitmap()


@given(st.integers(0, 2**31 - 1), st.integers(0, 70_000))
def test_delivery_counts_have_two_parts(failures: int, others: int) -> None:
    """A count of failures alone is kept as it is; with others beside them both are, up to 16 and 15 bits."""
    count = others << FAILURE_BITS | failures
    kept = read_bitmap(pack_bits(HUNDRED_KEY, 100, 0, {7: count}), HUNDRED).returns
    both = min(others, 0x7FFF) << FAILURE_BITS | min(failures, 0xFFFF)
    assert {7: both if others else failures} == kept


@given(
    addresses=st.lists(st.binary(min_size=2, max_size=20), min_size=2, max_size=9),
    body=st.binary(max_size=90),
    is_alone=st.booleans(),
)
def test_a_packed_run_is_written_like_any_other(addresses, body, is_alone):
    """A block has the same bytes whether a run is packed before, alone in it or not, and its messages are the same."""
    contents = [b"\2\0\1" + bytes([at]) * 16 + body[at:] for at in range(len(addresses))]
    several = [Message(*each, 1) for each in zip(addresses, contents, strict=True)]
    written = []
    for run in (Run(several), PackedRun(several, RUN_SPACE)):
        made = RunEntry(3, run, sum(map(len, contents)), span=len(several), expires=5)
        (plan,) = plan_blocks(QID, [made] if is_alone else [made, entry(20)], SEGMENT, paged=False)
        written.append([bytes(encode_block(plan)) for _ in range(2)])
        assert [(each.address, each.content, each.channel_id) for each in messages_of(run)] == [
            (each.address, each.content, each.channel_id) for each in several
        ]
    assert written[0] == written[1]

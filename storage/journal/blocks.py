"""Blocks: runs of one queue's messages as they are stored on disk.

Theory. The messages that one commit writes for one queue share one row (or a few, of about `BLOCK_OCTETS`): a block.
Its key is the queue's id and the first seq_id, so a queue's blocks are stored in order, and a range of seq_ids (delta)
is read by iterating over them. A block never crosses a segment boundary, so loads, which go by segments, seldom read
only a part of one.

The record of an acked message is dead. A block with dead records has a second row, a bitmap of them; when its last
record is dead both rows are deleted. So a queue that is consumed in order costs a bitmap per commit and a deletion per
block, whatever the number of messages. In queues that count deliveries (`x-delivery-limit`, quorum queues) the bitmap's
row also has the delivery count of each message that was requeued.

Layout (big-endian)::

    block    crc32 of the rest of the header and the directory (4), qid (8), first and last seq_id (8 each),
             records (4), octets of content (8), flags (1: some record is a reference; 2: some record expires;
             4 and 8 are set in every block),
             directory: offset of each record from the start (4 each), octets of each body (8 each), records
    record   crc32 of the rest, started with the crc32 of the block's key xor the record's number (4),
             octets of the rest (4), seq_id (8), expiry in ms since the epoch or 0 (8), kind (1), priority (1),
             octets of the address (2), address, content or reference
    reference  msg_id (8), octets of the content (8)
    bitmap   crc32 of the rest, started with the crc32 of the block's key (4), bit n of octet n/8 for record n,
             delivery counts: place of the record (2), count (4)

A record of a stream may be a run of messages (`storage.journal.runs`): it has the seq_id of the first one.
So an intact page that belongs elsewhere, in another block or in the same one, is detected.

Hot path: see docs/performance.md.
"""
# ruff: noqa: S101 - asserts tell the type checker what always holds; no input is checked by them

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from struct import Struct, error as StructError  # noqa: N812 - it is an exception, whatever its name
from typing import Final, NamedTuple

from zlib_ng.zlib_ng import crc32

from leveret.storage.empty import EmptyDict
from leveret.storage.errors import DamagedError
from leveret.storage.journal.runs import PackedRun, Run, unpacked
from leveret.storage.message import HEAD_OCTETS, Message, Persistent, body_octets, unpack_body

BLOCK_OCTETS = 64 * 1024
"""Approximate size of a block in bytes, chosen by measurement (docs/storage.md). A larger message has a block of its
own."""
BLOCK_RECORDS = 1024
LAST_SEQ_ID = (1 << 64) - 1
BLOCK_CONTENT = 16
"""Maximum size of a block's contents, including those stored elsewhere, as a multiple of its own size: reading a block
may require reading them all."""

EMBEDDED, IN_BODY_TABLE, IN_BLOB, RUN = 0, 1, 2, 3
"""Places of contents: record, table of bodies, file; or the record has several."""

_HEADER = Struct(">IQQQIQB")
_HEADER_REST = Struct(">QQQIQB").pack
_HEADER_OCTETS = _HEADER.size
_LAST = Struct(">Q").unpack_from
_LAST_AT = 20  # after checksum, qid and first seq_id
_REFERENCES, _EXPIRIES, _ALWAYS = 1, 2, 12
_RECORD_HEAD = Struct(">II").pack
_RECORD_START = Struct(">II").unpack_from
_RECORD_REST = Struct(">QQBBH")
_pack_rest = _RECORD_REST.pack
RECORD = Struct(">IIQQBBH")  # fixed part of a record, before its address
_RECORD_OCTETS = RECORD.size
RUN_SPACE = _HEADER_OCTETS + 12 + _RECORD_OCTETS  # bytes before the address of the only record of a block
REFERENCE = Struct(">QQ")  # reference to a content that is stored elsewhere
_CRC = Struct(">I").pack
_KEY = Struct(">QQ")
_RETURN = Struct(">HI")
RETURN_OCTETS = _RETURN.size  # bytes of a delivery count after a bitmap
FAILURE_BITS: Final = 32
FAILURES: Final = (1 << FAILURE_BITS) - 1
"""The bits of a delivery count that say how many deliveries failed; those above say how many came back otherwise."""
_BOTH = 1 << 31
"""Marks a count on disk with both: 15 bits of the others, then 16 of failures. Without it all are failures."""
NO_RETURNS: dict[int, int] = EmptyDict()  # shared by all blocks without delivery counts

pack_key = _KEY.pack
unpack_key = _KEY.unpack


class Block:
    """In-memory state of one block.

    `live` counts the records that are not dead, `away` those of them without an entry in memory because they belong to
    the delta. `acked` and `moved` list the indexes that died since the block's bitmap was last written, `returns` the
    delivery counts by index: those on disk, and those that the next commit writes.
    """

    __slots__ = (
        "acked",
        "away",
        "bits",
        "count",
        "dirty",
        "first",
        "has_bad_bitmap",
        "home",
        "live",
        "marked",
        "moved",
        "paged",
        "qid",
        "returns",
        "swept",
    )

    def __init__(self, qid: int, first: int, count: int, *, paged: bool) -> None:
        self.qid = qid
        self.first = first
        self.count = count
        self.live = count
        self.away = 0
        self.acked: list[int] = []
        self.bits = 0  # the bitmap on disk, or in the current batch
        self.returns = NO_RETURNS
        self.marked = False
        """True if it has a bitmap on disk or in the current batch, or may have one since its part of the delta was
        swept."""
        self.swept = False
        """True if its part of the delta was swept: its bitmap on disk gets bits that memory does not know. These
        records are never subtracted from `live`, so the block is not deleted as a whole while the sweep may still need
        to read it."""
        self.home: dict[int, Block] | None = None  # queue's table of blocks in the delta that has this one
        self.has_bad_bitmap = False  # True if a read has found its bitmap damaged, and counted that
        self.dirty = False  # True if it is on the journal's list
        self.moved: list[int] | None = None
        """Those of them whose messages live on in other queues: both changes go to disk in one commit."""
        self.paged = paged  # True if it is in the environment of paged transient messages

    @property
    def noted(self) -> int:
        """The bitmap of the records that died since the block's bitmap was last written."""
        return bits_of([*self.acked, *(self.moved or ())])

    @property
    def slot(self) -> int:
        """Its key in that table."""
        return self.first * 2 + self.paged

    @property
    def key(self) -> bytes:
        """Its key on disk."""
        return pack_key(self.qid, self.first)


NEW, WRITING, STORED, GONE, LOGGED = 0, 1, 2, 3, 4


class Entry:
    """One queue's copy of a message that is on disk, or on its way there.

    States: NEW (in no commit yet), WRITING (in the current commit), STORED, and GONE (settled: acked or dropped; an
    entry settled while NEW is never written). Where a log has an entry first, it is LOGGED between WRITING and STORED:
    safe, but not to be read from disk yet (`storage.journal.journal` says when). `message` is None once the body is no
    longer kept in memory; `evict` is set if the body is to be released once it is STORED. `durable` is true for a
    persistent message in a durable queue, false for a transient one that is paged out.
    """

    __slots__ = (
        "block",
        "body",
        "durable",
        "evict",
        "expires",
        "index",
        "message",
        "msg_id",
        "seq_id",
        "size",
        "state",
    )

    block: Block
    index: int
    body: int  # body size in bytes; set while `message` is None
    span = 1  # number of seq_ids that it takes

    def __init__(
        self, seq_id: int, message: Message | None, size: int, *, durable: bool, expires: int = 0
    ) -> None:
        self.seq_id = seq_id
        self.expires = expires  # time at which the queue has to discard it (epoch ms); 0 for never
        self.durable = durable
        self.message = message
        self.size = size  # bytes of the content, frames included: the memory that the body takes
        self.state = NEW
        self.evict = False
        self.msg_id = 0  # id of the content, if it is not in the record
        # set once the entry is in a batch: block, index

    def forget(self) -> None:
        """Release the message, whose body is no longer to be kept in memory; its size stays known."""
        message = self.message
        if message is not None:
            self.body = body_octets(message.content)
            self.message = None


_PIECE = 1024  # messages whose bytes are counted in one step


def octets_in_pieces(items: Sequence[Message | Entry]) -> Iterator[int]:
    """Yield the body bytes of several messages at a time; the sequence must not change meanwhile."""
    for at in range(0, len(items), _PIECE):
        yield octets_of(items[at : at + _PIECE])


def octets_of(items: Iterable[Message | Entry]) -> int:
    """Return the total body bytes of queued messages; entries whose message is on disk store their size."""
    return sum([_octets_of(item) for item in items])


def _octets_of(item: Message | Entry) -> int:
    if type(item) is Entry:
        if item.message is None:
            return item.body
        item = item.message
    return body_octets(item.content)  # type: ignore[union-attr]


class RunEntry(Entry):
    """An entry of several messages; `message` is their `Run`."""

    __slots__ = ("span",)
    message: Run

    def __init__(self, seq_id: int, run: Run, size: int, *, span: int, expires: int) -> None:
        super().__init__(seq_id, run, size, durable=True, expires=expires)
        self.span = span


class Header(NamedTuple):
    """A block's header."""

    qid: int
    first: int
    last: int
    records: int
    octets: int
    has_references: bool
    has_expiries: bool


class Record(NamedTuple):
    """One record and its place in its block; if the content is stored elsewhere, `content` is None and `msg_id` set."""

    place: int
    seq_id: int
    expires: int
    kind: int
    priority: int
    address: bytes
    content: bytes | None
    msg_id: int
    size: int


class Plan(NamedTuple):
    """A block to be written, and the entries of its records."""

    block: Block
    entries: Sequence[Entry]
    octets: int  # its approximate size in bytes
    contents: int  # size of the contents of its messages in bytes, wherever they are stored

    @property
    def last(self) -> int:
        """The last seq_id."""
        return self.entries[-1].seq_id + self.entries[-1].span - 1


def plan_blocks(
    qid: int, entries: Sequence[Entry], segment: int, *, paged: bool, limit: int = BLOCK_OCTETS
) -> list[Plan]:
    """Divide entries (ascending by seq_id, state NEW) into blocks, and set the place of each.

    Entries whose `msg_id` is set are written as references. The caller must write the bodies they refer to.
    """
    plans: list[Plan] = []
    at, total = 0, len(entries)
    while at < total:
        first = entries[at].seq_id
        boundary = (first // segment + 1) * segment
        block = Block(qid, first, 0, paged=paged)
        start = at
        octets = contents = 0
        while at < total:
            entry = entries[at]
            if entry.seq_id >= boundary:
                break
            size = entry.size
            length = _RECORD_OCTETS + len(entry.message.address)  # type: ignore[union-attr]
            length += REFERENCE.size if entry.msg_id else size
            if octets and (
                octets + length > limit
                or at - start >= BLOCK_RECORDS
                or contents + size > BLOCK_CONTENT * limit
            ):
                break
            entry.block = block
            entry.index = at - start
            entry.state = WRITING
            octets += length
            contents += size
            at += 1
        block.count = block.live = at - start
        plans.append(Plan(block, entries[start:at], octets, contents))
    return plans


def encode_block(plan: Plan) -> bytes:
    """Return the bytes of a block. May run in another thread, because entries being written do not change."""
    block, entries, _, octets = plan
    seed = crc32(block.key)
    if len(entries) == 1 and type(entries[0].message) is PackedRun:
        return _completed(plan, entries[0].message, seed)  # type: ignore[return-value] # it is written as bytes are
    parts: list[bytes | memoryview] = []
    lengths: list[int] = []
    bodies: list[int] = []
    references = expiries = False
    for place, entry in enumerate(entries):
        message = entry.message
        assert message is not None
        if entry.span > 1:
            kind = RUN
            address, content, body = message.record()  # type: ignore[attr-defined] # it is a `Run`
            bodies.append(body)
        else:
            kind, address, content = EMBEDDED, message.address, message.content
            bodies.append(unpack_body(content)[0] if entry.size >= HEAD_OCTETS else 0)
        if entry.msg_id:
            content = REFERENCE.pack(entry.msg_id, entry.size)
            kind = IN_BLOB if isinstance(message, Persistent) and message.in_blob else IN_BODY_TABLE
            references = True
        expires = entry.expires
        if expires:
            expiries = True
        head = _pack_rest(entry.seq_id, expires, kind, 0, len(address)) + address
        length = len(head) + len(content)
        parts += (_RECORD_HEAD(crc32(content, crc32(head, seed ^ place)), length), head, content)
        lengths.append(length + 8)
    return join_block(
        block.qid,
        entries[0].seq_id,
        plan.last,
        lengths,
        bodies,
        parts,
        octets=octets,
        references=references,
        expiries=expiries,
    )


def _completed(plan: Plan, run: PackedRun, seed: int) -> bytearray:
    """Return the bytes of a block whose only record is a run: that run's, which has space for what precedes it."""
    (entry,), qid, octets = plan.entries, plan.block.qid, plan.contents
    first, time = entry.seq_id, entry.expires
    value, rest_at = memoryview(run.octets), RUN_SPACE - _RECORD_REST.size
    _RECORD_REST.pack_into(value, rest_at, first, time, RUN, 0, len(run.address))
    rest = value[rest_at:]
    sizes, bodies, head = [len(rest) + 8], [run.body_octets], [_RECORD_HEAD(crc32(rest, seed), len(rest))]
    value[:rest_at] = join_block(
        qid, first, plan.last, sizes, bodies, head, octets=octets, references=False, expiries=time > 0
    )
    return run.octets


def join_block(
    qid: int,
    first: int,
    last: int,
    lengths: Sequence[int],
    bodies: Sequence[int],
    parts: Sequence[bytes | memoryview],
    *,
    octets: int,
    references: bool,
    expiries: bool,
) -> bytes:
    """Return a block of records with these lengths and the bytes `parts`, with header and directory in front.

    `bodies` are the body sizes of the records, `octets` the size of all contents together, in bytes.
    """
    count = len(lengths)
    offsets = accumulate(lengths[:-1], initial=_HEADER_OCTETS + 12 * count)
    directory = Struct(f">{count}I{count}Q").pack(*offsets, *bodies)
    flags = _REFERENCES * references | _EXPIRIES * expiries | _ALWAYS
    head = _HEADER_REST(qid, first, last, count, octets, flags)
    return b"".join((_CRC(crc32(directory, crc32(head))), head, directory, *parts))


def read_header(key: bytes | memoryview, value: bytes | memoryview) -> Header:
    """Return the header of the block under a key; DamagedError if header or directory differ from those written there.

    A large block has pages of its own, apart from its key: if such a page replaces another, its content is intact but
    belongs to another queue.
    """
    try:
        crc, qid, first, last, count, octets, flags = _HEADER.unpack_from(value)
    except StructError:
        raise DamagedError("a block is shorter than its header") from None
    end = _HEADER_OCTETS + 12 * count
    if crc32(value[4:end]) != crc or len(value) < end:
        raise DamagedError(f"the header of a block of queue {qid} is damaged")
    if pack_key(qid, first) != key:
        raise DamagedError(f"it is block {qid}/{first}")
    return Header(qid, first, last, count, octets, bool(flags & _REFERENCES), bool(flags & _EXPIRIES))


def _seed_of(header: Header) -> int:
    """Return the start value of the checksums of a block's records."""
    return crc32(pack_key(header.qid, header.first))


def moved_record(record: bytes, header: Header, place: int, new_key: bytes, new_place: int) -> bytes:
    """Return a record with the checksum for another place or block; a damaged record stays damaged."""
    crc, length = _RECORD_START(record)
    rest = record[8:]
    is_whole = length == len(rest) and crc == crc32(rest, _seed_of(header) ^ place)
    return _RECORD_HEAD(crc32(rest, crc32(new_key) ^ new_place) ^ (not is_whole), len(rest)) + rest


def last_of(value: bytes | memoryview) -> int:
    """Return the last seq_id of a block, even a damaged one; the highest possible if it is too short."""
    return int(_LAST(value, _LAST_AT)[0]) if len(value) >= _LAST_AT + 8 else LAST_SEQ_ID


def offsets_of(value: bytes, header: Header) -> tuple[int, ...]:
    """Return the offset of each record of a block."""
    return Struct(f">{header.records}I").unpack_from(value, _HEADER_OCTETS)


def bodies_of(value: bytes | memoryview, header: Header) -> Sequence[int]:
    """Return the body size in bytes of each record of a block."""
    return Struct(f">{header.records}Q").unpack_from(value, _HEADER_OCTETS + 4 * header.records)


def live_octets(value: bytes | memoryview, header: Header, dead: int) -> int:
    """Return the body bytes of a block's records whose bit is not set in `dead`."""
    bodies = bodies_of(value, header)
    if not dead:
        return sum(bodies)
    return sum([body for index, body in enumerate(bodies) if not dead >> index & 1])


def read_records(
    value: bytes, header: Header, dead: int = 0, *, as_runs: bool = False
) -> Iterator[Record | int]:
    """Yield the records of a block whose bit is not set in `dead`; only the index of a damaged one.

    A run yields a record for each message, or one of kind `RUN` with `as_runs`.
    """
    seed = _seed_of(header)
    unpack = RECORD.unpack_from
    for index, offset in enumerate(offsets_of(value, header)):
        if dead and dead >> index & 1:
            continue
        try:
            crc, length, seq_id, expires, kind, priority, octets = unpack(value, offset)
        except StructError:
            yield index
            continue
        stop = offset + 8 + length
        if stop > len(value) or crc32(value[offset + 8 : stop], seed ^ index) != crc:
            yield index
            continue
        at = offset + _RECORD_OCTETS
        address = value[at : at + octets]
        if kind == EMBEDDED:
            content = value[at + octets : stop]
            yield Record(index, seq_id, expires, kind, priority, address, content, 0, len(content))
        elif kind == RUN:
            run = Record(index, seq_id, expires, kind, priority, address, value[at + octets : stop], 0, 0)
            if as_runs:
                yield run
            else:
                yield from _unrolled(run)
        else:
            msg_id, size = REFERENCE.unpack_from(value, at + octets)
            yield Record(index, seq_id, expires, kind, priority, address, None, msg_id, size)


def _unrolled(run: Record) -> Iterator[Record]:
    for seq_id, (address, content) in enumerate(
        zip(*unpacked(run.address, run.content or b""), strict=True), run.seq_id
    ):
        yield Record(
            run.place, seq_id, run.expires, EMBEDDED, run.priority, address, content, 0, len(content)
        )


def plain_entries(
    value: bytes, header: Header, dead: int, block: Block, wanted: range, *, durable: bool
) -> list[Entry] | None:
    """Return stored entries, with bodies, of a block's live records whose seq_id is in `wanted`.

    A fast path of `read_records` for long runs of small messages. Returns None for a block with references or damage,
    which needs `read_records`.
    """
    if header.has_references:
        return None
    seed = _seed_of(header)
    bodies = bodies_of(value, header)
    unpack = RECORD.unpack_from
    first, end = wanted.start, wanted.stop
    address = b""
    octets_before = -1
    entries = []
    try:
        for index, offset in enumerate(offsets_of(value, header)):
            if dead and dead >> index & 1:
                continue
            crc, length, seq_id, expires, _, _, octets = unpack(value, offset)
            stop = offset + 8 + length
            if crc32(value[offset + 8 : stop], seed ^ index) != crc:
                return None
            if not first <= seq_id < end:
                continue
            at = offset + _RECORD_OCTETS
            content_at = at + octets
            if octets != octets_before or not value.startswith(address, at):
                address = value[at:content_at]
                octets_before = octets
            content = value[content_at:stop]
            channel_id = content[1] << 8 | content[2]
            message = Message(address, content, channel_id)
            entry = Entry(seq_id, message, stop - content_at, durable=durable, expires=expires)
            entry.state = STORED
            entry.block = block
            entry.index = index
            entry.body = bodies[index]
            entries.append(entry)
    except (StructError, IndexError):
        return None
    return entries


def bits_of(indexes: Iterable[int]) -> int:
    """Return the bitmap of these records of a block."""
    bits = 0
    for index in indexes:
        bits |= 1 << index
    return bits


def pack_bits(key: bytes, count: int, bits: int, returns: Mapping[int, int] = NO_RETURNS) -> bytes:
    """Return the bitmap of a block of `count` records after its checksum, and the delivery counts of live records."""
    octets = bits.to_bytes((count + 7) // 8, "little")
    if returns:
        left = [(index, most) for index, most in sorted(returns.items()) if not bits >> index & 1]
        octets += b"".join([_RETURN.pack(index, _short_count(most)) for index, most in left])
    return _CRC(crc32(octets, crc32(key))) + octets


class Bitmap(NamedTuple):
    """A decoded bitmap."""

    dead: int = 0  # one bit per index, set if the record is dead
    returns: dict[int, int] = NO_RETURNS  # delivery counts by index
    is_damaged: bool = False
    """True if it differs from the one written for its block. Then it has no bits and no counts: settled messages are
    delivered again, marked redelivered, and none is lost."""


def read_bitmap(bitmap: bytes | None, header: Header) -> Bitmap:
    """Decode the bitmap of the block with this header; None if it has none.

    A large bitmap has pages of its own, apart from its key, like a large block: it has to be the one of this block.
    """
    if bitmap is None:
        return Bitmap()
    if not is_bound(pack_key(header.qid, header.first), bitmap):
        return Bitmap(is_damaged=True)
    stop = 4 + (header.records + 7) // 8
    dead = int.from_bytes(bitmap[4:stop], "little")
    whole = (len(bitmap) - stop) // RETURN_OCTETS * RETURN_OCTETS
    returns = dict(_RETURN.iter_unpack(bitmap[stop : stop + whole])) if whole > 0 else NO_RETURNS
    for index, count in returns.items():
        if count & _BOTH:
            returns[index] = (count & _BOTH - 1) >> 16 << FAILURE_BITS | count & 0xFFFF
    return Bitmap(dead, returns)


def _short_count(count: int) -> int:
    """Return a delivery count as it is on disk; larger ones stay at the largest."""
    failures, others = count & FAILURES, count >> FAILURE_BITS
    if not others:
        return min(failures, _BOTH - 1)
    return _BOTH | min(others, 0x7FFF) << 16 | min(failures, 0xFFFF)


def is_bound(key: bytes, bitmap: bytes) -> bool:
    """Return whether a bitmap was written for the block with this key."""
    return bitmap[:4] == _CRC(crc32(bitmap[4:], crc32(key)))

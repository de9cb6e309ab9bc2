"""The changes of one commit: the journal cuts the batch, the store makes it safe, the journal settles it.

`LoggedChanges` are the durable changes as bytes, as a redo log has them, and as a replicated log carries them to other
nodes. They contain the data to write, not their origin: encoded blocks, bitmaps, rows. Two copies to which the same
batches were applied, in the same order and each once, have the same messages. Reference counts are counted down, so
nothing may be applied twice: the place in the log is written in the same transaction.

Layout: a msgpack array, whose first element is the version of the layout. If a large one gains by that, its last
element is the compressed array: what several servers write and each node reads costs more than the compression.
"""

from collections.abc import Callable, Iterable
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

import msgspec
from zlib_ng.zlib_ng import compress, crc32, decompress, error as ZlibError  # noqa: N812 - it is an exception, whatever its name

from leveret.storage.errors import DamagedError, DiskFullError, Done
from leveret.storage.journal.blocks import (
    NO_RETURNS,
    Block,
    Entry,
    Plan,
    encode_block,
    pack_bits,
    read_header,
)
from leveret.storage.journal.reads import Range
from leveret.storage.journal.stream_rows import OFFSETS
from leveret.storage.message_ids import TABLE as IDS

VERSION = 1
COMPRESSED: Final = 2  # version of a layout that has all else compressed
COMPRESSED_FROM: Final = 64 * 1024  # bytes from which a batch may be compressed
SAMPLE_OCTETS: Final = 8 * 1024  # bytes from the middle of a batch that are compressed first
SAMPLE_SHARE: Final = 0.8
"""Share of its size that the sample must shrink to: what does not is compressed ten times as slowly, and in vain."""
_LEVEL = 1
_LOGGED = frozenset((IDS, OFFSETS))  # tables of which a small batch may have rows
BODIES = "bodies"  # the table of contents that are stored apart from the records that refer to them
pack_body_key = Struct(">Q").pack  # the key of a body's row, from its msg_id
_pack_crc = Struct(">I").pack
_NONE: Final[list[Any]] = []  # that of all batches, as hundreds of small ones wait; never changed


class Journaled(Protocol):
    """A queue whose messages are written to disk."""

    qid: int
    journal_fresh: list[Entry]
    journal_paged: list[Entry]
    journal_returns: dict[int, int]
    """Delivery counts of requeued messages that are not on disk yet, by seq_id, if the queue counts them."""
    journaled: bool
    segment: int

    def stored(self, entries: list[Entry]) -> None:
        """Entries whose bodies are to be evicted from memory are on disk now."""

    def logged(self, entries: list[Entry]) -> None:
        """Entries whose bodies are to be evicted from memory are safe now, and on disk later."""

    def unstored(self, entries: Iterable[Entry]) -> None:
        """Entries found no space on disk: those still needed are NEW again and their publishes are nacked."""


class Changes(msgspec.Struct, eq=False):
    """The changes of one commit to one environment."""

    bodies: list[tuple[int, bytes]] = []  # contents by msg_id; an empty one is in a file
    refs: list[tuple[bytes, bytes]] = []  # reference counts of msg_ids with more than one record
    shared: dict[int, tuple[bytes, int]] = {}
    """Contents of paged messages that several queues share, by msg_id, with the number of new references to each; a
    content may be on disk already, for records written earlier."""
    plans: list[Plan] = []  # blocks to be written
    marks: list[tuple[bytes, bytes]] = []  # bitmaps of blocks
    merges: list[tuple[bytes, bytes]] = []  # bits to set in bitmaps that may have other bits set on disk
    deletes: list[bytes] = []  # keys of blocks to delete
    unmarks: list[bytes] = []  # keys of those of them that have bitmaps
    unrefs: list[int] = []  # msg_ids that lose one reference
    sweeps: list[Range] = []
    moves: "Changes | None" = None
    """Deletions of records that this commit writes elsewhere, and of their queues; never applied without those
    writes."""
    octets: int = 0

    def __bool__(self) -> bool:
        return bool(
            self.plans
            or self.marks
            or self.merges
            or self.deletes
            or self.unrefs
            or self.sweeps
            or self.bodies
            or self.moves
        )

    @property
    def blocks(self) -> list[tuple[bytes, bytes]]:
        """The rows of the blocks, encoded again at each use. May run in another thread, as `encode_block` may."""
        return [(plan.block.key, encode_block(plan)) for plan in self.plans]

    @property
    def width(self) -> int:
        """The highest difference of the last seq_id of a block and the first one."""
        return max([plan.last - plan.entries[0].seq_id for plan in self.plans])


NOTHING: Final = Changes()  # of all batches that do not touch an environment; never changed


class Batch(NamedTuple):
    """One commit: its changes, and the callbacks to notify."""

    durable: Changes
    paged: Changes
    rows: list[tuple[str, bytes, bytes | None]]  # of other tables, in order: table, key, value (None deletes)
    entries: list[tuple[Journaled, list[Entry]]]
    acked: list[tuple[Block, list[int]]]
    """Dead records that this batch writes to bitmaps, by block, except those in `moved`."""
    moved: list[tuple[Block, list[int]]]  # dead records, by block, whose messages live on in other queues
    waiters: list[Callable[[bool], object]]
    late_waiters: list[Callable[[bool], object]]  # those of an earlier batch, for ends in this one
    copies: int  # number of messages that it writes, in all queues
    octets: int
    pages: bool  # True if it may touch the environment of paged messages
    memory: int = 0  # bytes that the journal counts for it while it is not on disk
    records: int = 0  # copies of persistent messages that the journal counts for it

    @property
    def needs_sync(self) -> bool:
        """True if any of its changes must survive the process."""
        return bool(self.durable or self.rows)

    def written(self, error: DiskFullError | None) -> int:
        """Return the bytes of the batch that a commit has written."""
        if error is None:
            return self.octets
        paged = self.paged.octets
        return (error.durable is Done.ALL) * (self.octets - paged) + (error.paged is Done.ALL) * paged


# -- as bytes ---------------------------------------------------------------------------------------------------------


class LoggedChanges(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The durable part of a batch; fields as in `Changes`, blocks encoded."""

    version: int
    rows: list[tuple[str, bytes, bytes | None]] = []
    bodies: list[tuple[int, bytes]] = []
    refs: list[tuple[bytes, bytes]] = []
    blocks: list[tuple[bytes, bytes]] = []
    marks: list[tuple[bytes, bytes]] = []
    merges: list[tuple[bytes, bytes]] = []
    deletes: list[bytes] = []
    unmarks: list[bytes] = []
    unrefs: list[int] = []
    sweeps: list[Range] = []
    moves: "LoggedChanges | None" = None
    compressed: bytes = b""

    @property
    def rows_changed(self) -> int:
        """The number of rows that are written or deleted, those of moves and sweeps left out."""
        rows = len(self.rows) + len(self.bodies)
        return rows + len(self.blocks) + len(self.marks) + len(self.deletes) + len(self.unrefs)

    @property
    def width(self) -> int:
        """As of `Changes`; raises DamagedError for bytes that are no block."""
        headers = [read_header(*block) for block in self.blocks]
        return max([header.last - header.first for header in headers])


encode_changes = msgspec.msgpack.Encoder().encode  # return changes as bytes
_decode = msgspec.msgpack.Decoder(LoggedChanges).decode


def encode_batch(batch: Batch) -> bytes:
    """Return the durable part of a batch as bytes. May run in another thread, as `blocks.encode_block` may."""
    return _compressed(encode_changes(_logged(batch.durable, batch.rows)))


def decode_batch(octets: bytes) -> LoggedChanges:
    """Return the changes of a batch; raises DamagedError for other bytes, or those of a later version."""
    try:
        logged = _decode(octets)
        if logged.version == COMPRESSED:
            logged = _decode(decompress(logged.compressed))
    except (msgspec.MsgspecError, ZlibError) as error:  # type: ignore[misc] # a class, not what its stub says
        raise DamagedError(f"a batch of the log cannot be read: {error}") from None
    if logged.version != VERSION:
        raise DamagedError(f"a batch of the log has version {logged.version}, this version knows {VERSION}")
    return logged


def _logged(changes: Changes, rows: list[tuple[str, bytes, bytes | None]]) -> LoggedChanges:
    return LoggedChanges(
        VERSION,
        rows,
        changes.bodies or _NONE,
        changes.refs or _NONE,
        changes.blocks or _NONE,
        changes.marks or _NONE,
        changes.merges or _NONE,
        changes.deletes or _NONE,
        changes.unmarks or _NONE,
        changes.unrefs or _NONE,
        changes.sweeps or _NONE,
        None if changes.moves is None else _logged(changes.moves, []),
    )


def _compressed(octets: bytes) -> bytes:
    if len(octets) < COMPRESSED_FROM:
        return octets
    middle = len(octets) // 2
    sample = compress(octets[middle : middle + SAMPLE_OCTETS], _LEVEL)
    if len(sample) > SAMPLE_SHARE * SAMPLE_OCTETS:
        return octets
    return encode_changes(LoggedChanges(COMPRESSED, compressed=compress(octets, _LEVEL)))


def small_changes(batch: Batch, most: int) -> LoggedChanges | None:
    """Return the durable part of a batch if it is small and has only messages, their ends, ids and offsets, else None.

    The offsets are those of consumers of streams. `most` is its size in bytes, approximately. May run in any thread.
    """
    changes = batch.durable
    if changes.octets > most or changes.sweeps:
        return None
    if batch.rows:
        values = [value for table, _, value in batch.rows if table in _LOGGED and value is not None]
        if len(values) < len(batch.rows) or changes.octets + sum(map(len, values)) > most:
            return None
    if changes.bodies and not all(content for _, content in changes.bodies):  # in a file
        return None
    if changes.moves is not None:
        return _small_moves(batch, changes.moves)
    if changes.merges or not (
        changes.plans or changes.marks or changes.deletes or changes.unrefs or batch.rows
    ):
        return None
    return _logged(changes, batch.rows or _NONE)


def _small_moves(batch: Batch, moves: Changes) -> LoggedChanges | None:
    """Return the durable part of a small batch with ends of messages that moved: a log has all of it or nothing."""
    # So the bitmaps are those that the blocks have in memory, as for other ends; None where these do not say all.
    if moves.sweeps:
        return None
    changes = batch.durable
    merged = {key for key, _ in (*changes.merges, *moves.merges)}.difference(moves.deletes)
    marks = list(changes.marks)
    for block, _ in batch.moved:
        if block.swept or block.returns:
            return None
        if block.key in merged:
            merged.remove(block.key)
            marks.append((block.key, pack_bits(block.key, block.count, block.bits, NO_RETURNS)))
    if merged:  # those of swept blocks, of which nothing has moved
        return None
    return msgspec.structs.replace(
        _logged(changes, batch.rows or _NONE),
        marks=marks,
        merges=_NONE,
        deletes=changes.deletes + moves.deletes,
        unmarks=changes.unmarks + moves.unmarks,
        unrefs=changes.unrefs + moves.unrefs,
        moves=None,
    )


def together(several: Iterable[LoggedChanges]) -> LoggedChanges:
    """Return the changes of some small batches (see `small_changes`) as one, without what a later one ends."""
    bodies: dict[int, bytes] = {}
    refs: dict[bytes, bytes] = {}
    blocks: dict[bytes, bytes] = {}
    marks: dict[bytes, bytes] = {}
    deletes: list[bytes] = []
    unmarks: list[bytes] = []
    unrefs: list[int] = []
    rows: dict[tuple[str, bytes], bytes | None] = {}
    for each in several:
        rows.update([((table, key), value) for table, key, value in each.rows])
        bodies.update(each.bodies)
        refs.update(each.refs)
        blocks.update(each.blocks)
        marks.update(each.marks)
        deletes += [key for key in each.deletes if blocks.pop(key, None) is None]
        for key in each.unmarks:
            marks.pop(key, None)
            unmarks.append(key)
        for msg_id in each.unrefs:
            if msg_id not in bodies or pack_body_key(msg_id) in refs:
                unrefs.append(msg_id)
            else:
                del bodies[msg_id]
    return LoggedChanges(
        VERSION,
        [(table, key, value) for (table, key), value in sorted(rows.items())],
        bodies=sorted(bodies.items()),
        refs=list(refs.items()),
        blocks=sorted(blocks.items()),
        marks=sorted(marks.items()),
        deletes=deletes,
        unmarks=unmarks,
        unrefs=unrefs,
    )


def body_checksum(msg_id: int, content: bytes, store: bytes = b"") -> bytes:
    """Return the checksum that precedes a content, in a row or in a file.

    It covers the id; in a file the id of the store, too: the names of files are those of other stores.
    """
    return _pack_crc(crc32(content, crc32(store, crc32(pack_body_key(msg_id)))))


def body_row(msg_id: int, content: bytes) -> tuple[bytes, bytes]:
    """Return the key and the value of a body's row; without a content it says that the body is in a file."""
    return pack_body_key(msg_id), body_checksum(msg_id, content) + content

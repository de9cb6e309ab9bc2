"""A batch as bytes: the durable changes of one commit, as a replicated log carries them to other nodes.

The bytes contain what is written, not how it came about: encoded blocks, bitmaps, rows. Two copies to which the same
batches were applied, in the same order and each once, have the same messages. Reference counts are counted down, so
nothing may be applied twice: the place in the log is written in the same transaction (`storage.store.replica`).

Layout: a msgpack array, whose first element is the version of the layout. If a large one gains by that, its last
element is the compressed array: what several servers write and each node reads costs more than the compression.
"""

from collections.abc import Iterable
from struct import Struct
from typing import Any, Final

import msgspec
from zlib_ng.zlib_ng import compress, decompress, error as ZlibError  # noqa: N812 - it is an exception, whatever its name

from leveret.storage.errors import DamagedError
from leveret.storage.journal.batch import Batch, Changes
from leveret.storage.journal.blocks import NO_RETURNS, encode_block, pack_bits
from leveret.storage.journal.reads import Range

VERSION = 1
COMPRESSED: Final = 2
"""Version of a layout that has all else compressed."""
COMPRESSED_FROM: Final = 64 * 1024
"""Bytes from which a batch may be compressed."""
SAMPLE_OCTETS: Final = 8 * 1024
"""Bytes from the middle of a batch that are compressed first."""
SAMPLE_SHARE: Final = 0.8
"""Share of its size that the sample must shrink to: what does not is compressed ten times as slowly, and in vain."""
_LEVEL = 1
_MSG_ID = Struct(">Q").pack
_NONE: Final[list[Any]] = []
"""Of all batches, as hundreds of small ones wait to be written to the tables; never changed."""


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
    sweeps: list[tuple[int, int, int]] = []
    moves: "LoggedChanges | None" = None
    compressed: bytes = b""

    @property
    def rows_changed(self) -> int:
        """The number of rows that are written or deleted, those of definitions, moves and sweeps left out."""
        return len(self.bodies) + len(self.blocks) + len(self.marks) + len(self.deletes) + len(self.unrefs)

    def deletions(self) -> Changes:
        """Return the changes that only delete."""
        changes = Changes()
        changes.marks = self.marks
        changes.merges = self.merges
        changes.deletes = self.deletes
        changes.unmarks = self.unmarks
        changes.unrefs = self.unrefs
        changes.sweeps = [Range(*each) for each in self.sweeps]
        return changes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LoggedChanges).decode


def encode_batch(batch: Batch) -> bytes:
    """Return the durable part of a batch as bytes. May run in another thread, as `blocks.encode_block` may."""
    return _compressed(_encode(_logged(batch.durable, batch.rows)))


def small_changes(batch: Batch, most: int) -> LoggedChanges | None:
    """Return the durable part of a batch if it is small and has nothing but messages and their ends, else None.

    `most` is its size in bytes, approximately. May run in another thread.
    """
    changes = batch.durable
    if changes.octets > most or batch.rows or changes.sweeps:
        return None
    if changes.moves is not None:
        return _small_moves(batch, changes.moves)
    if changes.merges:
        return None
    if not (changes.blocks or changes.marks or changes.deletes or changes.unrefs):
        return None
    if changes.bodies and not all(content for _, content in changes.bodies):  # in a file
        return None
    return _logged(changes, _NONE)


def _small_moves(batch: Batch, moves: Changes) -> LoggedChanges | None:
    """Return the durable part of a small batch with ends of messages that have moved: a log has all of it or nothing.

    So the bitmaps are those that the blocks have in memory, as for other ends; None where these do not say all.
    """
    changes = batch.durable
    if moves.sweeps or not all(content for _, content in changes.bodies):
        return None
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
    logged = _logged(changes, _NONE)
    return msgspec.structs.replace(
        logged,
        marks=marks,
        merges=_NONE,
        deletes=changes.deletes + moves.deletes,
        unmarks=changes.unmarks + moves.unmarks,
        unrefs=changes.unrefs + moves.unrefs,
        moves=None,
    )


def encode_changes(changes: LoggedChanges) -> bytes:
    """Return changes as bytes."""
    return _encode(changes)


def together(several: Iterable[LoggedChanges]) -> LoggedChanges:
    """Return the changes of some small batches (see `small_changes`) as one, without what a later one ends."""
    bodies: dict[int, bytes] = {}
    refs: dict[bytes, bytes] = {}
    blocks: dict[bytes, bytes] = {}
    marks: dict[bytes, bytes] = {}
    deletes: list[bytes] = []
    unmarks: list[bytes] = []
    unrefs: list[int] = []
    for each in several:
        bodies.update(each.bodies)
        refs.update(each.refs)
        blocks.update(each.blocks)
        marks.update(each.marks)
        deletes += [key for key in each.deletes if blocks.pop(key, None) is None]
        for key in each.unmarks:
            marks.pop(key, None)
            unmarks.append(key)
        for msg_id in each.unrefs:
            if msg_id not in bodies or _MSG_ID(msg_id) in refs:
                unrefs.append(msg_id)
            else:
                del bodies[msg_id]
    return LoggedChanges(
        VERSION,
        bodies=sorted(bodies.items()),
        refs=list(refs.items()),
        blocks=sorted(blocks.items()),
        marks=sorted(marks.items()),
        deletes=deletes,
        unmarks=unmarks,
        unrefs=unrefs,
    )


def _compressed(octets: bytes) -> bytes:
    if len(octets) < COMPRESSED_FROM:
        return octets
    middle = len(octets) // 2
    sample = compress(octets[middle : middle + SAMPLE_OCTETS], _LEVEL)
    if len(sample) > SAMPLE_SHARE * SAMPLE_OCTETS:
        return octets
    return _encode(LoggedChanges(COMPRESSED, compressed=compress(octets, _LEVEL)))


def _logged(changes: Changes, rows: list[tuple[str, bytes, bytes | None]]) -> LoggedChanges:
    moves: Any = changes.moves
    return LoggedChanges(
        VERSION,
        rows,
        changes.bodies or _NONE,
        changes.refs or _NONE,
        [(plan.block.key, encode_block(plan)) for plan in changes.blocks] or _NONE,
        changes.marks or _NONE,
        changes.merges or _NONE,
        changes.deletes or _NONE,
        changes.unmarks or _NONE,
        changes.unrefs or _NONE,
        [tuple(each) for each in changes.sweeps] or _NONE,  # type: ignore[misc] # a Range has three
        None if moves is None else _logged(moves, []),
    )


def decode_batch(octets: bytes) -> LoggedChanges:
    """Return the changes of a batch.

    Raises:
        DamagedError: the bytes are not those of a batch, or of a later version.

    """
    try:
        logged = _decode(octets)
        if logged.version == COMPRESSED:
            logged = _decode(decompress(logged.compressed))
    except (msgspec.MsgspecError, ZlibError) as error:  # type: ignore[misc] # a class, not what its stub says
        raise DamagedError(f"a batch of the log cannot be read: {error}") from None
    if logged.version != VERSION:
        raise DamagedError(f"a batch of the log has version {logged.version}, this version knows {VERSION}")
    return logged

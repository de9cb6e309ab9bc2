"""A batch as bytes: the durable changes of one commit, as a replicated log carries them to other nodes.

The bytes contain what is written, not how it came about: encoded blocks, bitmaps, rows. Two copies to which the same
batches were applied, in the same order and each once, have the same messages. Reference counts are counted down, so
nothing may be applied twice: the place in the log is written in the same transaction (`storage.store.replica`).

Layout: a msgpack array, whose first element is the version of the layout. If a large one gains by that, its last
element is the compressed array: what several servers write and each node reads costs more than the compression.
"""

from typing import Any, Final

import msgspec
from zlib_ng.zlib_ng import compress, decompress, error as ZlibError  # noqa: N812 - it is an exception, whatever its name

from leveret.storage.errors import DamagedError
from leveret.storage.journal.batch import Batch, Changes
from leveret.storage.journal.blocks import encode_block
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


class LoggedChanges(msgspec.Struct, frozen=True, array_like=True):
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
        changes.bodies,
        changes.refs,
        [(plan.block.key, encode_block(plan)) for plan in changes.blocks],
        changes.marks,
        changes.merges,
        changes.deletes,
        changes.unmarks,
        changes.unrefs,
        [tuple(each) for each in changes.sweeps],  # type: ignore[misc] # a Range has three
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

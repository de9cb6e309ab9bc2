"""A batch as bytes: the durable changes of one commit, as a replicated log carries them to other nodes.

The bytes contain what is written, not how it came about: encoded blocks, bitmaps, rows. Two copies to which the same
batches were applied, in the same order and each once, have the same messages. Reference counts are counted down, so
nothing may be applied twice: the place in the log is written in the same transaction (`storage.store.replica`).

Layout: a msgpack array, whose first element is the version of the layout.
"""

from typing import Any

import msgspec

from leveret.storage.errors import DamagedError
from leveret.storage.journal.batch import Batch, Changes
from leveret.storage.journal.blocks import encode_block
from leveret.storage.journal.reads import Range

VERSION = 1


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
    return _encode(_logged(batch.durable, batch.rows))


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
    except msgspec.MsgspecError as error:
        raise DamagedError(f"a batch of the log cannot be read: {error}") from None
    if logged.version != VERSION:
        raise DamagedError(f"a batch of the log has version {logged.version}, this version knows {VERSION}")
    return logged

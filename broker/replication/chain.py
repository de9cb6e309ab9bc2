"""Entries: kinds, frames of a group of batches, the hash that chains entries, and large bodies on their way.

The chunks of a large body are applied before the batch that names it.
"""

from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from leveret.broker.replication.engine import NO_HASH, Entry, Position

EMPTY = 0  # an entry without a payload: its answer settles what was found before it
BATCHES = 1
CHUNK = 2
_KINDS = frozenset({EMPTY, BATCHES, CHUNK})

_HEAD = Struct(">QQ16sQBQ")
_BATCH = Struct(">III")
_CHUNK = Struct(">QQ?")


class BadEntryError(Exception):
    """An entry does not fit the one before it, or its payload cannot be read."""


class Batch(NamedTuple):
    """One commit of the journal."""

    payload: bytes
    named: tuple[int, ...] = ()
    """Ids of the bodies, logged before in chunks, that the batch refers to: they belong to the state from now on."""
    dropped: tuple[int, ...] = ()  # ids of such bodies that no batch will name


class BodyChunk(NamedTuple):
    """A piece of a large body."""

    body: int
    offset: int
    is_last: bool
    data: bytes


def make_entry(before: Position, epoch: int, holder: bytes, settled: int, kind: int, payload: bytes) -> Entry:
    """Return the entry that follows a place; `settled` is at most the index of `before`."""
    index = before.index + 1
    chained = _chained(before.hash, index, epoch, holder, settled, kind, payload)
    return Entry(index, epoch, holder, settled, kind, payload, chained)


def check_entry(before: Position, entry: Entry) -> None:
    """Check that an entry follows a place, is intact and of a known kind; raises BadEntryError."""
    if entry.index != before.index + 1 or entry.epoch < before.epoch:
        raise BadEntryError(f"entry {entry.index} of epoch {entry.epoch} does not follow {before.index}")
    if not 0 <= entry.settled < entry.index:
        raise BadEntryError(f"entry {entry.index} claims that it was settled before it was made")
    if entry.kind not in _KINDS:
        raise BadEntryError(f"entry {entry.index} is of kind {entry.kind}, which this version does not know")
    chained = _chained(
        before.hash, entry.index, entry.epoch, entry.holder, entry.settled, entry.kind, entry.payload
    )
    if chained != entry.hash:
        raise BadEntryError(f"the chain hash of entry {entry.index} does not match")


def _chained(
    before: bytes, index: int, epoch: int, holder: bytes, settled: int, kind: int, payload: bytes
) -> bytes:
    chain = sha256(before or NO_HASH)
    chain.update(_HEAD.pack(index, epoch, holder, settled, kind, len(payload)))
    chain.update(payload)
    return chain.digest()


def framed_size(batch: Batch) -> int:
    """Return the bytes of a batch within a group."""
    return _BATCH.size + 8 * (len(batch.named) + len(batch.dropped)) + len(batch.payload)


def join_batches(batches: list[Batch]) -> bytes:
    """Return the payload of a group of batches."""
    parts = []
    for payload, named, dropped in batches:
        parts.append(_BATCH.pack(len(payload), len(named), len(dropped)))
        parts.extend(body.to_bytes(8, "big") for body in (*named, *dropped))
        parts.append(payload)
    return b"".join(parts)


def split_batches(payload: bytes) -> list[Batch]:
    """Return the batches of a group. Raises BadEntryError: the payload is cut."""
    found = []
    at = 0
    while at < len(payload):
        if at + _BATCH.size > len(payload):
            raise BadEntryError("a group of batches is cut")
        length, named, dropped = _BATCH.unpack_from(payload, at)
        at += _BATCH.size
        ids_end = at + 8 * (named + dropped)
        end = ids_end + length
        if end > len(payload):
            raise BadEntryError("a batch is cut")
        ids = tuple(int.from_bytes(payload[each : each + 8], "big") for each in range(at, ids_end, 8))
        found.append(Batch(payload[ids_end:end], ids[:named], ids[named:]))
        at = end
    return found


def join_chunk(chunk: BodyChunk) -> bytes:
    """Return the payload of an entry that carries a piece of a body."""
    return _CHUNK.pack(chunk.body, chunk.offset, chunk.is_last) + chunk.data


def split_chunk(payload: bytes) -> BodyChunk:
    """Return the piece of a body that an entry carries. Raises BadEntryError: the payload is cut."""
    if len(payload) < _CHUNK.size:
        raise BadEntryError("a chunk is cut")
    body, offset, is_last = _CHUNK.unpack_from(payload)
    return BodyChunk(body, offset, is_last, payload[_CHUNK.size :])


class OpenBodies:
    """The bodies whose chunks were applied and that no batch has named.

    Those that are not named when the epoch changes never will be: their leader has ended. Open bodies are part of the
    state: a snapshot contains them, or the batch that names them could not be applied to it.

    `epoch` is that of the last entry that was applied, `sizes` has the bytes of each body so far.
    """

    def __init__(
        self, epoch: int = 0, sizes: dict[int, int] | None = None, whole: frozenset[int] = frozenset()
    ) -> None:
        self.epoch = epoch
        self.sizes = dict(sizes or {})
        self.whole = set(whole)

    def begin(self, entry: Entry) -> list[int]:
        """Begin to apply an entry; returns the bodies to remove, which a former leader has left."""
        if entry.epoch == self.epoch:
            return []
        self.epoch = entry.epoch
        left = sorted(self.sizes)
        self.sizes.clear()
        self.whole.clear()
        return left

    def take(self, chunk: BodyChunk) -> None:
        """Add a chunk. Raises BadEntryError: it does not follow the last one of its body."""
        if chunk.offset != self.sizes.get(chunk.body, 0) or chunk.body in self.whole:
            raise BadEntryError(f"a chunk of the body {chunk.body} does not follow the one before it")
        self.sizes[chunk.body] = chunk.offset + len(chunk.data)
        if chunk.is_last:
            self.whole.add(chunk.body)

    def close(self, batch: Batch) -> None:
        """Forget the bodies that a batch names or drops. Raises BadEntryError: one that it names is not complete."""
        for body in batch.named:
            if body not in self.whole:
                raise BadEntryError(f"the body {body} is named before all of it is in the log")
        for body in (*batch.named, *batch.dropped):
            self.sizes.pop(body, None)
            self.whole.discard(body)

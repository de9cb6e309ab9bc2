"""Rules for snapshots and for trimming: at any moment snapshot and log in the engine rebuild everything."""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import islice

from leveret.broker.replication.engine import Complete, Lease, Member, Position, PutChunk, Snapshot
from leveret.broker.replication.settings import Settings

HURRIED = 8  # pieces of a chunk of a snapshot that falls behind the growth of the log
PAUSES = 2.0
"""Pause behind a chunk, in multiples of the time that the engine has taken for it: a third of what it can do at most
goes to a snapshot, however fast it is."""


def is_due(lease: Lease, last: Snapshot | None, settings: Settings) -> bool:
    """Return whether the log has grown enough since the last snapshot for another one."""
    since, size = (0, 0) if last is None else (last.log_octets, last.octets)
    return lease.octets - since >= max(settings.snapshot_octets, size)


def makes_it(name: str, leader: str, up: Iterable[Member], trimmed: int) -> bool:
    """Return whether a node makes the next snapshot: the first by name of those that wait; the leader if none does.

    Of the other members that are `up`, those behind the last entry that is `trimmed` cannot make one.
    """
    waiting = sorted(each.name for each in up if each.name != leader and each.position.index >= trimmed)
    if name != leader:
        return not waiting or name < waiting[0]
    return not waiting


def trim_through(
    lease: Lease, last: Snapshot | None, up: Iterable[Member], trimmed: int, settings: Settings
) -> int:
    """Return the index up to which the log may be forgotten: 0 for nothing.

    Nothing is forgotten that the `last` complete snapshot does not cover. Members that may be `up` and are behind it
    delay the trim, until the log has grown by `trim_cap` since: then they take the snapshot. So do, at once, those
    whose next entry is trimmed already.
    """
    if last is None:
        return 0
    through = last.position.index
    if lease.octets - last.log_octets < settings.trim_cap:
        through = min([through, *(each.position.index for each in up if each.position.index >= trimmed)])
    return through


class Making:
    """A snapshot that is being put into the engine.

    Args:
        id: random, 16 bytes.
        position: of the state that the chunks contain, neither before nor behind it.
        chunks: its bytes, in pieces of at most `Settings.snapshot_chunk`, at least one and none of them empty.
        log_octets: `Lease.octets` when it was begun.
    """

    def __init__(self, id: bytes, position: Position, chunks: Iterator[bytes], log_octets: int) -> None:  # noqa: A002 - the name of the field
        self._id = id
        self._position = position
        self._chunks = chunks
        self._log_octets = log_octets
        self._hash = sha256()
        self._number = 0
        self._octets = 0
        self._data = b""
        self._asked = 0.0
        self.next_put = 0.0  # time of the node's clock of the next chunk: entries of the log go before
        self._read(1)

    def _read(self, pieces: int) -> None:
        self._data = b"".join(islice(self._chunks, pieces))
        if self._data:
            self._hash.update(sha256(self._data).digest())
            self._octets += len(self._data)

    def request(self, now: float) -> PutChunk | Complete | None:
        """Return what to ask the engine for: the next chunk, the same one until `kept`; None before `next_put`."""
        if now < self.next_put:
            return None
        if not self._data:
            return Complete(self.complete())
        self._asked = now
        return PutChunk(self._id, self._number, self._data)

    def complete(self) -> Snapshot:
        """Return the snapshot, after the last chunk."""
        return Snapshot(
            self._id, self._position, self._number, self._octets, self._hash.digest(), self._log_octets
        )

    def kept(self, now: float, log_octets: int) -> None:
        """Take note that the engine has the chunk, and that the log has grown to so many bytes.

        A snapshot for which the log grows faster than it gets there itself is put in large pieces without pauses:
        it is there before the log has grown by its size, after which the next one is due.
        """
        is_behind = self._octets < log_octets - self._log_octets
        self.next_put = now if is_behind else now + PAUSES * (now - self._asked)
        self._number += 1
        self._read(HURRIED if is_behind else 1)


class Fetching:
    """A snapshot that is being read from the engine, as it describes it."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._hash = sha256()
        self.number = 0  # the next chunk to read

    def take(self, data: bytes) -> None:
        """Take the chunk that was asked for."""
        self._hash.update(sha256(data).digest())
        self.number += 1

    @property
    def is_whole(self) -> bool:
        """True if all chunks were read."""
        return self.number >= self.snapshot.chunks

    @property
    def is_intact(self) -> bool:
        """True if they are those that were put there."""
        return self._hash.digest() == self.snapshot.hash

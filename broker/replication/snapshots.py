"""Rules for snapshots and for trimming: at any moment snapshot and log in the engine rebuild everything."""

from collections.abc import Iterable, Iterator
from hashlib import sha256

from leveret.broker.replication.engine import Lease, Member, Position, Snapshot
from leveret.broker.replication.settings import Settings


def is_due(lease: Lease, last: Snapshot | None, settings: Settings) -> bool:
    """Return whether the log has grown enough since the last snapshot for another one."""
    since, size = (0, 0) if last is None else (last.log_octets, last.octets)
    return lease.octets - since >= max(settings.snapshot_octets, size)


def makes_it(name: str, leader: str, up: Iterable[Member], trimmed: int) -> bool:
    """Return whether a node is the one that makes the next snapshot.

    Args:
        name: of the node.
        leader: name of the leader.
        up: the other members that are up.
        trimmed: index of the last entry that is trimmed; nodes behind it cannot make one.

    The first by name of the waiting nodes; the leader if none waits.

    """
    waiting = sorted(each.name for each in up if each.name != leader and each.position.index >= trimmed)
    if name != leader:
        return not waiting or name < waiting[0]
    return not waiting


def trim_through(
    lease: Lease, last: Snapshot | None, up: Iterable[Member], trimmed: int, settings: Settings
) -> int:
    """Return the index up to which the log may be forgotten: 0 for nothing.

    Args:
        lease: as it was seen last.
        last: the complete snapshot; nothing that it does not cover is forgotten.
        up: the members that may be up. Those behind the snapshot delay the trim, until the log has grown by
            `trim_cap` since: then they take the snapshot. So do, at once, those whose next entry is trimmed already.
        trimmed: index of the last entry that is trimmed.
        settings: limits.

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
        chunks: its bytes, each piece at most `Settings.chunk`, and at least one.
        log_octets: `Lease.octets` when it was begun.

    """

    def __init__(self, id: bytes, position: Position, chunks: Iterator[bytes], log_octets: int) -> None:  # noqa: A002 - the name of the field
        self._id = id
        self._position = position
        self._chunks = chunks
        self._log_octets = log_octets
        self._hash = sha256()
        self.number = 0
        self._octets = 0

    def next_chunk(self) -> bytes | None:
        """Return the next chunk, which is number `number` until `kept` is called; None after the last."""
        data = next(self._chunks, None)
        if data is not None:
            self._hash.update(sha256(data).digest())
            self._octets += len(data)
        return data

    @property
    def id(self) -> bytes:
        """The id of the snapshot."""
        return self._id

    def kept(self) -> None:
        """Take note that the engine has the last chunk."""
        self.number += 1

    def complete(self) -> Snapshot:
        """Return the snapshot, after the last chunk."""
        return Snapshot(
            self._id, self._position, self.number, self._octets, self._hash.digest(), self._log_octets
        )


class Fetching:
    """A snapshot that is being read from the engine.

    Args:
        snapshot: as the engine describes it.

    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._hash = sha256()
        self.number = 0
        """The next chunk to read."""

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

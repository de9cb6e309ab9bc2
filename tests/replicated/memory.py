"""An engine in memory, for tests and the simulation: a primary and a standby.

A change is answered once the standby has it, too. `MemoryEngine` has no clock: its user decides how long each change
waits for the standby, and what happens meanwhile. `begin` performs a change, which nobody sees yet, and locks out
others; `finish` gives it to the standby and returns the answer. A restart in between shows what the standby has not; a
promotion forgets it.
"""

from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from leveret.broker.replication.engine import (
    FREE,
    ORIGIN,
    Answer,
    Append,
    Appended,
    Chunk,
    Complete,
    Entry,
    FindSnapshot,
    Forget,
    Found,
    GetChunk,
    Kept,
    Known,
    Member,
    Members,
    NoAnswerError,
    Position,
    Proof,
    PutChunk,
    Read,
    Refused,
    Release,
    Renew,
    Renewed,
    Report,
    Request,
    Snapshot,
    Take,
    Taken,
    Trim,
    Trimmed,
)

STANDBYS = "ANY 1 (standby)"


class Database:
    """The rows of a server. Each change is made on a copy."""

    def __init__(self) -> None:
        self.lease = FREE
        self.entries: dict[int, Entry] = {}
        self.base: Position = ORIGIN
        """The place behind the last entry that is trimmed."""
        self.snapshot: Snapshot | None = None
        self.chunks: dict[tuple[bytes, int], bytes] = {}
        self.members: dict[str, Member] = {}

    def copy(self) -> "Database":
        """Return a copy to change."""
        other = Database()
        other.lease = self.lease
        other.entries = dict(self.entries)
        other.base = self.base
        other.snapshot = self.snapshot
        other.chunks = dict(self.chunks)
        other.members = dict(self.members)
        return other

    # -- the lease --------------------------------------------------------------------------------------------------

    def holds(self, epoch: int, holder: bytes) -> bool:
        """Return whether the lease is of that epoch and holder."""
        return (self.lease.epoch, self.lease.holder) == (epoch, holder)

    def admits(self, entry: Entry) -> bool:
        """Return whether an entry may be appended."""
        return self.holds(entry.epoch, entry.holder) and self.lease.last == entry.index - 1

    def take(self, request: Take, proof: Proof) -> Taken | Refused:
        """Perform `Take`."""
        lease, seen = self.lease, request.seen
        if (lease.epoch, lease.holder, lease.counter, lease.last) != (
            seen.epoch, seen.holder, seen.counter, seen.last
        ):  # fmt: skip
            return Refused(lease)
        self.lease = lease._replace(
            epoch=lease.epoch + 1,
            holder=request.holder,
            counter=lease.counter + 1,
            name=request.name,
            address=request.address,
        )
        return Taken(self.lease, proof)

    def renew(self, request: Renew | Release, proof: Proof) -> Renewed | Refused:
        """Perform `Renew` and `Release`."""
        lease = self.lease
        if not self.holds(request.epoch, request.holder):
            return Refused(lease)
        self.lease = lease._replace(counter=lease.counter + 1, settled=max(lease.settled, request.settled))
        if isinstance(request, Release):
            self.lease = self.lease._replace(holder=b"", name=request.successor, address="")
        return Renewed(proof)

    def append(self, request: Append, proof: Proof) -> Appended | Refused:
        """Perform `Append`."""
        if not self.admits(request.entry):
            return Refused(self.lease)
        self.put(request.entry)
        return Appended(proof)

    def put(self, entry: Entry) -> None:
        """Write an entry and what the lease counts, without asking."""
        lease = self.lease
        self.entries[entry.index] = entry
        self.lease = lease._replace(
            counter=lease.counter + 1,
            last=entry.index,
            settled=max(lease.settled, entry.settled),
            octets=lease.octets + len(entry.payload),
        )

    # -- the rest ---------------------------------------------------------------------------------------------------

    def place(self, index: int) -> Position | None:
        """Return the place behind an entry, if it is not trimmed and exists."""
        if index == self.base.index:
            return self.base
        entry = self.entries.get(index)
        return entry.position if entry is not None else None

    def read(self, request: Read, timeline: int) -> Found:
        """Perform `Read`."""
        found: list[Entry] = []
        previous = self.place(request.after)
        size = 0
        while (
            previous is not None and (entry := self.entries.get(request.after + 1 + len(found))) is not None
        ):
            found.append(entry)
            size += len(entry.payload)
            if size >= request.octets:
                break
        return Found(self.lease, previous, tuple(found), self.base.index, timeline)

    def trim(self, request: Trim) -> Trimmed | Refused:
        """Perform `Trim`."""
        if not self.holds(request.epoch, request.holder):
            return Refused(self.lease)
        if self.snapshot is not None and request.through <= self.snapshot.position.index:
            self.cut(request.through)
        return Trimmed(self.base.index)

    def cut(self, through: int) -> None:
        """Remove entries up to an index."""
        place = self.place(through)
        if place is not None and through > self.base.index:
            self.base = place
            self.entries = {index: entry for index, entry in self.entries.items() if index > through}

    def report(self, member: Member) -> Members:
        """Perform `Report`."""
        known = self.members.get(member.name)
        self.members[member.name] = member._replace(counter=1 if known is None else known.counter + 1)
        return self.roll()

    def forget(self, name: str) -> Members:
        """Perform `Forget`."""
        self.members.pop(name, None)
        return self.roll()

    def roll(self) -> Members:
        """Return all members."""
        return Members(tuple(self.members[name] for name in sorted(self.members)))

    def put_chunk(self, snapshot: bytes, number: int, data: bytes) -> Kept:
        """Perform `PutChunk`."""
        if number and (snapshot, 0) not in self.chunks:
            return Kept(kept=False)
        self.chunks[snapshot, number] = data
        return Kept(kept=True)

    def complete(self, snapshot: Snapshot) -> Kept:
        """Perform `Complete`."""
        chain = sha256()
        size = 0
        for number in range(snapshot.chunks):
            data = self.chunks.get((snapshot.id, number))
            if data is None:
                return Kept(kept=False)
            chain.update(sha256(data).digest())
            size += len(data)
        if (chain.digest(), size) != (snapshot.hash, snapshot.octets):
            return Kept(kept=False)
        if self.snapshot is not None and self.snapshot.position.index > snapshot.position.index:
            return Kept(kept=False)
        if self.place(snapshot.position.index) != snapshot.position:
            return Kept(kept=False)
        self.snapshot = snapshot
        self.chunks = {key: data for key, data in self.chunks.items() if key[0] == snapshot.id}
        return Kept(kept=True)


class _Change(NamedTuple):
    """A change that the standby does not have."""

    database: Database
    answer: Answer


class MemoryEngine:
    """A primary and its standby.

    Args:
        standbys: setting that is returned with answers; empty for an engine that waits for no standby.

    """

    def __init__(self, standbys: str = STANDBYS) -> None:
        self.standbys = standbys
        self.timeline = 1
        self.visible = Database()
        """The primary as others see it."""
        self.standby = self.visible
        self._change: _Change | None = None
        self.listeners: list[Callable[[], object]] = []
        """Called once the lease is given back."""

    @property
    def is_locked(self) -> bool:
        """True while a change waits for the standby: others wait for that."""
        return self._change is not None

    @staticmethod
    def changes(request: Request) -> bool:
        """Return whether a request changes anything."""
        return not isinstance(request, Read | FindSnapshot | GetChunk)

    def look(self, request: Request) -> Answer:
        """Perform a request that changes nothing."""
        match request:
            case Read():
                return self.visible.read(request, self.timeline)
            case FindSnapshot():
                return Known(self.visible.snapshot)
            case GetChunk(id_, number):
                return Chunk(self.visible.chunks.get((id_, number)))
            case _:
                raise TypeError(type(request))

    def begin(self, request: Request) -> None:
        """Perform a change that the standby does not have yet. Not while `is_locked`."""
        database = self.visible.copy()
        self._change = _Change(database, self.change(database, request))

    def change(self, database: Database, request: Request) -> Answer:
        """Perform a change on a copy."""
        proof = Proof(self.standbys, self.timeline)
        match request:
            case Take():
                return database.take(request, proof)
            case Renew() | Release():
                return database.renew(request, proof)
            case Append():
                return database.append(request, proof)
            case Trim():
                return database.trim(request)
            case Report(member):
                return database.report(member)
            case Forget(name):
                return database.forget(name)
            case PutChunk(id_, number, data):
                return database.put_chunk(id_, number, data)
            case Complete(snapshot):
                return database.complete(snapshot)
            case _:
                raise TypeError(type(request))

    def finish(self) -> Answer:
        """Give the change under way to the standby, and return its answer."""
        if self._change is None:
            raise RuntimeError("no change is under way")
        database, answer = self._change
        self._change = None
        if not isinstance(answer, Refused):  # that changed nothing, so nothing reaches the standby with it
            self.visible = self.standby = database
        return answer

    def restart(self) -> None:
        """End the primary and start it again: it shows what the standby does not have."""
        if self._change is not None:
            self.visible = self._change.database
        self._change = None

    def promote(self) -> None:
        """Lose the primary: the standby takes its place, and has another standby."""
        self._change = None
        self.visible = self.standby
        self.timeline += 1

    def perform(self, request: Request) -> Answer:
        """Perform a request without any waiting."""
        if not self.changes(request):
            return self.look(request)
        self.begin(request)
        answer = self.finish()
        if isinstance(request, Release) and not isinstance(answer, Refused):
            for told in self.listeners:
                told()
        return answer


class MemoryDriver:
    """An engine's driver, as `engine.Engine`, on a `MemoryEngine`.

    Args:
        engine: shared by all drivers of a test.

    """

    def __init__(self, engine: MemoryEngine) -> None:
        self.engine = engine
        self.fault: Callable[[Request], str] | None = None
        """Returns `before` or `after` if the connection is to break before or after a request is performed."""

    async def perform(self, request: Request) -> Answer:
        """Perform a request.

        Raises:
            NoAnswerError: a fault was asked for.

        """
        fault = self.fault(request) if self.fault is not None else ""
        if fault == "before":
            raise NoAnswerError("the connection broke before the request was performed")
        answer = self.engine.perform(request)
        if fault:
            raise NoAnswerError("the connection broke before the answer was read")
        return answer

    def listen(self, told: Callable[[], object]) -> None:
        """Call back when the lease is given back."""
        self.engine.listeners.append(told)

    async def close(self) -> None:
        """End nothing: there is no connection."""

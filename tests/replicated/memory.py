"""An engine in memory, for tests and the simulation: a primary and a standby.

A change is answered once the standby has it, too. `MemoryEngine` has no clock: its user decides how long each change
waits for the standby, and what happens meanwhile. `begin` performs a change, which nobody sees yet, and locks out
others; `finish` gives it to the standby and returns the answer. A restart in between shows what the standby has not; a
promotion forgets it.
"""

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from leveret.broker.replication import engine as protocol

STANDBYS = "ANY 1 (standby)"


class Database:
    """The rows of a server. Each change is made on a copy."""

    def __init__(self) -> None:
        self.lease = protocol.FREE
        self.entries: dict[int, protocol.Entry] = {}
        self.base: protocol.Position = protocol.ORIGIN
        """The place behind the last entry that is trimmed."""
        self.snapshot: protocol.Snapshot | None = None
        self.chunks: dict[tuple[bytes, int], bytes] = {}
        self.members: dict[str, protocol.Member] = {}
        self.moved: tuple[protocol.Moved, ...] = ()

    def copy(self) -> "Database":
        """Return a copy to change."""
        other = Database()
        other.lease = self.lease
        other.entries = dict(self.entries)
        other.base = self.base
        other.snapshot = self.snapshot
        other.chunks = dict(self.chunks)
        other.members = dict(self.members)
        other.moved = self.moved
        return other

    def move(self, move: protocol.Move) -> "Database":
        """Return the new log of a virtual host, which is noted in both."""
        other = self.copy()
        other.members.clear()
        moved = protocol.Moved(move.vhost, self.lease.epoch, move.name, move.log, is_here=False)
        self.moved += (moved,)
        other.moved = (moved._replace(is_here=True),)
        return other

    # -- the lease --------------------------------------------------------------------------------------------------

    def holds(self, epoch: int, holder: bytes) -> bool:
        """Return whether the lease is of that epoch and holder."""
        return (self.lease.epoch, self.lease.holder) == (epoch, holder)

    def admits(self, entry: protocol.Entry) -> bool:
        """Return whether an entry may be appended."""
        return self.holds(entry.epoch, entry.holder) and self.lease.last == entry.index - 1

    def take(self, request: protocol.Take, proof: protocol.Proof) -> protocol.Taken | protocol.Refused:
        """Perform `Take`."""
        lease, seen = self.lease, request.seen
        if (lease.epoch, lease.holder, lease.counter, lease.last) != (
            seen.epoch, seen.holder, seen.counter, seen.last
        ):  # fmt: skip
            return protocol.Refused(lease)
        self.lease = lease._replace(
            epoch=lease.epoch + 1,
            holder=request.holder,
            counter=lease.counter + 1,
            name=request.name,
            address=request.address,
        )
        return protocol.Taken(self.lease, proof, self.moved)

    def renew(
        self, request: protocol.Renew | protocol.Release, proof: protocol.Proof
    ) -> protocol.Renewed | protocol.Refused:
        """Perform `Renew` and `Release`."""
        lease = self.lease
        if not self.holds(request.epoch, request.holder):
            return protocol.Refused(lease)
        self.lease = lease._replace(counter=lease.counter + 1, settled=max(lease.settled, request.settled))
        if isinstance(request, protocol.Release):
            self.lease = self.lease._replace(holder=b"", name=request.successor, address="")
        return protocol.Renewed(proof)

    def append(self, request: protocol.Append, proof: protocol.Proof) -> protocol.Appended | protocol.Refused:
        """Perform `Append`."""
        if not self.admits(request.entry):
            return protocol.Refused(self.lease)
        self.put(request.entry)
        return protocol.Appended(proof)

    def put(self, entry: protocol.Entry) -> None:
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

    def place(self, index: int) -> protocol.Position | None:
        """Return the place behind an entry, if it is not trimmed and exists."""
        if index == self.base.index:
            return self.base
        entry = self.entries.get(index)
        return entry.position if entry is not None else None

    def read(self, request: protocol.Read, timeline: int) -> protocol.Found:
        """Perform `Read`."""
        found: list[protocol.Entry] = []
        previous = self.place(request.after)
        size = 0
        while (
            previous is not None and (entry := self.entries.get(request.after + 1 + len(found))) is not None
        ):
            found.append(entry)
            size += len(entry.payload)
            if size >= request.octets:
                break
        return protocol.Found(self.lease, previous, tuple(found), self.base.index, timeline)

    def trim(self, request: protocol.Trim) -> protocol.Trimmed | protocol.Refused:
        """Perform `Trim`."""
        if not self.holds(request.epoch, request.holder):
            return protocol.Refused(self.lease)
        if self.snapshot is not None and request.through <= self.snapshot.position.index:
            self.cut(request.through)
        return protocol.Trimmed(self.base.index)

    def cut(self, through: int) -> None:
        """Remove entries up to an index."""
        place = self.place(through)
        if place is not None and through > self.base.index:
            self.base = place
            self.entries = {index: entry for index, entry in self.entries.items() if index > through}

    def report(self, member: protocol.Member) -> protocol.Members:
        """Perform `Report`."""
        known = self.members.get(member.name)
        self.members[member.name] = member._replace(counter=1 if known is None else known.counter + 1)
        return self.roll()

    def forget(self, name: str) -> protocol.Members:
        """Perform `Forget`."""
        self.members.pop(name, None)
        return self.roll()

    def roll(self) -> protocol.Members:
        """Return all members."""
        return protocol.Members(tuple(self.members[name] for name in sorted(self.members)), self.moved)

    def put_chunk(self, snapshot: bytes, number: int, data: bytes) -> protocol.Kept:
        """Perform `PutChunk`."""
        if number and (snapshot, 0) not in self.chunks:
            return protocol.Kept(kept=False)
        self.chunks[snapshot, number] = data
        return protocol.Kept(kept=True)

    def complete(self, snapshot: protocol.Snapshot) -> protocol.Kept:
        """Perform `Complete`."""
        chain = sha256()
        size = 0
        for number in range(snapshot.chunks):
            data = self.chunks.get((snapshot.id, number))
            if data is None:
                return protocol.Kept(kept=False)
            chain.update(sha256(data).digest())
            size += len(data)
        if (chain.digest(), size) != (snapshot.hash, snapshot.octets):
            return protocol.Kept(kept=False)
        if self.snapshot is not None and self.snapshot.position.index > snapshot.position.index:
            return protocol.Kept(kept=False)
        if self.place(snapshot.position.index) != snapshot.position:
            return protocol.Kept(kept=False)
        self.snapshot = snapshot
        self.chunks = {key: data for key, data in self.chunks.items() if key[0] == snapshot.id}
        return protocol.Kept(kept=True)


class _Change(NamedTuple):
    """A change that the standby does not have."""

    number: int
    """Of its commit."""
    database: Database
    answer: protocol.Answer
    made: tuple[str, Database] | None = None
    """A new log."""


class Server:
    """The primary that logs share: the standby gets their commits in order, and all end with it."""

    def __init__(self) -> None:
        self.logs: dict[str, MemoryEngine] = {}
        self._commits = 0

    def commit(self) -> int:
        """Return the number of a new commit."""
        self._commits += 1
        return self._commits

    def replicate(self, number: int) -> None:
        """Give the standby all commits up to one, which makes new logs durable."""
        for engine in list(self.logs.values()):
            while engine.ahead and engine.ahead[0].number <= number:
                change = engine.ahead.popleft()
                engine.standby = change.database
                if change.made is not None:
                    log, database = change.made
                    self.logs[log] = MemoryEngine(engine.standbys, self, log, database)
                    self.logs[log].timeline = engine.timeline
                    self.logs[log].source = engine

    def led(self, here: "MemoryEngine") -> tuple[protocol.Led, ...]:
        """Return who leads each log."""
        leases = ((each, name, each.visible.lease) for name, each in sorted(self.logs.items()))
        return tuple(
            protocol.Led(name, lease.name if lease.holder else "", each is here)
            for each, name, lease in leases
        )

    def is_taken(self, log: str) -> bool:
        """Return whether there is, or may be, a log of a name."""
        changes = (change for engine in self.logs.values() for change in engine.ahead)
        return log in self.logs or any(
            change.made is not None and change.made[0] == log for change in changes
        )


class MemoryEngine:
    """A primary and its standby.

    Args:
        standbys: setting that is returned with answers; empty for an engine that waits for no standby.
        server: of several logs.
        log: name of this one.
        database: what it has.

    """

    def __init__(
        self,
        standbys: str = STANDBYS,
        server: Server | None = None,
        log: str = "",
        database: Database | None = None,
    ) -> None:
        self.standbys = standbys
        self.timeline = 1
        self.visible = database or Database()
        """The primary as others see it."""
        self.standby = self.visible
        self.server = server or Server()
        self.server.logs[log] = self
        self.log = log
        self.source: MemoryEngine | None = None
        """The log of which this one was made as a copy."""
        self._change: _Change | None = None
        self.ahead: deque[_Change] = deque()
        """Changes that the standby has not, in order."""
        self.listeners: list[Callable[[], object]] = []
        """Called once the lease is given back."""

    @property
    def is_locked(self) -> bool:
        """True while a change waits for the standby: others wait for that."""
        return self._change is not None

    @staticmethod
    def changes(request: protocol.Request) -> bool:
        """Return whether a request changes anything."""
        return not isinstance(request, protocol.Read | protocol.FindSnapshot | protocol.GetChunk)

    def look(self, request: protocol.Request) -> protocol.Answer:
        """Perform a request that changes nothing."""
        match request:
            case protocol.Read():
                return self.visible.read(request, self.timeline)
            case protocol.FindSnapshot():
                return protocol.Known(self.visible.snapshot)
            case protocol.GetChunk(id_, number):
                return protocol.Chunk(self.visible.chunks.get((id_, number)))
            case _:
                raise TypeError(type(request))

    def begin(self, request: protocol.Request) -> None:
        """Perform a change that the standby does not have yet. Not while `is_locked`."""
        database = self.visible.copy()
        number = self.server.commit()
        answer = self.change(database, request)
        made = None
        if isinstance(request, protocol.Release) and isinstance(answer, protocol.Renewed):
            move = request.move
            if move is not None and not self.server.is_taken(move.log):
                made = move.log, database.move(move)
        self._change = _Change(number, database, answer, made)
        if not isinstance(answer, protocol.Refused):
            self.ahead.append(self._change)

    def change(self, database: Database, request: protocol.Request) -> protocol.Answer:
        """Perform a change on a copy."""
        proof = protocol.Proof(self.standbys, self.timeline)
        match request:
            case protocol.Take():
                return database.take(request, proof)
            case protocol.Renew() | protocol.Release():
                return database.renew(request, proof)
            case protocol.Append():
                return database.append(request, proof)
            case protocol.Trim():
                return database.trim(request)
            case protocol.Report(member):
                return database.report(member)._replace(logs=self.server.led(self) if self.log else ())
            case protocol.Forget(name):
                return database.forget(name)
            case protocol.PutChunk(id_, number, data):
                return database.put_chunk(id_, number, data)
            case protocol.Complete(snapshot):
                return database.complete(snapshot)
            case _:
                raise TypeError(type(request))

    def finish(self) -> protocol.Answer:
        """Give the change under way to the standby, and return its answer."""
        if self._change is None:
            raise RuntimeError("no change is under way")
        number, database, answer, _ = self._change
        self._change = None
        if not isinstance(
            answer, protocol.Refused
        ):  # that changed nothing, so nothing reaches the standby with it
            self.server.replicate(number)
            self.visible = database
        return answer

    def restart(self) -> None:
        """End the primary and start it again: it shows what the standby does not have."""
        for each in self.server.logs.values():
            if each._change is not None:
                each.visible = each._change.database
            each._change = None

    def promote(self) -> None:
        """Lose the primary: the standby takes its place, and has another standby."""
        for each in self.server.logs.values():
            each._change = None
            each.ahead.clear()
            each.visible = each.standby
            each.timeline += 1

    def perform(self, request: protocol.Request) -> protocol.Answer:
        """Perform a request without any waiting."""
        if not self.changes(request):
            return self.look(request)
        self.begin(request)
        answer = self.finish()
        if isinstance(request, protocol.Release) and not isinstance(answer, protocol.Refused):
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
        self.fault: Callable[[protocol.Request], str] | None = None
        """Returns `before` or `after` if the connection is to break before or after a request is performed."""

    async def perform(self, request: protocol.Request) -> protocol.Answer:
        """Perform a request.

        Raises:
            NoAnswerError: a fault was asked for.

        """
        fault = self.fault(request) if self.fault is not None else ""
        if fault == "before":
            raise protocol.NoAnswerError("the connection broke before the request was performed")
        answer = self.engine.perform(request)
        if fault:
            raise protocol.NoAnswerError("the connection broke before the answer was read")
        return answer

    def listen(self, told: Callable[[], object]) -> None:
        """Call back when the lease is given back."""
        self.engine.listeners.append(told)

    async def close(self) -> None:
        """End nothing: there is no connection."""

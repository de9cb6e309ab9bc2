"""The narrow protocol of an engine that keeps the log: a lease, entries by index, snapshots, members.

Requests and answers are plain records. The state machines of this folder make requests and take answers; a driver
performs them. An engine is used if it passes `tests/replicated/conformance.py`.

Obligations of an engine:

- Each request is performed at once and completely, or not at all; those that change the lease one after the other.
- An answer to a request that changes something is given when the change survives the loss of the machine that answers,
  as far as the engine's settings say so; the answer carries them (`Proof`), and the state machines judge them.
- A request without an answer (`NoAnswerError`) may have been performed, or be performed later.
- A read may show what was never answered. Whoever reads it must not take it for durable.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

NO_HASH = bytes(32)  # chain hash before the first entry


class NoAnswerError(Exception):
    """A request has no usable answer: it may have been performed, it may still be, or it never will."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a history: all entries up to an index, whose chain hash tells this history from any other."""

    epoch: int
    index: int
    hash: bytes


ORIGIN = Position(0, 0, NO_HASH)  # the place before the first entry


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the log."""

    index: int
    epoch: int
    holder: bytes
    settled: int  # the highest index whose answer the leader had when it made this entry
    kind: int  # one of `chain.EMPTY`, `chain.BATCHES` and `chain.CHUNK`
    payload: bytes
    hash: bytes  # chain hash: of the hash before it, and of everything above

    @property
    def position(self) -> Position:
        """The place behind this entry."""
        return Position(self.epoch, self.index, self.hash)


class Lease(NamedTuple):
    """The one row that decides who may append."""

    epoch: int
    holder: bytes  # random id of the holder, new for each epoch; empty if the lease was released
    counter: int  # rises with each append and renewal
    last: int  # index of the last entry
    settled: int  # the highest index that a leader had the answer of
    octets: int  # bytes of all entries since the first
    name: str  # name of the node that took it; once it is released, of the wanted successor, or ''
    address: str


FREE = Lease(0, b"", 0, 0, 0, 0, "", "")  # the lease of a new log


class Proof(NamedTuple):
    """The conditions under which a change was answered."""

    standbys: str  # the engine's setting of what must have a change before an answer; empty: nothing else
    timeline: int  # rises with each promotion of a standby


class Snapshot(NamedTuple):
    """A complete snapshot: the state after one entry, in chunks."""

    id: bytes
    position: Position
    chunks: int
    octets: int
    hash: bytes  # SHA-256 over the SHA-256 of each chunk, in order
    log_octets: int  # `Lease.octets` when it was begun


class Member(NamedTuple):
    """A node as it describes itself."""

    name: str
    address: str
    position: Position  # the place up to which it has applied the log
    counter: int = 0  # rises with each report; set by the engine


class Moved(NamedTuple):
    """A virtual host that was moved to a new log, as a copy of this one, or from which this one was made."""

    vhost: int  # its id
    epoch: int  # the epoch that ended with it: ids of later ones are not concerned
    name: str
    log: str  # the new log
    is_here: bool  # True in the new log, which has nothing else of that epoch and earlier ones


class Led(NamedTuple):
    """One of the logs of a database."""

    log: str
    leader: str  # name of the node that has the lease, or had it last; '' once it is given back
    is_here: bool  # True for the log that was asked


# -- requests ---------------------------------------------------------------------------------------------------------


class Take(NamedTuple):
    """Take the lease if it is still as it was seen, under the next epoch. Answered by `Taken` or `Refused`."""

    seen: Lease
    holder: bytes
    name: str
    address: str


class Renew(NamedTuple):
    """Raise the counter of the lease. Answered by `Renewed` or `Refused`."""

    epoch: int
    holder: bytes
    settled: int


class Move(NamedTuple):
    """A virtual host to be moved to a new log."""

    vhost: int  # its id
    name: str
    log: str


class Release(NamedTuple):
    """Give the lease back; a successor, if it has a name, goes first. Answered by `Renewed` or `Refused`.

    With a move the new log is made in the same step, as a copy of this one, unless that is impossible.
    """

    epoch: int
    holder: bytes
    settled: int
    successor: str
    move: Move | None = None


class Append(NamedTuple):
    """Append an entry as `Lease.last` + 1, under its epoch and holder. Answered by `Appended` or `Refused`."""

    entry: Entry


class Read(NamedTuple):
    """Read the entries behind an index, at least one if there is one. Answered by `Found`."""

    after: int
    octets: int  # bytes of payload from which no further entry is read


class Trim(NamedTuple):
    """Forget entries up to an index, or fewer, if a complete snapshot covers them. Answered by `Trimmed`, `Refused`."""

    epoch: int
    holder: bytes
    through: int


class Report(NamedTuple):
    """Describe this node, and ask for all. Answered by `Members`."""

    member: Member


class Forget(NamedTuple):
    """Remove a member. Answered by `Members`."""

    name: str


class Describe(NamedTuple):
    """Publish the virtual hosts of the log, and rows of users that other logs share. Answered by `Kept`.

    Not kept if this was done under a later epoch, or with a higher number in this one.
    """

    epoch: int
    number: int
    vhosts: tuple[bytes, ...]  # names
    rows: Sequence[tuple[bytes, bytes | None]] = ()  # keys and values, None for one that was deleted
    is_whole: bool = False  # True if there are no other rows


class PutChunk(NamedTuple):
    """Keep a chunk of a snapshot that is not complete. Answered by `Kept`.

    Not kept if the chunks before it were deleted: another snapshot was completed meanwhile.
    """

    id: bytes
    number: int
    data: bytes


class Complete(NamedTuple):
    """Make a snapshot count and remove all others, if all its chunks are there. Answered by `Kept`.

    Not kept if a chunk is missing or differs, or if there is a newer one.
    """

    snapshot: Snapshot


class FindSnapshot(NamedTuple):
    """Ask for the complete snapshot. Answered by `Known`."""


class GetChunk(NamedTuple):
    """Read a chunk, numbered from 0. Answered by `Chunk`."""

    id: bytes
    number: int


# -- answers ----------------------------------------------------------------------------------------------------------


class Taken(NamedTuple):
    """The lease is taken; nothing else can be appended under an earlier epoch."""

    lease: Lease
    proof: Proof
    moved: tuple[Moved, ...] = ()


class Renewed(NamedTuple):
    """The lease is renewed or released."""

    proof: Proof


class Appended(NamedTuple):
    """The entry is in the log."""

    proof: Proof


class Refused(NamedTuple):
    """Nothing was changed; the lease as it is."""

    lease: Lease


class Found(NamedTuple):
    """Entries, without gaps, from the index that was asked for."""

    lease: Lease
    previous: Position | None  # the place behind the entry before; None if it is trimmed, or behind the log
    entries: tuple[Entry, ...]
    trimmed: int  # index of the last entry that is trimmed
    timeline: int  # as in `Proof`


class Trimmed(NamedTuple):
    """The index of the last trimmed entry."""

    through: int


class Members(NamedTuple):
    """All members, by name."""

    members: tuple[Member, ...]
    moved: tuple[Moved, ...] = ()
    wanted: str = ""  # name of the node to which an operator wants the leader of this epoch to hand over
    logs: tuple[Led, ...] = ()  # of the database; empty for a log that is alone


class Kept(NamedTuple):
    """The result of keeping a chunk or a snapshot."""

    kept: bool


class Known(NamedTuple):
    """The complete snapshot, if there is one."""

    snapshot: Snapshot | None


class Chunk(NamedTuple):
    """A chunk of a snapshot; None if it is not there, or not any more."""

    data: bytes | None


LeaseRequest = Take | Renew | Release | Append
ReadRequest = Read | Trim | Report | Forget | Describe | PutChunk | Complete | FindSnapshot | GetChunk
Request = LeaseRequest | ReadRequest
Answer = Taken | Renewed | Appended | Refused | Found | Trimmed | Members | Kept | Known | Chunk


class Engine(Protocol):
    """The driver of an engine; a node uses two: one for requests that change the lease, one for all others."""

    async def perform(self, request: Request) -> Answer:
        """Perform a request. Raises NoAnswerError: the outcome is unknown."""

    def listen(self, told: Callable[[], object]) -> None:
        """Call back when the lease may have been given back. No promise: a waiting node polls, too."""

    async def close(self) -> None:
        """End what is open; a request under way may still be performed."""

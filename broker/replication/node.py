"""A node: waits and follows, or leads; makes requests for two lanes, and events for its host.

The host (a driver, or the simulation) performs the requests of each lane one after the other, calls `tick` at least
four times a second, and does as the events say. Times are seconds of the node's own clock.

| role | requests of `LEASE` | requests of `READ` | left for |
|---|---|---|---|
| WAITING | none, then `Take` | reads, reports, snapshots | TAKING, WIPING, AHEAD |
| AHEAD | none | reads, reports | WIPING once another node leads or an operator accepts the log; WAITING |
| WIPING | none | reports | RESTORING |
| RESTORING | none | the snapshot | WAITING |
| TAKING | `Take` | none | REPLAYING, WAITING |
| REPLAYING | appends, renewals | reads up to the end, then reports | LEADING, WAITING |
| LEADING | appends, renewals, `Release` | reports, trims, snapshots | WAITING |

In REPLAYING a node reads to the end of the log, appends an empty entry of its own epoch, and applies everything up to
it once that is answered: only then it opens its ports.
"""

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from math import inf
from typing import Any, NamedTuple

from leveret.broker.replication import engine, snapshots
from leveret.broker.replication.chain import BadEntryError, Batch
from leveret.broker.replication.directory import turn
from leveret.broker.replication.follower import Fit, Follower, Lag
from leveret.broker.replication.leader import Leader
from leveret.broker.replication.settings import Settings
from leveret.broker.replication.takeover import UNSAFE, Candidate, Roll

LEASE = 0
READ = 1


class NotLeadingError(Exception):
    """Something was to be logged by a node that does not lead, or hands over."""


class Role(Enum):
    """The states of a node."""

    WAITING = "waiting"
    AHEAD = "ahead of the log"
    WIPING = "wiping"
    RESTORING = "restoring"
    TAKING = "taking the lease"
    REPLAYING = "replaying"
    LEADING = "leading"


class Apply(NamedTuple):
    """Apply entries and the position of the last one in one transaction, then call `Node.applied`."""

    entries: tuple[engine.Entry, ...]


class Wipe(NamedTuple):
    """Remove the copy and its position, then call `Node.wiped`."""

    reason: str


class RestoreChunk(NamedTuple):
    """Keep a chunk of the snapshot aside: the copy stays empty until all of them are there."""

    data: bytes


class Restore(NamedTuple):
    """Make the chunks kept aside the copy, with this position, in one step, then call `Node.restored`."""

    position: engine.Position


class Abandon(NamedTuple):
    """Forget the chunks kept aside: the snapshot was replaced, or is damaged."""


class Open(NamedTuple):
    """This node leads: accept clients."""

    epoch: int


class Close(NamedTuple):
    """This node leads no more: close all clients, forget what is in memory and not applied."""

    reason: str


class Logged(NamedTuple):
    """Answers that waited for these tickets may go out."""

    tickets: tuple[int, ...]


class Evictable(NamedTuple):
    """Entries up to an index are applied: what they contain can be read from the copy."""

    through: int


class MakeSnapshot(NamedTuple):
    """Open the copy as of now, and call `Node.begin_snapshot` with it."""


class Wanted(NamedTuple):
    """An operator wants another node to lead; repeated with each report until that is so, or too late."""

    successor: str


class Forgotten(NamedTuple):
    """A member was removed."""

    name: str


class TooShort(NamedTuple):
    """The log has become shorter than the copies of all nodes: an operator has to look; see `Node.accept_log`."""

    last: int
    applied: int  # index up to which this node has applied it


Event = (
    Apply
    | Wipe
    | RestoreChunk
    | Restore
    | Abandon
    | Open
    | Close
    | Logged
    | Evictable
    | MakeSnapshot
    | Wanted
    | Forgotten
    | TooShort
)


class Node:
    """One node of a replicated broker."""

    def __init__(
        self,
        name: str,  # unique among the nodes
        address: str,  # for clients and operators
        position: engine.Position,  # of the copy on disk; `ORIGIN` without one
        now: float,
        make_id: Callable[[], bytes],  # returns 16 random bytes
        settings: Settings | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self._settings = settings or Settings()
        self._make_id = make_id
        self.role = Role.WAITING
        self.follower = Follower(position)
        self.candidate = Candidate(name, self._settings)
        self.roll = Roll(name, self._settings)
        self.leader: Leader | None = None
        self.events: list[Event] = []  # for the host, which empties it after each call
        self._under_way: list[engine.Request | None] = [None, None]
        self._not_before = [now, now]
        self.next_read = now  # time from which a waiting node reads the log
        self._is_told = False  # True if there was news since the last read was asked for
        self._news_at = -inf  # time from which the last news is a reason to read: any user can send some
        self._pause = self._settings.poll  # time between two reads of a waiting node
        self._next_report = now
        self._timeline = 0
        self._next_trim = now
        self._trimmed = 0
        self._take_asked = now
        self._own_entry = 0  # index of the first entry of this node's epoch
        self._applying_since: float | None = None
        self._apply_from = 0  # bytes of entries from which any are applied
        self._snapshot: engine.Snapshot | None = None  # the complete one, as far as this node knows
        self._is_snapshot_known = False
        self._making: snapshots.Making | None = None
        self._is_making_asked = False
        self._fetching: snapshots.Fetching | None = None
        self._accepted = False
        self._refused_since = now
        self.is_too_short = False  # True while the log is shorter than all copies, which was reported
        self._ends: deque[int] = deque(maxlen=3)
        """Indexes up to which the log was settled at the last reports of this node, while it leads."""
        self._to_forget: list[str] = []  # names of the members to remove
        self.moved: tuple[engine.Moved, ...] = ()
        self._logs: tuple[engine.Led, ...] = ()  # as they were when the lease was last seen to move
        self.list_vhosts: Callable[[], tuple[bytes, ...]] | None = None
        """Returns the names of the virtual hosts, which a node that leads publishes whenever they have changed."""
        self.users: Any = None  # rows for other logs (`broker.placement.node_rows.PublishedRows`), or None
        self._described: tuple[bytes, ...] | None = None  # as published
        self._descriptions = 0
        self._next_description = now
        self.lag = Lag()
        self.obstacle = ""  # reason for which the lease was not taken, or is not renewed; '' for none
        self.damage = ""  # objection to the next entry of the log, which cannot be applied; '' for none

    # -- the host's side --------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Take note of the time."""
        if self.leader is not None:
            self.leader.tick(now, applying_since=self._applying_since)
            self._look_after_leader(now)
            self.lag.note(self.follower.end.index, now)
        elif self.role is Role.AHEAD and (self._accepted or self.candidate.is_alive(now)):
            self._wipe("its copy has entries that the log has not")
        self._look_at_length(now)

    def _look_at_length(self, now: float) -> None:
        if self.candidate.is_alive(now):
            self._accepted = False
        if self.leader is not None or not self.is_refused(now):
            self._refused_since = now
            self.is_too_short = False
            return
        seen = self.candidate.seen
        # Not at once: the others may have reported what this node has not read yet.
        if not self.is_too_short and now - self._refused_since >= self._settings.report and seen is not None:
            self.is_too_short = True
            self.events.append(TooShort(seen.last, self.follower.position.index))

    def next(self, lane: int, now: float) -> engine.Request | None:
        """Return the request to make now on a lane; the host calls `answered` or `unanswered` with its outcome."""
        if self._under_way[lane] is not None or now < self._not_before[lane]:
            return None
        request = self._next_of_lease(now) if lane == LEASE else self._next_of_read(now)
        self._under_way[lane] = request
        return request

    def unanswered(self, lane: int, now: float) -> None:
        """Take note that the request under way has no answer: its outcome is unknown."""
        request = self._under_way[lane]
        self._under_way[lane] = None
        self._not_before[lane] = now + self._settings.retry
        if isinstance(request, engine.Take) and self.role is Role.TAKING:
            self._wait(now)
        elif isinstance(request, engine.Release) and self.leader is not None:
            self.leader.forget_move()

    def answered(self, lane: int, answer: engine.Answer, now: float) -> None:
        """Take the answer to the request under way."""
        request = self._under_way[lane]
        self._under_way[lane] = None
        if isinstance(request, engine.Take):
            self._take_answered(answer, now)
        elif lane == LEASE:
            self._lease_answered(request, answer, now)
        else:
            self._read_answered(request, answer, now)

    def may_answer(self, now: float) -> bool:
        """Return whether clients may get, in this turn, what waits for no entry. If not, they are to be closed."""
        return self.role is Role.LEADING and self.leader is not None and self.leader.may_answer(now)

    def applied(self, now: float) -> None:
        """Take note that the last `Apply` is on disk."""
        self._applying_since = None
        position = self.follower.applied()
        self.lag.applied(position.index)
        if self.role in {Role.REPLAYING, Role.LEADING}:
            self.events.append(Evictable(position.index))
        self._apply_next(now)
        self._open_if_replayed()

    def look(self, now: float) -> None:
        """Read at once, and again if a read is under way, which may not show it: the lease may have been given back.

        News behind other news is read `busy_poll` after it.
        """
        if not self._is_told:
            self._news_at = max(now, self._news_at + self._settings.busy_poll)
        self._is_told = True
        self.next_read = min(self.next_read, self._news_at)

    def wiped(self, now: float) -> None:
        """Take note that the last `Wipe` is done."""
        self.follower = Follower(engine.ORIGIN)
        self.lag = Lag()
        self._applying_since = None
        self.role = Role.RESTORING
        self.next_read = now

    def restored(self, now: float) -> None:
        """Take note that the last `Restore` is done."""
        if self._fetching is None:
            return
        self.follower = Follower(self._fetching.snapshot.position)
        self.lag.applied(self.follower.position.index)
        self._fetching = None
        self._wait(now)

    def accept_log(self) -> None:
        """Accept, until a node leads, a log that is shorter than the copies of all nodes: an operator has said so."""
        self._accepted = True

    def forget(self, name: str) -> None:
        """Have a member removed; `Forgotten` follows. One that is up reports itself again."""
        if name not in self._to_forget:
            self._to_forget.append(name)

    def begin_snapshot(self, position: engine.Position, chunks: Iterator[bytes]) -> None:
        """Put a snapshot into the engine, unless the copy that it shows was removed since it was asked for.

        `chunks` are the bytes of a copy at this position, in pieces of at most `Settings.snapshot_chunk`.
        """
        if not self._is_making_asked:
            return
        seen = self.candidate.seen
        octets = seen.octets if seen is not None else 0
        self._making = snapshots.Making(self._make_id(), position, chunks, octets)

    def snapshot_failed(self) -> None:
        """Take note that the copy could not be opened for a snapshot, which is due again."""
        self._is_making_asked = False

    def wake_in(self, now: float) -> float:
        """Return the seconds until the lane that reads has a request, if nothing happens before; infinite for never."""
        left = self.next_read - now if now < self.next_read else inf
        if self._making is None or self._under_way[READ] is not None:
            return left
        if self.role in {Role.WAITING, Role.AHEAD, Role.LEADING}:
            put = max(self._making.next_put, self._not_before[READ]) - now
            left = min(left, max(put, 0.0))
        return left

    def is_caught_up(self) -> bool:
        """Return whether a waiting node has read the whole log, and applied all of it that is known to be settled."""
        seen = self.candidate.seen
        follower = self.follower
        return (
            seen is not None
            and self.role is Role.WAITING
            and follower.is_checked
            and follower.end.index >= seen.last
            and follower.is_waiting_for_settled
        )

    def entries_behind(self, member: engine.Member) -> int:
        """Return the entries that a member lacked at its last report, of those that had two intervals' time by then."""
        return max(0, self._ends[0] - member.position.index) if len(self._ends) == self._ends.maxlen else 0

    def is_refused(self, now: float) -> bool:
        """Return whether no node takes over because the log is shorter than all copies; see `accept_log`."""
        seen = self.candidate.seen
        if self._accepted or seen is None:
            return False
        return self.roll.shows_restored_backup(seen.last, self.follower.position, now)

    # -- the leader's lane ------------------------------------------------------------------------------------------

    def _next_of_lease(self, now: float) -> engine.LeaseRequest | None:
        leader = self.leader
        if leader is not None:
            return leader.next(now)
        if not self.is_caught_up() or not self._is_due(now) or self.is_refused(now):
            return None
        self.role = Role.TAKING
        self._take_asked = now
        return self.candidate.take(self._make_id(), self.address)

    def _is_due(self, now: float) -> bool:
        candidate = self.candidate
        if not self._logs or not candidate.is_due(now):
            return candidate.is_due(now)
        up = [self.name, *(each.name for each in self.roll.others_up(now))]
        return candidate.is_due(now, turn(self._logs, candidate.former, up))

    def _take_answered(self, answer: engine.Answer, now: float) -> None:
        if isinstance(answer, engine.Taken):
            self.moved = answer.moved
            self.obstacle = self.candidate.objection(answer.proof, self._timeline)
            if not self.obstacle:
                self._timeline = answer.proof.timeline
                self._accepted = False
                if answer.lease.last == self.follower.end.index:  # it was as seen, so its end was, too
                    self._replay(answer.lease, now)
                    return
        elif isinstance(answer, engine.Refused):
            self.candidate.watch(answer.lease, now)
        self._wait(now)

    def _replay(self, lease: engine.Lease, now: float) -> None:
        end, settled = self.follower.end, self.follower.settled
        self.leader = Leader(lease, end, settled, self._timeline, self._take_asked, self._settings)
        self.candidate.watch(lease, now)
        self._own_entry = lease.last + 1
        self.role = Role.REPLAYING

    def _lease_answered(self, request: engine.Request | None, answer: engine.Answer, now: float) -> None:
        leader = self.leader
        if leader is None or not isinstance(request, engine.LeaseRequest):
            return
        if not leader.answered(request, answer):
            self._not_before[LEASE] = now + self._settings.retry
        self.obstacle = UNSAFE if leader.is_unsafe else ""
        self._look_after_leader(now)

    def _look_after_leader(self, now: float) -> None:
        """Hand on what the leader has settled; step down if it leads no more."""
        leader = self.leader
        if leader is None:
            return
        if leader.entries:
            for entry in leader.entries:
                self.follower.append(entry)
            leader.entries.clear()
            self.follower.note_settled(leader.settled)
            self._apply_next(now)
        if leader.logged:
            self.events.append(Logged(tuple(leader.logged)))
            leader.logged.clear()
        self._open_if_replayed()
        if leader.reason:
            if leader.is_released:
                self.candidate.stand_back(now)
            self._step_down(leader.reason, now)

    def _open_if_replayed(self) -> None:
        if (
            self.role is Role.REPLAYING
            and self.leader is not None
            and self.follower.position.index >= self._own_entry
        ):
            self.role = Role.LEADING
            self.events.append(Open(self.leader.epoch))

    def _step_down(self, reason: str, now: float) -> None:
        self.leader = None
        self._ends.clear()
        self._apply_from = 0
        self.events.append(Close(reason))
        self.follower.drop_tail()
        last = self.follower.end.index
        if (seen := self.candidate.seen) is not None and seen.last < last:
            self.candidate.seen = seen._replace(last=last)  # its own entries, which it did not read
        self._wait(now)

    def _wait(self, now: float) -> None:
        self.role = Role.WAITING
        self.next_read = now
        self.follower.is_checked = False

    # -- the other lane ---------------------------------------------------------------------------------------------

    def _next_of_read(self, now: float) -> engine.ReadRequest | None:  # noqa: PLR0911 - one for each role
        if now >= self._next_report:
            self._next_report = now + self._settings.report
            return engine.Report(self._myself())
        if self._to_forget:
            return engine.Forget(self._to_forget[0])
        match self.role:
            case Role.WAITING | Role.AHEAD:
                if not self._is_snapshot_known:
                    return engine.FindSnapshot()
                if now >= self.next_read and (
                    self.follower.tail_octets < self._settings.tail_octets
                    or self.follower.is_waiting_for_settled
                ):
                    self._read_again(now + self._pause)
                    return engine.Read(self.follower.end.index, self._settings.read_octets)
                return self._next_of_snapshot(now)
            case Role.RESTORING:
                return self._next_of_restore(now)
            case Role.LEADING:
                return self._next_of_leader(now)
            case _:
                return None

    def _read_again(self, at: float) -> None:
        """Set the time of the read behind the one that is asked for now, which shows all news so far."""
        self.next_read = at
        self._is_told = False

    def _myself(self) -> engine.Member:
        return engine.Member(self.name, self.address, self.follower.position)

    def _description(self, now: float) -> engine.Describe | None:
        if self.list_vhosts is None or self.leader is None or now < self._next_description:
            return None
        self._next_description = now + self._settings.description
        vhosts = self.list_vhosts()
        rows = [] if self.users is None else self.users.changes()
        is_whole = self.users is not None and self.users.is_whole
        if vhosts == self._described and not rows and not is_whole:
            return None
        self._descriptions += 1
        return engine.Describe(self.leader.epoch, self._descriptions, vhosts, rows, is_whole)

    def _next_of_leader(self, now: float) -> engine.ReadRequest | None:
        if description := self._description(now):
            return description
        if now >= self.next_read:
            # The state of the lease, for the growth of the log; and the snapshot that a waiting node made.
            self._read_again(now + self._settings.report)
            self._is_snapshot_known = False
            return engine.Read(self.follower.position.index, 0)
        if not self._is_snapshot_known:
            return engine.FindSnapshot()
        if lost := self.roll.lost(now):
            self.forget(lost[0])
        seen, leader = self.candidate.seen, self.leader
        if seen is not None and leader is not None:
            up = [self._myself(), *self.roll.others_up(now, proved=False)]
            through = snapshots.trim_through(seen, self._snapshot, up, self._trimmed, self._settings)
            if through > self._trimmed and now >= self._next_trim and self.roll.is_fresh(now):
                self._next_trim = now + self._settings.report
                return engine.Trim(leader.epoch, leader.holder, through)
        return self._next_of_snapshot(now)

    def _next_of_snapshot(self, now: float) -> engine.ReadRequest | None:
        making, seen = self._making, self.candidate.seen
        if making is not None:
            return making.request(now)
        if (
            seen is None
            or self._is_making_asked
            or not snapshots.is_due(seen, self._snapshot, self._settings)
        ):
            return None
        known = self._snapshot.position.index if self._snapshot is not None else 0
        if self.follower.position.index <= known or not self.follower.is_checked:
            return None
        if snapshots.makes_it(self.name, seen.name, self.roll.others_up(now), self._trimmed):
            self._is_making_asked = True
            self.events.append(MakeSnapshot())
        return None

    def _next_of_restore(self, now: float) -> engine.ReadRequest | None:
        if self._fetching is None:
            if now < self.next_read:
                return None
            self._read_again(now + self._settings.poll)
            return engine.FindSnapshot()
        if self._fetching.is_whole:
            return None
        return engine.GetChunk(self._fetching.snapshot.id, self._fetching.number)

    def _read_answered(self, request: engine.Request | None, answer: engine.Answer, now: float) -> None:
        match answer:
            case engine.Found():
                self._found(request, answer, now)
            case engine.Members():
                self._members_read(request, answer, now)
            case engine.Known(snapshot):
                self._known(snapshot, now)
            case engine.Kept(kept):
                self._kept(request, now, kept=kept)
            case engine.Trimmed(through):
                self._trimmed = through
            case engine.Chunk(data):
                self._chunk_read(data)
            case _:
                pass

    def _members_read(self, request: engine.Request | None, found: engine.Members, now: float) -> None:
        self.moved = found.moved
        if self.candidate.may_be_held(now):  # later, others may have taken what the same node led
            self._logs = found.logs
        if found.wanted and self.role is Role.LEADING:
            self.events.append(Wanted(found.wanted))
        self.roll.note(found.members, now)
        if self.leader is not None:
            self._ends.append(self.leader.settled)
        if isinstance(request, engine.Forget):
            self._to_forget.remove(request.name)
            self.events.append(Forgotten(request.name))

    def _found(self, request: engine.Request | None, found: engine.Found, now: float) -> None:
        if found.timeline < self._timeline:  # of a server that another one has replaced
            return
        self._timeline = found.timeline
        self._trimmed = max(self._trimmed, found.trimmed)
        if self.role in {Role.LEADING, Role.REPLAYING}:
            if self.leader is not None and found.lease.epoch == self.leader.epoch:
                self.candidate.watch(found.lease, now)
            return
        if self.role not in {Role.WAITING, Role.AHEAD}:
            return
        self.candidate.watch(found.lease, now)
        self.lag.note(found.lease.last, now)
        if not isinstance(request, engine.Read) or request.after != self.follower.end.index:
            return
        try:
            fit = self.follower.read(found)
        except BadEntryError as error:
            self.damage = str(error)
            self.follower.drop_tail()
            return
        self.damage = ""
        if fit is Fit.FITS:
            self.role = Role.WAITING
            self._pace(found, now)
        elif fit is Fit.AHEAD:
            self.role = Role.AHEAD
        else:
            self._wipe(fit.value)
        self._apply_next(now)

    def _pace(self, found: engine.Found, now: float) -> None:
        """Set the time of the next read: at once if there is more, soon behind entries, later and later without."""
        settings = self._settings
        if found.entries and found.lease.last > self.follower.end.index:
            self.next_read = now  # in the next segment, or one read has enough
            return
        if self._is_told:
            self.next_read = self._news_at
            return
        self._pause = settings.busy_poll if found.entries else min(2 * self._pause, settings.poll)
        self.next_read = now + self._pause

    def _wipe(self, reason: str) -> None:
        if self.follower.is_applying:  # what is being written comes first; the next read finds the same
            return
        self._making = None
        self._is_making_asked = False
        self.role = Role.WIPING
        self.events.append(Wipe(reason))

    def _known(self, snapshot: engine.Snapshot | None, now: float) -> None:
        self._snapshot = snapshot
        self._is_snapshot_known = True
        if self.role is not Role.RESTORING:
            return
        if snapshot is None:  # the log is whole
            self._wait(now)
        else:
            self._fetching = snapshots.Fetching(snapshot)

    def _chunk_read(self, data: bytes | None) -> None:
        fetching = self._fetching
        if self.role is not Role.RESTORING or fetching is None:
            return
        if data is not None:
            fetching.take(data)
            self.events.append(RestoreChunk(data))
        if fetching.is_whole and fetching.is_intact:
            self.events.append(Restore(fetching.snapshot.position))
        elif data is None or fetching.is_whole:
            self._fetching = None
            self.events.append(Abandon())

    def _kept(self, request: engine.Request | None, now: float, *, kept: bool) -> None:
        if isinstance(request, engine.Describe):
            self._described = request.vhosts  # also if a later leader has replaced it
            if self.users is not None:
                self.users.kept(request.rows)
        making = self._making
        if making is None or isinstance(request, engine.Describe):
            return
        if kept and isinstance(request, engine.PutChunk):
            seen = self.candidate.seen
            making.kept(now, seen.octets if seen is not None else 0)
            return
        if kept and isinstance(request, engine.Complete):
            self._snapshot = request.snapshot
        self._making = None
        self._is_making_asked = False
        self._is_snapshot_known = False

    # -- applying ---------------------------------------------------------------------------------------------------

    def _apply_next(self, now: float) -> None:
        if self.follower.tail_octets < self._apply_from:
            return
        if entries := self.follower.next_to_apply(self._settings.apply_octets):
            self._applying_since = now
            self.events.append(Apply(entries))

    # -- the leader's work ------------------------------------------------------------------------------------------

    def _leader(self) -> Leader:
        if self.leader is None or self.leader.is_handing_over:
            raise NotLeadingError
        return self.leader

    def submit(self, batch: Batch) -> int:
        """Put a batch in line; returns its ticket. Raises NotLeadingError: this node does not lead, or hands over."""
        return self._leader().submit(batch)

    def submit_body(self, body: int, content: bytes) -> int:
        """Put a large body in line, as `submit`. Raises NotLeadingError: this node does not lead, or hands over."""
        return self._leader().submit_body(body, content)

    def apply_late(self) -> None:
        """Apply no more than memory asks for: this node is about to hand over, and has the log to catch up from."""
        if self.leader is not None:
            self._apply_from = self._settings.late_octets

    @property
    def is_behind(self) -> bool:
        """True if more is logged than `apply_late` leaves, and applying it has fallen far behind."""
        return 0 < 2 * self._apply_from < self.follower.tail_octets

    def hand_over(self, successor: str = "", move: engine.Move | None = None) -> None:
        """Lead no more: append what waits, then give the lease back. Clients are to be closed before this."""
        if self.leader is not None:
            self.leader.hand_over(successor, move)

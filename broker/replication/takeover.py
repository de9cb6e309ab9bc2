"""Takeover: a waiting node watches the lease by its own clock, and says when and how it takes it."""

from collections.abc import Sequence

from leveret.broker.replication.engine import Lease, Member, Position, Proof, Take
from leveret.broker.replication.settings import Settings

UNSAFE = "synchronous_standby_names of the database is empty: a change would be answered that no standby has"
OLD_SERVER = "the database is a server that another one has replaced"


class Candidate:
    """A waiting node's view of the lease; `name` is that of the node."""

    def __init__(self, name: str, settings: Settings) -> None:
        self._name = name
        self._settings = settings
        self.seen: Lease | None = None
        self._since = 0.0
        self._has_moved = False
        """True if the last change was one that a holder makes; not the first sight, or a database that was replaced."""
        self._stands_back = float("-inf")
        self.former = ""  # name of the node that had the lease last

    def watch(self, lease: Lease, now: float) -> None:
        """Take the lease as it was read; the time begins again whenever it has moved."""
        seen = self.seen
        if seen is None or (lease.epoch, lease.holder, lease.counter) != (
            seen.epoch, seen.holder, seen.counter
        ):  # fmt: skip
            self._since = now
            self._has_moved = seen is not None and (lease.epoch, lease.counter) > (seen.epoch, seen.counter)
        self.seen = lease
        self.former = lease.name if lease.holder else self.former

    def is_due(self, now: float, order: Sequence[str] = ()) -> bool:
        """Return whether the lease may be taken as it was seen: expired, or given back to this node or to any.

        In both cases it is left for a while to the nodes that are in front of this one in `order`.
        """
        if self.seen is None:
            return False
        settings, seen, since = self._settings, self.seen, now - self._since
        place = order.index(self._name) if self._name in order else 0
        wait = settings.turn * min(place, settings.latest_turn)
        if since >= settings.expiry + wait:
            return True
        if not seen.epoch or seen.holder or now < self._stands_back:
            return False
        return seen.name == self._name or (not seen.name and since >= wait)

    def may_be_held(self, now: float) -> bool:
        """Return whether a node may hold the lease, for all that this one has seen, or none has led yet."""
        seen = self.seen
        return seen is None or not seen.epoch or now - self._since < self._settings.freshness

    def take(self, holder: bytes, address: str) -> Take | None:
        """Return the request that takes the lease as it was seen; `holder` is a random id, `address` the node's."""
        return None if self.seen is None else Take(self.seen, holder, self._name, address)

    def objection(self, proof: Proof, timeline: int) -> str:
        """Return why a lease that was taken must not be used; '' if it may. `timeline` is the highest that was seen."""
        if not proof.standbys and self._settings.require_synchronous:
            return UNSAFE
        return OLD_SERVER if proof.timeline < timeline else ""

    def stand_back(self, now: float) -> None:
        """Leave a lease that this node has given back to the others for a while."""
        self._stands_back = now + self._settings.expiry

    def is_alive(self, now: float) -> bool:
        """Return whether a node holds the lease, as far as this one has seen."""
        seen = self.seen
        return (
            seen is not None
            and bool(seen.holder)
            and self._has_moved
            and now - self._since < self._settings.expiry
        )


class Roll:
    """Members, and which of them are up: those whose reports go on, by this node's clock."""

    def __init__(self, name: str, settings: Settings) -> None:
        self._name = name
        self._settings = settings
        self._moved: dict[str, tuple[int, float, bool]] = {}
        """Counter of each member, time at which it was first seen so, whether it had another one before."""
        self._noted = float("-inf")
        self.members: tuple[Member, ...] = ()

    def note(self, members: tuple[Member, ...], now: float) -> None:
        """Take the members as they were read."""
        self.members = members
        self._noted = now
        known = self._moved
        self._moved = {}
        for each in members:
            counter, when, has_moved = known.get(each.name, (each.counter, now, False))
            if counter == each.counter:
                self._moved[each.name] = (counter, when, has_moved)
            else:
                self._moved[each.name] = (each.counter, now, True)

    def others_up(self, now: float, *, proved: bool = True) -> list[Member]:
        """Return the members that have reported lately, but this one; unless `proved`, also those that may have."""
        return [
            each
            for each in self.members
            if each.name != self._name
            and now - self._moved[each.name][1] < self._settings.member_lost
            and (self._moved[each.name][2] or not proved)
        ]

    def silence(self, name: str, now: float) -> float:
        """Return the seconds since a member was seen to report; since it was first seen, if it never was."""
        return now - self._moved[name][1]

    def lost(self, now: float) -> list[str]:
        """Return the names of the members that were not seen for so long that they are to be forgotten."""
        return [
            each.name
            for each in self.members
            if each.name != self._name and self.silence(each.name, now) >= self._settings.member_forgotten
        ]

    def is_fresh(self, now: float) -> bool:
        """Return whether the members were read lately."""
        return now - self._noted < 2 * self._settings.report

    def shows_restored_backup(self, last: int, position: Position, now: float) -> bool:
        """Return whether the log is shorter than the copies of all nodes: the engine was restored from a backup.

        Its last entry has the index `last`. Nodes without a copy do not count, neither do those that are down.
        """
        indexes = [each.position.index for each in self.others_up(now)] + [position.index]
        known = [index for index in indexes if index]
        return bool(known) and all(index > last for index in known)

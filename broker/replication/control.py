"""The cluster as the node of this process sees it: shown to operators, and changed by them."""

from collections.abc import Callable
from typing import Any

from leveret.broker.administration.access import Figures
from leveret.broker.config.values import LOG_NAME, LOG_NAME_RULE
from leveret.broker.replication.engine import Member, Move
from leveret.broker.replication.node import Node, Role
from leveret.broker.replication.node_driver import NodeDriver, damage_text

BEHIND_SECONDS = 5.0  # lag from which a node counts as behind; a copy that follows lags a moment


LookForLog = Callable[[str, Callable[[str], object]], object]
"""Calls back with the reason for which no log of a name can be made; '' if one can."""


def whereabouts(node: Node) -> str:
    """Return where the leader is, for those who asked a waiting node."""
    seen = node.candidate.seen
    if seen is None:
        return "this node waits; it has not reached the database yet"
    if not seen.holder:
        return "this node waits; no node leads"
    return f"this node waits; {seen.name} leads, at {seen.address}"


class Control:
    """Shows the cluster, and changes it."""

    def __init__(
        self,
        driver: NodeDriver,
        warnings: list[str],  # of the configuration
        log: str = "",  # the name of one of several logs
        look_for_log: LookForLog | None = None,
        shared: Any = None,  # the users that logs share (`broker.placement.shared_users`); None for own ones
    ) -> None:
        self.shared = shared
        self.log = log
        self._look_for_log = look_for_log
        self._driver = driver
        self._node = driver.node
        self._warnings = warnings
        self.on_transfer: Callable[[str], object] = str
        """Called with the name of the successor, which may be empty, to begin to hand over."""

    # -- how it is --------------------------------------------------------------------------------------------------

    @property
    def _last(self) -> int:
        node, seen = self._node, self._node.candidate.seen
        known = 0 if seen is None else seen.last
        return max(node.follower.end.index, known) if node.leader is not None else known

    @property
    def _lag_seconds(self) -> float:
        return self._node.lag.seconds(self._driver.now)

    def figures(self) -> Figures:
        """Return the figures for metrics."""
        node, seen = self._node, self._node.candidate.seen
        return Figures(
            int(node.role is Role.LEADING),
            0 if seen is None else seen.epoch,
            max(0, self._last - node.follower.position.index),
            self._lag_seconds,
            self._driver.append_seconds,
        )

    def described(self) -> dict[str, Any]:
        """Return the state of the node and of the others, as a value of JSON."""
        node, seen, shown = self._node, self._node.candidate.seen, self.figures()
        leader = None
        if node.role is Role.LEADING:
            leader = {"name": node.name, "address": node.address}
        elif seen is not None and seen.holder and seen.name != node.name:
            leader = {"name": seen.name, "address": seen.address}
        return {
            "replicated": True,
            "log": self.log,
            "node": node.name,
            "address": node.address,
            "role": node.role.value,
            "is_caught_up": not self.member_problem(),
            "leader": leader,
            "epoch": shown.epoch,
            "last": self._last,
            "applied": node.follower.position.index,
            "lag_batches": shown.lag_batches,
            "lag_seconds": round(shown.lag_seconds, 3),
            "append_seconds": round(shown.append_seconds, 6),
            "moved": {each.name: each.log for each in node.moved},
            "members": [self._member(each) for each in node.roll.members],
            "problems": self._problems(),
        }

    def _member(self, member: Member) -> dict[str, Any]:
        node, now = self._node, self._driver.now
        is_here = member.name == node.name
        index = node.follower.position.index if is_here else member.position.index
        return {
            "name": member.name,
            "address": member.address,
            "is_up": is_here or any(each.name == member.name for each in node.roll.others_up(now)),
            "applied": index,
            "lag_batches": max(0, self._last - index),
            "silent_seconds": 0.0 if is_here else round(node.roll.silence(member.name, now), 1),
        }

    def _problems(self) -> list[str]:
        node, found = self._node, list(self._warnings)
        if not self._driver.is_answered:
            found.append("the database does not answer")
        if self.shared is not None and self.shared.warning:
            found.append(self.shared.warning)
        if node.obstacle:
            found.append(node.obstacle)
        if node.damage:
            found.append(damage_text(node.damage))
        if node.is_too_short:
            found.append(
                "the log is shorter than the copies of all nodes: the database was restored from a backup? If that is "
                "meant: leveret ctl cluster_accept_log"
            )
        elif node.role is not Role.WAITING and node.role is not Role.LEADING:
            found.append(f"this node is {node.role.value}")
        if self._lag_seconds >= BEHIND_SECONDS:
            found.append(f"the copy of this node is {self._lag_seconds:.0f} s behind the log")
        return found

    def member_problem(self) -> str:
        """Return the reason for which this node could not take over now; '' if it could, or leads."""
        node = self._node
        if node.role is Role.LEADING:
            return ""
        if not node.roll.is_fresh(self._driver.now):
            return "the database does not answer"
        if node.role is not Role.WAITING or not node.follower.is_checked:
            return f"this node is not caught up: {node.role.value}"
        behind = self._lag_seconds
        return "" if behind < BEHIND_SECONDS else f"this node is not caught up: {behind:.0f} s behind"

    # -- changes ----------------------------------------------------------------------------------------------------

    def transfer_problem(self, successor: str) -> str:
        """Return the reason for which the lead cannot be handed over to a member, '' for any; '' if it can."""
        node, leader = self._node, self._node.leader
        if node.role is not Role.LEADING or leader is None:
            return whereabouts(node)
        if successor == node.name:
            return f"{successor} leads already"
        names = [each.name for each in node.roll.members]
        if successor and successor not in names:
            return f"there is no member {successor!r}: {', '.join(names)}"
        behind = {
            each.name: node.entries_behind(each)
            for each in node.roll.others_up(self._driver.now)
            if each.position.epoch == leader.epoch
        }
        if successor and successor not in behind:
            return f"{successor} is down, or has not caught up yet"
        if successor and (count := behind[successor]):
            return f"{successor} is behind by {count} entries of the log: clients would wait until it has applied them"
        return "" if 0 in behind.values() else "no other node is up and has caught up"

    def transfer(self, successor: str) -> None:
        """Begin to hand over: to a member, or to any that comes first."""
        self.on_transfer(successor)

    def look_for_log(self, name: str, done: Callable[[str], object]) -> None:
        """Call back with the reason for which no log of this name can be made for a virtual host; '' if one can."""
        node = self._node
        if node.role is not Role.LEADING:
            done(whereabouts(node))
            return
        if self._look_for_log is None or not LOG_NAME.fullmatch(name):
            done(f"the name of the new log {LOG_NAME_RULE}")
            return
        self._look_for_log(name, done)

    def move(self, vhost: int, name: str, log: str) -> None:
        """Begin to hand over, and to move a virtual host, whose id and name these are, to a new log."""
        self._driver.move = Move(vhost, name, log)
        self.on_transfer("")

    def forget_problem(self, name: str) -> str:
        """Return the reason for which a member cannot be forgotten; '' if it can."""
        roll = self._node.roll
        if name not in [each.name for each in roll.members]:
            return f"there is no member {name!r}"
        up = [self._node.name, *(each.name for each in roll.others_up(self._driver.now, proved=False))]
        return f"{name} is up, or was so a moment ago: stop it first" if name in up else ""

    def forget(self, name: str, done: Callable[[None], object]) -> None:
        """Remove a member, and call back afterwards."""
        self._driver.forget(name, done)

    def acceptance_problem(self) -> str:
        """Return the reason for which there is no log to be accepted; '' if there is one."""
        return "" if self._node.is_too_short else "the log is not shorter than the copies of all nodes"

    def accept_log(self) -> None:
        """Go on with a log that is shorter than the copies of all nodes."""
        self._driver.accept_log()

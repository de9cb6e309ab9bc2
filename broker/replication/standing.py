"""A node's view of the cluster, for operators and for metrics: roles, members, lag, and what is wrong."""

from typing import Any

from leveret.broker.administration.access import Figures
from leveret.broker.replication.engine import Member
from leveret.broker.replication.node import Node, Role

BEHIND_SECONDS = 5.0
"""Lag from which a node counts as behind. A copy that follows is behind by what was written in the last moment."""


def _last(node: Node) -> int:
    """Return the index of the last entry that is known."""
    seen = node.candidate.seen
    known = 0 if seen is None else seen.last
    return max(node.follower.end.index, known) if node.leader is not None else known


def _lag(node: Node) -> int:
    return max(0, _last(node) - node.follower.position.index)


def figures(node: Node, append_seconds: float, now: float) -> Figures:
    """Return the figures for metrics.

    Args:
        node: the node.
        append_seconds: duration of its last append.
        now: time of the node's clock.

    """
    seen = node.candidate.seen
    return Figures(
        int(node.role is Role.LEADING),
        0 if seen is None else seen.epoch,
        _lag(node),
        node.lag.seconds(now),
        append_seconds,
    )


def described(
    node: Node, append_seconds: float, now: float, *, is_answered: bool, warnings: list[str]
) -> dict[str, Any]:
    """Return the cluster as a value of JSON.

    Args:
        node: the node.
        append_seconds: duration of its last append.
        now: time of the node's clock.
        is_answered: True if the database answers.
        warnings: what is wrong by the configuration.

    """
    seen = node.candidate.seen
    leader = None
    if node.role is Role.LEADING:
        leader = {"name": node.name, "address": node.address}
    elif seen is not None and seen.holder and seen.name != node.name:
        leader = {"name": seen.name, "address": seen.address}
    return {
        "replicated": True,
        "node": node.name,
        "address": node.address,
        "role": node.role.value,
        "is_caught_up": not member_problem(node, now),
        "leader": leader,
        "epoch": 0 if seen is None else seen.epoch,
        "last": _last(node),
        "applied": node.follower.position.index,
        "lag_batches": _lag(node),
        "lag_seconds": round(node.lag.seconds(now), 3),
        "append_seconds": round(append_seconds, 6),
        "members": [_member(node, each, now) for each in node.roll.members],
        "problems": _problems(node, now, is_answered=is_answered, warnings=warnings),
    }


def _member(node: Node, member: Member, now: float) -> dict[str, Any]:
    is_here = member.name == node.name
    index = node.follower.position.index if is_here else member.position.index
    return {
        "name": member.name,
        "address": member.address,
        "is_up": is_here or is_up(node, member.name, now),
        "applied": index,
        "lag_batches": max(0, _last(node) - index),
        "silent_seconds": 0.0 if is_here else round(node.roll.silence(member.name, now), 1),
    }


def _problems(node: Node, now: float, *, is_answered: bool, warnings: list[str]) -> list[str]:
    found = list(warnings)
    if not is_answered:
        found.append("the database does not answer")
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
    if node.lag.seconds(now) >= BEHIND_SECONDS:
        found.append(f"the copy of this node is {node.lag.seconds(now):.0f} s behind the log")
    return found


def damage_text(damage: str) -> str:
    """Return what is wrong with the log, and what to do.

    Args:
        damage: the objection to the entry that cannot be applied.

    """
    return (
        f"the log is damaged, nothing behind it can be applied: {damage}. Keep the node that leads running: it has "
        "everything. If a standby of the database has the entry whole, have it replace the primary; if none has, stop "
        "the waiting nodes until the leader has put a snapshot into the database"
    )


def is_up(node: Node, name: str, now: float) -> bool:
    """Return whether a member was seen to report lately."""
    return any(each.name == name for each in node.roll.others_up(now))


def member_problem(node: Node, now: float) -> str:
    """Return the reason for which a node could not take over now; '' if it could, or leads."""
    if node.role is Role.LEADING:
        return ""
    if not node.roll.is_fresh(now):
        return "the database does not answer"
    if node.role is not Role.WAITING or not node.follower.is_checked:
        return f"this node is not caught up: {node.role.value}"
    behind = node.lag.seconds(now)
    return "" if behind < BEHIND_SECONDS else f"this node is not caught up: {behind:.0f} s behind"


def whereabouts(node: Node) -> str:
    """Return where the leader is, for those who asked a waiting node."""
    seen = node.candidate.seen
    if seen is None:
        return "this node waits; it has not reached the database yet"
    if not seen.holder:
        return "this node waits; no node leads"
    return f"this node waits; {seen.name} leads, at {seen.address}"


def transfer_problem(node: Node, successor: str, now: float) -> str:
    """Return the reason for which the lead cannot be handed over; '' if it can.

    Args:
        node: the node.
        successor: the name of a member; '' for any.
        now: time of the node's clock.

    """
    leader = node.leader
    if node.role is not Role.LEADING or leader is None:
        return whereabouts(node)
    if successor == node.name:
        return f"{successor} leads already"
    names = [each.name for each in node.roll.members]
    if successor and successor not in names:
        return f"there is no member {successor!r}: {', '.join(names)}"
    behind = {
        each.name: node.entries_behind(each)
        for each in node.roll.others_up(now)
        if each.position.epoch == leader.epoch
    }
    if successor and successor not in behind:
        return f"{successor} is down, or has not caught up yet"
    if successor and (count := behind[successor]):
        return f"{successor} is behind by {count} entries of the log: clients would wait until it has applied them"
    return "" if 0 in behind.values() else "no other node is up and has caught up"


def forget_problem(node: Node, name: str, now: float) -> str:
    """Return the reason for which a member cannot be forgotten; '' if it can."""
    if name not in [each.name for each in node.roll.members]:
        return f"there is no member {name!r}"
    if name == node.name or any(each.name == name for each in node.roll.others_up(now, proved=False)):
        return f"{name} is up, or was so a moment ago: stop it first"
    return ""

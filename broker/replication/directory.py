"""The logs of a database, as they describe themselves, and which node should lead which. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from leveret.broker.replication.engine import Led, Member


class LogFacts(NamedTuple):
    """A log: the node that leads it, its members, and its virtual hosts."""

    name: str
    epoch: int
    leader: str  # '' while no node leads
    vhosts: tuple[bytes, ...]
    members: tuple[Member, ...]


class Handover(NamedTuple):
    """A log whose leader is to hand over to another node."""

    log: LogFacts
    successor: str


def balanced(logs: Collection[LogFacts], up: Mapping[str, Collection[str]]) -> list[Handover]:
    """Return the fewest hand-overs after which each node leads its share, as far as its logs allow.

    `up` has the names of the nodes of each log that could lead it. A log without a leader is left to its nodes.
    """
    led = {log.name: log.leader for log in logs if log.leader}
    by_name = {log.name: log for log in logs}
    found: dict[str, str] = {}
    while (step := _step(led, up)) is not None:
        name, successor = step
        led[name] = found[name] = successor
    return [Handover(by_name[name], node) for name, node in found.items() if node != by_name[name].leader]


def turn(logs: Collection[Led], former: str, nodes: Collection[str]) -> list[str]:
    """Return the nodes in the order in which they should take a log over, from which `former` has gone.

    All logs that `former` led are given away in thought, one after the other, each to the node that leads the fewest:
    so they go to different nodes, although each is taken by itself. `logs` has all of the database, this one, too.
    """
    counts = Counter(each.leader for each in logs)
    order = sorted(nodes)
    for each in sorted(logs):
        if each.leader in {"", former}:
            order.sort(key=lambda node: (node == former, counts[node], node))
            if each.is_here:
                break
            counts[order[0]] += 1
    return order


def _step(led: Mapping[str, str], up: Mapping[str, Collection[str]]) -> tuple[str, str] | None:
    """Return the log and the node by which the difference becomes smaller most; None if none does."""
    counts = Counter(led.values())
    steps = [
        (counts[node] - counts[leader], node, name)
        for name, leader in led.items()
        for node in up.get(name, ())
        if counts[leader] - counts[node] > 1
    ]
    if not steps:
        return None
    _, node, name = min(steps)
    return name, node

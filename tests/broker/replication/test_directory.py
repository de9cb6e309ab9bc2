"""Balancing the leads of logs among nodes."""

from collections import Counter

from hypothesis import given, strategies as st

from leveret.broker.replication.directory import LogFacts, balanced, turn
from leveret.broker.replication.engine import FREE, Led
from leveret.broker.replication.settings import Settings
from leveret.broker.replication.takeover import Candidate

NODES = ("n1", "n2", "n3")


def facts(name: str, leader: str) -> LogFacts:
    return LogFacts(name, 1, leader, (), ())


def after(logs: list[LogFacts], up: dict[str, set[str]]) -> Counter[str]:
    """Return the number of logs that each node leads after the hand-overs, each of which is allowed."""
    led = {log.name: log.leader for log in logs if log.leader}
    moved = balanced(logs, up)
    for each in moved:
        assert each.successor in up[each.log.name]
        assert each.successor != each.log.leader
        led[each.log.name] = each.successor
    assert len(moved) == len({each.log.name for each in moved})
    return Counter(led.values())


@given(st.lists(st.sampled_from(NODES), max_size=12))
def test_each_node_leads_its_share(leaders: list[str]) -> None:
    """No node leads two logs more than another, and no more logs are handed over than that takes."""
    logs = [facts(f"l{at}", leader) for at, leader in enumerate(leaders)]
    found = after(logs, {log.name: set(NODES) for log in logs})

    counts = [found[node] for node in NODES]
    assert max(counts) - min(counts) <= 1
    before = Counter(leaders)
    least, rest = divmod(len(leaders), len(NODES))
    surplus = sorted((before[node] for node in NODES), reverse=True)
    fewest = sum(max(0, count - least - (at < rest)) for at, count in enumerate(surplus))
    assert len(balanced(logs, {log.name: set(NODES) for log in logs})) == fewest


def test_who_is_down_leads_nothing_more() -> None:
    """A node that is down, or has no copy of a log, is no successor; a log that no node leads is left alone."""
    logs = [facts("a", "n1"), facts("b", "n1"), facts("c", "n1"), facts("d", "")]
    up = {"a": {"n1"}, "b": {"n1", "n2"}, "c": {"n1", "n2"}, "d": {"n1", "n2"}}

    assert [("b", "n2")] == [(each.log.name, each.successor) for each in balanced(logs, up)]
    assert not balanced(logs, {"a": {"n1"}})


@given(st.lists(st.sampled_from(("", *NODES)), min_size=1, max_size=12), st.sampled_from(NODES))
def test_the_logs_of_a_node_that_died_are_spread(leaders: list[str], dead: str) -> None:
    """Of those that are left, each first in turn for some, none leads two more than another, if none did before."""
    logs = {f"l{at:02}": leader for at, leader in enumerate(leaders)}
    left = sorted({*NODES} - {dead})
    before = Counter({node: leaders.count(node) for node in left})
    taken = {
        name: turn([Led(log, leader, log == name) for log, leader in logs.items()], dead, NODES)
        for name, leader in logs.items()
        if leader in {"", dead}
    }

    found = before + Counter(order[0] for order in taken.values())
    assert all(order[-1] == dead for order in taken.values())
    assert max(found.values()) - min(found[node] for node in left) <= max(
        1, max(before.values(), default=0) - min(before[node] for node in left)
    )


def test_a_log_is_left_to_those_who_lead_fewer() -> None:
    """Each place in the order is worth a pause, up to the last that counts; one that is named does not wait."""
    settings = Settings()
    held = FREE._replace(epoch=1, holder=b"x", name="n9")
    order = ["a", "b", "c", "d", "e", "f"]
    for node, places in (("a", 0), ("b", 1), ("d", 3), ("f", 3), ("stranger", 0)):
        candidate = Candidate(node, settings)
        candidate.watch(held, 10.0)
        due = 10.0 + settings.expiry + settings.turn * places
        assert not candidate.is_due(due - 0.01, order)
        assert candidate.is_due(due, order)
        candidate.watch(held._replace(holder=b"", name=""), 20.0)
        assert candidate.former == "n9"
        assert candidate.is_due(20.0, order) is (not places)
        assert candidate.is_due(20.0 + settings.turn * places, order)
        candidate.watch(held._replace(holder=b"", name=node), 30.0)
        assert candidate.is_due(30.0, order)
    assert settings.expiry + settings.turn * settings.latest_turn < 7

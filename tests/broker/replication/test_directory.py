"""Balancing the leads of logs among nodes."""

from collections import Counter

from hypothesis import given, strategies as st

from leveret.broker.replication.directory import LogFacts, balanced

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

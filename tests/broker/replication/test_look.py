"""News of the lease: a waiting node that is told of something new reads the log at once."""

from itertools import islice

import pytest
from replicated.memory import MemoryEngine

from leveret.broker.replication.engine import ORIGIN, FindSnapshot, Kept, Read
from leveret.broker.replication.node import READ, Node, Role
from leveret.broker.replication.settings import Settings

IDS = b"i" * 16


def reading(engine: MemoryEngine) -> tuple[Node, Read]:
    """Return a waiting node whose read is under way."""
    node = Node("a", "a:5672", ORIGIN, 0.0, lambda: IDS)
    while not isinstance(request := node.next(READ, 0.0), Read):
        assert request is not None
        node.answered(READ, engine.perform(request), 0.0)
    return node, request


def test_a_node_that_is_told_while_it_reads_reads_again() -> None:
    """Its read may be older than the news; without news it pauses, and so it does behind the second read."""
    engine = MemoryEngine()
    for is_told in (False, True):
        node, request = reading(engine)
        if is_told:
            node.look(0.0)
        node.answered(READ, engine.perform(request), 0.0)
        again = node.next(READ, 0.0)

        assert isinstance(again, Read) is is_told
        if is_told:
            node.answered(READ, engine.perform(again), 0.0)
            assert node.next(READ, 0.0) is None


def test_a_node_that_is_told_between_two_reads_reads_at_once() -> None:
    """It does not wait for the end of the pause."""
    engine = MemoryEngine()
    node, request = reading(engine)
    node.answered(READ, engine.perform(request), 0.0)
    node.look(0.0)

    assert isinstance(node.next(READ, 0.0), Read)


@pytest.mark.parametrize("role", [Role.WAITING, Role.LEADING, Role.RESTORING])
def test_sec_49_news_without_end_is_read_no_faster_than_a_busy_log(role: Role) -> None:
    """Whoever may log in to the database can send news: a thousand a second cause some dozens of requests."""
    engine = MemoryEngine()
    node, request = reading(engine)
    node.answered(READ, engine.perform(request), 0.0)
    node.role = role
    wanted = FindSnapshot if role is Role.RESTORING else Read
    asked = 0
    for step in range(1000):
        now = 0.001 * step
        node.look(now)
        for request in islice(iter(lambda: node.next(READ, now), None), 9):  # noqa: B023 - it is used here only
            asked += isinstance(request, wanted)
            # Without word of a snapshot a node that waits for one goes on to ask.
            answer = Kept(kept=True) if role is Role.RESTORING else engine.perform(request)
            node.answered(READ, answer, now)

    assert 10 < asked <= 2 / Settings().busy_poll

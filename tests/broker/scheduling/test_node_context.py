"""The context of a node: how it records events."""

from leveret.broker.counters.sampling import Events
from leveret.broker.scheduling.node_context import NodeContext


def test_an_event_has_the_wall_clock_and_the_start_of_the_turn() -> None:
    """An event is recorded with both times of the context."""
    context = NodeContext(lambda: 1700)
    context.events = Events()
    context.now = 25
    context.note("queue_created", "/", "q", type="classic")

    assert [(1700, 25, "queue_created", "/", "q", {"type": "classic"})] == context.events.take()


def test_events_are_dropped_without_an_export() -> None:
    """Without an export nobody takes events, so none are kept."""
    context = NodeContext()
    context.note("queue_created", "/", "q")

    assert context.events is None

"""The confirm modes of queues."""

import pytest

from leveret.confirm.modes import CONFIRM_MODES, CONSUMER_ACK, CONSUMER_ACK_LIGHT, STANDARD, effective_mode


@pytest.mark.parametrize("asked", CONFIRM_MODES)
def test_a_plain_queue_has_the_mode_that_was_asked_for(asked):
    """A queue without a reason against it has the mode that it was declared with."""
    assert asked == effective_mode(asked, is_quorum=False, needs_delivered=False)


@pytest.mark.parametrize("asked", CONFIRM_MODES)
@pytest.mark.parametrize("needs_delivered", [False, True])
def test_a_quorum_queue_confirms_in_the_standard_mode(asked, needs_delivered):
    """A message to a quorum queue goes to disk, whatever mode was asked for."""
    assert STANDARD == effective_mode(asked, is_quorum=True, needs_delivered=needs_delivered)


@pytest.mark.parametrize(
    ("asked", "mode"),
    [(STANDARD, STANDARD), (CONSUMER_ACK, CONSUMER_ACK), (CONSUMER_ACK_LIGHT, CONSUMER_ACK)],
)
def test_the_light_mode_gives_way_where_delivered_messages_are_needed(asked, mode):
    """A queue that needs messages after their delivery keeps them: light becomes consumer-ack."""
    assert mode == effective_mode(asked, is_quorum=False, needs_delivered=True)

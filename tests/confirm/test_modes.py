"""The confirm modes of queues."""

import pytest

from leveret.confirm.modes import CONFIRM_MODES, CONSUMER_ACK, CONSUMER_ACK_LIGHT, STANDARD, effective_mode


@pytest.mark.parametrize("asked", CONFIRM_MODES)
@pytest.mark.parametrize("needs_delivered", [False, True])
@pytest.mark.parametrize("is_quorum", [False, True])
def test_the_effective_mode(asked, needs_delivered, is_quorum):
    """A quorum queue has the standard mode, others what was asked for; light keeps no messages after delivery."""
    gives_way = needs_delivered and asked == CONSUMER_ACK_LIGHT
    expected = STANDARD if is_quorum else CONSUMER_ACK if gives_way else asked
    assert expected == effective_mode(asked, is_quorum=is_quorum, needs_delivered=needs_delivered)

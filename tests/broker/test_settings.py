"""What a queue's arguments and policies come to together."""

import pytest

from broker.settings import COUNTED, NO_SETTINGS, queue_settings

QUORUM = {"x-queue-type": ("longstr", "quorum")}


@pytest.mark.parametrize(
    ("arguments", "policy", "limit"),
    [
        ({}, {}, None),
        ({}, {"delivery-limit": 4}, 4),
        ({"x-delivery-limit": ("signedint", 3)}, {"delivery-limit": 4}, 3),
        (QUORUM, {}, COUNTED),
        (QUORUM, {"delivery-limit": 4}, 4),
        ({**QUORUM, "x-delivery-limit": ("byte", 0)}, {"delivery-limit": 4}, 0),
    ],
)
def test_quorum_queues_count_deliveries_without_a_limit(arguments, policy, limit):
    """The smaller delivery limit counts; where there is none, a quorum queue counts nevertheless."""
    assert limit == queue_settings(arguments, policy).delivery_limit


def test_a_queue_that_asks_for_nothing_shares_its_settings():
    """Ten thousand plain queues have one object of settings among them."""
    assert NO_SETTINGS is queue_settings({})
    assert not NO_SETTINGS.asks_something

"""Effective settings of a queue from its arguments and policies."""

import pytest

from leveret.broker.amqp.tables import Table
from leveret.broker.queue.settings import COUNTED, NO_SETTINGS, merged_definition, queue_settings

QUORUM = {"x-queue-type": ("longstr", "quorum")}
LIGHT = {"confirm-mode": "consumer-ack-light"}


def mode(name: str) -> Table:
    return {"x-confirm-mode": ("longstr", name)}


@pytest.mark.parametrize(
    ("arguments", "policy", "limit"),
    [
        ({}, {}, None),
        ({}, {"delivery-limit": 4}, 4),
        ({"x-delivery-limit": ("signedint", 3)}, {"delivery-limit": 4}, 3),
        (QUORUM, {}, COUNTED),
        (QUORUM, {"delivery-limit": 4}, 4),
        ({**QUORUM, "x-delivery-limit": ("byte", 0)}, {"delivery-limit": 4}, 0),
        ({"x-delivery-limit": ("byte", -1)}, {}, None),
        ({**QUORUM, "x-delivery-limit": ("byte", -1)}, {}, COUNTED),
        ({**QUORUM, "x-delivery-limit": ("byte", -1)}, {"delivery-limit": 4}, 4),
        ({**QUORUM, "x-delivery-limit": ("byte", 3)}, {"delivery-limit": -1}, 3),
        (QUORUM, {"delivery-limit": -1}, COUNTED),
    ],
)
def test_quorum_queues_count_deliveries_without_a_limit(arguments, policy, limit):
    """The smaller delivery limit applies, a negative one is none; a quorum queue counts deliveries even without one."""
    assert limit == queue_settings(arguments, policy).delivery_limit


@pytest.mark.parametrize(
    ("arguments", "policy", "limit"),
    [
        ({}, {}, None),
        (QUORUM, {}, 20),
        (QUORUM, {"delivery-limit": 30}, 30),
        (QUORUM, {"delivery-limit": -1}, COUNTED),
        ({**QUORUM, "x-delivery-limit": ("byte", -1)}, {}, COUNTED),
    ],
)
def test_default_of_quorum_queues(arguments, policy, limit):
    """The broker's limit applies to quorum queues for which none is given, and to no others."""
    assert limit == queue_settings(arguments, policy, quorum_limit=20).delivery_limit


def test_negative_limit_of_one_policy():
    """Of a policy and an operator policy a negative delivery limit gives way, as in RabbitMQ 4."""
    assert {"delivery-limit": 4} == merged_definition({"delivery-limit": 4}, {"delivery-limit": -1})
    assert {"delivery-limit": 4} == merged_definition({"delivery-limit": -1}, {"delivery-limit": 4})


@pytest.mark.parametrize(
    ("arguments", "policy", "operator", "default", "mode"),
    [
        ({}, {}, {}, "standard", "standard"),
        ({}, {}, {}, "consumer-ack", "consumer-ack"),
        ({}, {}, {}, "consumer-ack-light", "consumer-ack-light"),
        ({}, LIGHT, {}, "consumer-ack", "consumer-ack-light"),
        ({}, LIGHT, {"confirm-mode": "standard"}, "consumer-ack", "standard"),
        (mode("consumer-ack"), LIGHT, {"confirm-mode": "standard"}, "standard", "consumer-ack"),
        (mode("standard"), {}, {}, "consumer-ack", "standard"),
        (QUORUM, {}, {}, "consumer-ack", "standard"),
        (QUORUM, LIGHT, {}, "consumer-ack", "standard"),
    ],
)
def test_who_says_the_confirm_mode(arguments, policy, operator, default, mode):
    """The confirm mode is set by argument, operator policy, policy or broker in this order; never of quorum queues."""
    assert mode == queue_settings(arguments, merged_definition(policy, operator), default).confirm_mode


@pytest.mark.parametrize(
    ("arguments", "policy", "default"),
    [
        (mode("consumer-ack-light"), {"dead-letter-exchange": ""}, "standard"),
        ({"x-dead-letter-exchange": ("longstr", "d")}, LIGHT, "standard"),
        ({"x-max-length-bytes": ("signedint", 0)}, {}, "consumer-ack-light"),
        ({}, {"delivery-limit": 5}, "consumer-ack-light"),
    ],
)
def test_light_confirms_need_nothing_of_a_delivered_message(arguments, policy, default):
    """Light confirms become consumer-ack if the body, the deliveries or the size of a delivered message count later."""
    assert "consumer-ack" == queue_settings(arguments, policy, default).confirm_mode


def test_a_limit_of_length_leaves_light_confirms_alone():
    """Delivered messages do not count in a length limit, nor do they expire, so light confirms stay."""
    arguments = {"x-max-length": ("signedint", 1), "x-message-ttl": ("signedint", 1)}
    assert "consumer-ack-light" == queue_settings(arguments, LIGHT).confirm_mode


def test_a_queue_that_asks_for_nothing_shares_its_settings():
    """Ten thousand plain queues share one settings object."""
    assert NO_SETTINGS is queue_settings({})
    assert not NO_SETTINGS.needs_limits

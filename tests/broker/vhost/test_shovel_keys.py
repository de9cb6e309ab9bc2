"""The definition of a shovel: what is accepted, and RabbitMQ's texts for what is not (asked of RabbitMQ 3.10)."""

from typing import Any

import pytest

from leveret.broker.vhost.parameter_checks import ParameterError
from leveret.broker.vhost.shovel_keys import (
    check_local_access,
    check_logins,
    check_shovel,
    shown_without_secrets,
)

GOOD = {"src-uri": "amqp://", "dest-uri": "amqp://", "src-queue": "a", "dest-queue": "b"}


def faults(value: Any) -> list[str]:
    try:
        check_shovel("s", value)
    except ParameterError as error:
        return str(error).removeprefix("Validation failed\n\n").splitlines()
    return []


@pytest.mark.parametrize(
    "value",
    [
        GOOD,
        {**GOOD, "src-uri": ["amqp://h", "amqps://u:p@i/v?verify=verify_none"]},
        {"src-uri": "amqp://", "dest-uri": "amqp://", "src-exchange": "x", "src-exchange-key": "k"},
        {
            **GOOD,
            "src-delete-after": 5,
            "ack-mode": "on-publish",
            "src-prefetch-count": 1,
            "reconnect-delay": 0.5,
        },
        {**GOOD, "delete-after": "queue-length", "prefetch-count": 0, "add-forward-headers": True},
        {
            **GOOD,
            "src-protocol": "amqp091",
            "dest-protocol": "amqp091",
            "src-queue-args": {"x-max-length": 1},
        },
        {
            **GOOD,
            "dest-publish-properties": {"delivery_mode": 2, "content_type": "a"},
            "src-consumer-args": [],
        },
    ],
)
def test_a_definition_is_accepted(value):
    """As by RabbitMQ, with the older names of some keys."""
    assert [] == faults(value)


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ({}, [
            "Must specify 'src-exchange' or 'src-queue'",
            'Key "dest-uri" not found in s',
            'Key "src-uri" not found in s',
        ]),
        ({**GOOD, "src-exchange": "x"}, ["Cannot specify 'src-exchange' and 'src-queue'"]),
        ({**GOOD, "dest-exchange": "x"}, ["Cannot specify 'dest-exchange' and 'dest-queue'"]),
        ({**GOOD, "dest-queue": ""}, ["dest-queue must not be empty"]),
        ({**GOOD, "ack-mode": "foo"}, [
            'ack-mode should be one of [<<"no-ack">>,<<"on-publish">>,<<"on-confirm">>], actually was <<"foo">>'
        ]),
        ({**GOOD, "ack-mode": 5}, ["ack-mode should be binary, actually was 5"]),
        ({**GOOD, "reconnect-delay": "x"}, ['reconnect-delay should be a number, actually was <<"x">>']),
        ({**GOOD, "src-prefetch-count": "x"}, ['src-prefetch-count should be a number, actually was <<"x">>']),
        ({**GOOD, "bogus": 1, "bogus2": [1, "a"]}, [
            'Unrecognised terms [{<<"bogus">>,1},{<<"bogus2">>,[1,<<"a">>]}] in s'
        ]),
        ({**GOOD, "src-delete-after": -1}, [
            ('src-delete-after should be a number greater than or equal to 0, "never" or "queue-length", '
            "actually was -1")
        ]),
        ({**GOOD, "src-delete-after": 5, "ack-mode": "no-ack"}, [
            "Cannot specify 'no-ack' and numerical 'delete-after'"
        ]),
        ({**GOOD, "dest-queue": "q" * 300}, ["dest-queue should be less than 255 bytes, actually was 300"]),
        ({**GOOD, "dest-queue": 5}, ["dest-queue should be binary, actually was 5"]),
        ({**GOOD, "src-queue": None}, ["src-queue should be binary, actually was null"]),
        ({**GOOD, "src-uri": 5}, ["src-uri should be list, actually was 5"]),
        ({**GOOD, "src-uri": ["amqp://", 5]}, ["src-uri should be list, actually was 5"]),
        ({**GOOD, "src-uri": "foo"}, ['"foo" not a valid URI: {{unable_to_parse_uri,no_scheme},"foo"}']),
        ({**GOOD, "dest-publish-properties": 5}, ["dest-publish-properties not a list 5"]),
        ({**GOOD, "dest-publish-properties": {"headers": {}}}, [
            'Unrecognised terms [{<<"headers">>,#{}}] in dest-publish-properties'
        ]),
        ({**GOOD, "dest-publish-properties": {"delivery_mode": "x"}}, [
            'delivery_mode should be a number, actually was <<"x">>'
        ]),
        ({**GOOD, "dest-add-forward-headers": "x"}, [
            'dest-add-forward-headers should be boolean, actually was <<"x">>'
        ]),
        ({**GOOD, "src-queue-args": 5}, ["src-queue-args not a list 5"]),
    ],
)  # fmt: skip
def test_a_fault_is_told_as_rabbitmq_does(value, texts):
    """All faults together."""
    assert texts == faults(value)


@pytest.mark.parametrize(
    "value",
    [
        "x",
        5,
        None,
        True,
        [1],
        {**GOOD, "src-uri": []},
        {**GOOD, "src-protocol": "amqp10"},
        {**GOOD, "src-prefetch-count": 70_000},
        {**GOOD, "src-prefetch-count": 1.5},
        {**GOOD, "src-prefetch-count": True},
        {**GOOD, "reconnect-delay": -1},
        {**GOOD, "dest-publish-properties": {"priority": 256}},
        {**GOOD, "dest-publish-properties": {"type": "t" * 256}},
        {**GOOD, "src-exchange-key": "k" * 256},
        {**GOOD, "src-queue": "\ud800"},
        {**GOOD, "src-uri": "amqp://\ud800"},
        {**GOOD, "src-queue-args": {"x": 1 << 64}},
        {**GOOD, "dest-queue-args": {"k" * 256: 1}},
        {**GOOD, "src-consumer-args": {"x": "\ud800"}},
    ],
)
def test_what_would_fail_later_is_refused_at_once(value):
    """RabbitMQ answers some of these with 500, and starts a shovel with others that ends at once."""
    assert faults(value)


def test_a_fault_contains_no_password():
    """RabbitMQ quotes the whole URI."""
    text = "".join(faults({**GOOD, "src-uri": "amqp://u:secret@h:0"}))

    assert "amqp://h:0" in text
    assert "secret" not in text


def test_a_vhost_of_this_broker_must_be_accessible_to_who_sets_the_shovel():
    """One of another broker is that broker's business."""
    value = {**GOOD, "src-uri": ["amqp://h/b", "amqp:///a"], "dest-uri": "amqp:///b"}

    check_local_access(value, "ann", {"a", "b"}.__contains__)
    with pytest.raises(ParameterError, match='user "ann" may not connect to vhost "b"'):
        check_local_access(value, "ann", {"a"}.__contains__)


def test_a_definition_can_be_shown_without_secrets():
    """Logins and queries are taken out of its URIs."""
    value = {**GOOD, "src-uri": ["amqp://u:p@h/v?heartbeat=1", "amqp://"], "dest-uri": "amqps://u:p@i"}

    assert {**GOOD, "src-uri": ["amqp://h/v", "amqp://"], "dest-uri": "amqps://i"} == shown_without_secrets(
        value
    )


@pytest.mark.parametrize(
    ("uri", "is_foreign", "reason"),
    [
        ("amqp://", False, ""),
        ("amqp://ann@", False, ""),
        ("amqp://bob:p@", True, ""),
        ("amqp://bob@far", True, ""),
        ("amqp://bob@", False, 'user "ann" needs the password of user "bob" in the URI'),
        ("amqp://", True, 'user "ann" is not in the internal database'),
        ("amqp://ann@", True, 'user "ann" is not in the internal database'),
    ],
)
def test_rights_within_the_broker_are_the_setters(uri, is_foreign, reason):
    """Those of another user need its password, and users of other backends cannot be asked about later."""
    value = {"src-uri": uri, "dest-uri": "amqp://far", "src-queue": "q"}
    if not reason:
        check_logins(value, "ann", is_foreign=is_foreign)
        return
    with pytest.raises(ParameterError, match=reason):
        check_logins(value, "ann", is_foreign=is_foreign)

"""The settings that forms offer are those that the validators accept."""

from typing import Any

import pytest
from doubles.fakes import set_policy

from leveret.broker.administration.setting_catalogue import SETTINGS, Setting, catalogue
from leveret.broker.amqp.tables import Field, typed
from leveret.broker.errors import AMQPError
from leveret.broker.queue.arguments import OF_QUEUES, check_queue_arguments
from leveret.broker.queue.unknown_arguments import OF_OTHERS
from leveret.broker.vhost.parameter_checks import ParameterError
from leveret.broker.vhost.policies import (
    CLASSIC_QUEUES,
    IMPOSSIBLE,
    QUORUM_QUEUES,
    STREAMS,
    Policies,
    known_keys,
)

NOT_OFFERED = {
    "x-queue-type": "a field of its own in each form",
    **dict.fromkeys(
        (
            *("dead-letter-strategy", "max-in-memory-length", "max-in-memory-bytes", "queue-version"),
            *(
                "quorum-initial-group-size",
                "queue-leader-locator",
                "queue-master-locator",
                "initial-cluster-size",
            ),
            *("stream-filter-size-bytes", "target-group-size"),
            *("ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown"),
            *("ha-promote-on-failure", "consumer-disconnected-timeout"),
        ),
        "it has no effect here",
    ),
}
"""Settings that no form offers, and why."""
THERE = [each["name"] for each in catalogue()]
OURS = [each for each in SETTINGS if each.name in THERE]


def values_of(setting: Setting) -> list[Any]:
    """Return values that a form lets through: the ends of the range, or each choice."""
    if setting.type == "integer":
        return [setting.minimum, *([] if setting.maximum is None else [setting.maximum])]
    if setting.name == "max-age":
        return ["7D", "1s"]
    if setting.name == "deduplicate":
        return ["message_id", "body", "header:some"]
    return {"boolean": [True, False], "text": ["some"], "choice": list(setting.choices)}[setting.type]


def refused_values_of(setting: Setting) -> list[Any]:
    """Return values that a form does not let through."""
    if setting.type == "integer":
        return [
            "some",
            *([] if setting.maximum is None else [setting.maximum + 1]),
            *([0] if setting.minimum else []),
        ]
    return {"boolean": [1], "text": [1], "choice": ["some"]}[setting.type]


def is_argument_valid(setting: Setting, value: Any, kind: str) -> bool:
    """Ask the validator of arguments of a new queue of this kind."""
    arguments: dict[str, Field] = typed({f"x-{setting.name}": value})
    types = {QUORUM_QUEUES: "quorum", STREAMS: "stream"}
    if kind in types:
        arguments["x-queue-type"] = ("longstr", types[kind])
    if setting.name == "dead-letter-routing-key":
        arguments["x-dead-letter-exchange"] = ("longstr", "")
    try:
        check_queue_arguments("q", "/", arguments)
    except AMQPError:
        return False
    return True


def is_key_valid(setting: Setting, value: Any, *, operator: bool) -> bool:
    """Ask the validator of policies."""
    try:
        needed = {"delayed-retry-min": 1} if setting.name == "delayed-retry-type" else {}
        set_policy(Policies("/", lambda: None), "p", ".*", needed | {setting.name: value}, operator=operator)
    except ParameterError:
        return False
    return True


@pytest.mark.parametrize("setting", OURS, ids=lambda each: each.name)
def test_every_value_that_is_offered_is_accepted(setting):
    """As an argument of each kind of queue that is named, and as a key of the policies."""
    (row,) = [each for each in catalogue() if each["name"] == setting.name]
    for value in values_of(setting):
        if row["argument"]:
            assert [value] * len(setting.kinds) == [
                value for kind in setting.kinds if is_argument_valid(setting, value, kind)
            ]
        assert row["policy"] == is_key_valid(setting, value, operator=False)
        assert row["operator_policy"] == is_key_valid(setting, value, operator=True)


@pytest.mark.parametrize("setting", OURS, ids=lambda each: each.name)
def test_the_bounds_are_those_of_the_validators(setting):
    """A value beyond them is refused."""
    for value in refused_values_of(setting):
        if setting.is_argument:
            assert not is_argument_valid(setting, value, setting.kinds[0])
        else:
            assert not is_key_valid(setting, value, operator=False)


@pytest.mark.parametrize("setting", OURS, ids=lambda each: each.name)
def test_only_the_kinds_that_have_a_setting_are_named(setting):
    """Other kinds of queues refuse the argument, and policies with the key do not match them."""
    for kind in {CLASSIC_QUEUES, QUORUM_QUEUES, STREAMS} - {*setting.kinds}:
        if setting.is_argument:
            assert not is_argument_valid(setting, values_of(setting)[0], kind)
        elif setting.name in known_keys(operator=False):
            assert setting.name in IMPOSSIBLE[kind] or setting.kinds == ("exchanges",)


def test_no_setting_is_missing():
    """Whatever the validators know is offered, or listed with the reason why it is not."""
    offered = {name for each in catalogue() for name in (each["name"], each["argument"])}
    arguments = {each for each in OF_QUEUES if each.removeprefix("x-") not in NOT_OFFERED}

    assert set() == arguments - offered - NOT_OFFERED.keys() - OF_OTHERS.keys()
    assert set() == known_keys(operator=False) - offered - NOT_OFFERED.keys()


def test_the_confirm_mode_is_the_first_that_is_offered():
    """It is what other brokers do not have."""
    assert "confirm-mode" == THERE[0]

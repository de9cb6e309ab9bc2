"""Keys of policies, and RabbitMQ's texts for invalid ones."""

from typing import Any

import pytest

from leveret.broker.vhost.parameter_checks import ParameterError
from leveret.broker.vhost.policies import Policies

PREFIX = "Validation failed\n\n"
GOOD = {"max-length": 1}


def refused(definition: Any = GOOD, *, operator: bool = False, **changes: Any) -> str:
    """Return the error of a policy; '' if it is set."""
    policies = Policies("/", lambda: None)
    term = {"pattern": "a", "priority": 0, "apply-to": "all", "definition": definition}
    term |= {key.replace("_", "-"): value for key, value in changes.items()}
    try:
        policies.set_term(
            "p", {key: value for key, value in term.items() if value is not ...}, operator=operator
        )
        said = ""
    except ParameterError as error:
        said = str(error)
    assert bool(said) is not bool(policies)
    return said.removeprefix(PREFIX).removesuffix("\n")


# key, values that RabbitMQ 3.10 accepts, values that it refuses, the noun of its text "is not a valid ..."
VALUES = (
    ("alternate-exchange", ("", "x"), (-1, 1.5, None, True), "alternate exchange name"),
    ("dead-letter-exchange", ("", "x"), (-1, 1.5, None, True), "dead letter exchange name"),
    ("dead-letter-routing-key", ("", "x"), (-1, 1.5, None, True), "dead letter routing key"),
    ("dead-letter-strategy", ("at-least-once", "at-most-once"), ("x", 1), "dead letter strategy"),
    ("delivery-limit", (0, 3, 10**21, -1, -7), (1.5, "x", True), "delivery limit"),
    ("expires", (1, 10**21), (0, -1, 1.5, "x"), "queue expiry"),
    ("initial-cluster-size", (0, 3), (-1, 1.5, "x"), "cluster size"),
    ("max-in-memory-bytes", (0, 3), (-1, 1.5, "x"), "maximum memory in bytes"),
    ("max-in-memory-length", (0, 3), (-1, 1.5, "x"), "maximum memory in bytes"),
    ("max-length", (0, 3, 10**21), (-1, 1.5, "x", None, False), "maximum length"),
    ("max-length-bytes", (0, 3), (-1, 1.5, "x"), "maximum length in bytes"),
    ("message-ttl", (0, 3), (-1, 1.5, "x"), "message TTL"),
    ("overflow", ("drop-head", "reject-publish", "reject-publish-dlx"), ("x", 1), "overflow value"),
    ("queue-leader-locator", ("balanced", "random", "client-local"), ("x", 1), "queue leader locator value"),
    ("queue-mode", ("default", "lazy"), ("x", 1), "queue-mode value"),
    ("queue-version", (1, 2), (0, 3, 1.0, "1", True), "queue-version value"),
    ("stream-max-segment-size-bytes", (0, 3), (-1, 1.5, "x"), "segment size"),
    # of 3.11 to 3.13
    ("consumer-disconnected-timeout", (0, 1), (-1, "60000"), "consumer disconnected timeout"),
    ("consumer-timeout", (0, 1), (-1, "86400000"), "consumer timeout"),
    ("target-group-size", (1,), (0, "x"), "qq target count value"),
    ("stream-filter-size-bytes", (16, 255), (15, 256), "filter size. Valid range is 16-255"),
    # ours
    (
        "confirm-mode",
        ("standard", "consumer-ack", "consumer-ack-light"),
        ("x", 1, True),
        "confirm-mode value",
    ),
    # RabbitMQ crashes here, or accepts values that it then cannot use
    ("max-age", ("1D", "10Y"), ("D", "1", "", 5), "max age"),
)
TERMS = {None: "null", True: "true", False: "false", "": "<<>>"}


def shown(value: Any) -> str:
    if isinstance(value, str) and value:
        return f'<<"{value}">>'
    return TERMS[value] if isinstance(value, bool | str | None) else str(value)


@pytest.mark.parametrize(("key", "taken", "not_taken", "what"), VALUES, ids=[row[0] for row in VALUES])
def test_values_are_checked_as_rabbitmq_checks_them(key, taken, not_taken, what):
    """Each key accepts RabbitMQ's values, and refuses others with RabbitMQ's text."""
    assert [""] * len(taken) == [refused({key: value}) for value in taken]
    expected = [f"{shown(value)} is not a valid {what}" for value in not_taken]
    assert expected == [refused({key: value}) for value in not_taken]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, "a"], '[1,<<"a">>]'),
        ([97, 98], '"ab"'),
        ([], "[]"),
        ({"a": [1.0, {}]}, '#{<<"a">> => [1.0,#{}]}'),
        (10**21 + 0.5, "1.0e21"),
        ('a"b\n', '<<"a\\"b\\n">>'),
    ],
)
def test_values_are_shown_as_erlang_shows_them(value, text):
    """The text of an error prints the value as the term that RabbitMQ makes of the JSON."""
    assert f"{text} is not a valid overflow value" == refused({"overflow": value})


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        ({"priority": ...}, ['Key "priority" not found in p']),
        (
            {"pattern": ..., "priority": ...},
            ['Key "pattern" not found in p', 'Key "priority" not found in p'],
        ),
        (
            {"definition": ..., "pattern": ..., "priority": ..., "apply_to": ...},
            [
                'Key "definition" not found in p',
                'Key "pattern" not found in p',
                'Key "priority" not found in p',
            ],
        ),
        ({"definition": []}, ["no policy provided"]),
        ({"definition": {}}, ["no policy provided"]),
        (
            {"definition": "x"},
            ['parse error while reading policy definition: <<"x">>. Validator: policy_validator.'],
        ),
        ({"definition": 5}, ["parse error while reading policy definition: 5. Validator: policy_validator."]),
        ({"definition": [1, 2]}, ["definition must be a dictionary: [1,2]"]),
        ({"priority": "1"}, ['priority should be a number, actually was <<"1">>']),
        ({"priority": True}, ["priority should be a number, actually was true"]),
        ({"priority": 1.5}, []),
        ({"pattern": 1}, ["pattern should be a binary but was 1"]),
        ({"zz": 1}, ['Unrecognised terms [{<<"zz">>,1}] in p']),
        (
            {"definition": {"foo": 1, "bar": "x"}},
            ['[{<<"bar">>,<<"x">>},{<<"foo">>,1}] are not recognised policy settings'],
        ),
        (
            {"definition": {"foo": 1, "message-ttl": -1, "max-length": -2}},
            ["-2 is not a valid maximum length"],
        ),
        ({"definition": {"ha-mode": "x", "max-length": -1}}, ["-1 is not a valid maximum length"]),
        (
            {"definition": {"max-length": -1}, "priority": None, "apply_to": "foo"},
            [
                "-1 is not a valid maximum length",
                (
                    "apply-to 'foo' unrecognised; should be one of: 'queues', 'classic_queues',  "
                    "'quorum_queues', 'streams', 'exchanges', or 'all'"
                ),
                "priority should be a number, actually was null",
            ],
        ),
    ],
)
def test_what_a_policy_consists_of_is_checked(changes, faults):
    """Missing, unknown and wrong keys are reported all at once, in RabbitMQ's order."""
    assert "\n".join(faults) == refused(**{"definition": GOOD, **changes})


def test_what_is_no_object_is_no_policy():
    """A policy's value that is not an object is an error, too."""
    policies = Policies("/", lambda: None)
    for value, text in (("x", 'p not a list <<"x">>'), ([1], "Unrecognised terms [1] in p")):
        with pytest.raises(ParameterError) as error:
            policies.set_term("p", value)
        assert f"{PREFIX}{text}\n" == str(error.value)


@pytest.mark.parametrize("pattern", ["(", "*a", "a["])
def test_a_pattern_has_to_be_a_regular_expression(pattern):
    """An invalid pattern's error begins with RabbitMQ's text and ends with the engine's."""
    assert refused(pattern=pattern).startswith("pattern should be regular expression but is invalid: ")


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ({"ha-mode": "all"}, ""),
        ({"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"}, ""),
        ({"ha-mode": "nodes", "ha-params": ["a@b"]}, ""),
        (
            {"ha-params": 2},
            "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown",
        ),
        ({"ha-mode": "x"}, '<<"x">> is not a valid ha-mode value'),
        ({"ha-mode": 1}, "1 is not a valid ha-mode value"),
        ({"ha-mode": "all", "ha-params": None}, 'ha-mode="all" does not take parameters'),
        ({"ha-mode": "exactly"}, 'ha-mode="exactly" takes an integer, none given'),
        ({"ha-mode": "exactly", "ha-params": 0}, 'ha-mode="exactly" takes an integer, 0 given'),
        ({"ha-mode": "exactly", "ha-params": "x"}, 'ha-mode="exactly" takes an integer, <<"x">> given'),
        ({"ha-mode": "nodes"}, 'ha-mode="nodes" takes a list, none given'),
        ({"ha-mode": "nodes", "ha-params": []}, 'ha-mode="nodes" list must be non-empty'),
        (
            {"ha-mode": "nodes", "ha-params": ["a@b", 1]},
            'ha-mode="nodes" takes a list of strings, [1] was not a string',
        ),
        (
            {"ha-mode": "all", "ha-sync-mode": "x"},
            'ha-sync-mode must be "manual" or "automatic", got <<"x">>',
        ),
        (
            {"ha-mode": "all", "ha-sync-batch-size": 0},
            "ha-sync-batch-size takes an integer greater than 0, 0 given",
        ),
        (
            {"ha-mode": "all", "ha-promote-on-failure": "x", "ha-promote-on-shutdown": "y"},
            'ha-promote-on-shutdown must be "always" or "when-synced", got <<"y">>',
        ),
        (
            {"ha-mode": "all", "ha-promote-on-failure": "x"},
            'ha-promote-on-failure must be "always" or "when-synced", got <<"x">>',
        ),
    ],
)
def test_mirroring_is_checked_although_nothing_is_mirrored(definition, fault):
    """Mirroring policies of clusters are accepted, and wrong ones refused with RabbitMQ's text."""
    assert fault == refused(definition)


def test_operator_policies_have_fewer_keys():
    """Operator policies refuse keys of user policies as unknown, with the text of the other validator."""
    assert "" == refused({"max-length": 1, "message-ttl": 2, "expires": 3}, operator=True)
    assert "0 is not a valid queue expiry" == refused({"expires": 0}, operator=True)
    assert "" == refused({"confirm-mode": "standard"}, operator=True)
    text = '[{<<"dead-letter-exchange">>,<<"x">>}] are not recognised policy settings'
    assert text == refused({"dead-letter-exchange": "x"}, operator=True)
    assert refused(5, operator=True).endswith("Validator: operator_policy_validator.")

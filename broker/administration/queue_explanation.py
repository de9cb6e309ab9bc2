"""The settings of a queue, each with where it comes from."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from leveret.broker.administration.definitions_document import plain_arguments
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.settings import COUNTED, LIMITS, QueueSettings
from leveret.broker.vhost.policies import Applied

_NUMBER_RULE = "of several limits the smallest applies"
_ARGUMENT_RULE = "an argument goes before policies"
_OPERATOR_RULE = "an operator policy goes before a policy"

_KEYS: Mapping[str, str] = {
    "message-ttl": "message_ttl",
    "expires": "expires",
    "max-length": "max_length",
    "max-length-bytes": "max_octets",
    "overflow": "overflow",
    "dead-letter-exchange": "dead_letter_exchange",
    "dead-letter-routing-key": "dead_letter_routing_key",
    "delivery-limit": "delivery_limit",
    "consumer-timeout": "consumer_timeout",
    "confirm-mode": "confirm_mode",
    "retain-for": "retain_for",
    "retain-bytes": "retain_octets",
}
"""Settings that arguments (with `x-` before their names) and policies can give, and their names in `QueueSettings`."""
_FIXED = ("max-priority", "single-active-consumer", "queue-type", "queue-mode")
"""Settings that only arguments give, or that are shown as they were given."""


class Given(NamedTuple):
    """A value that was given for a setting.

    Attributes:
        value: the value.
        source: where it was given.

    """

    value: Any
    source: str


def settings_of(queue: Queue, applied: Applied) -> list[dict[str, Any]]:
    """Return the settings in effect that somebody gave: `key`, `value`, `source`, the rule, and what it prevails over.

    Args:
        queue: the queue.
        applied: the policies that apply to it.

    """
    arguments = plain_arguments(queue.arguments)
    rows = []
    for key in (*_KEYS, *_FIXED):
        given = list(_given(key, arguments, applied))
        effective = _effective(key, queue.settings)
        if not given:
            if effective is not None:
                rows.append(_row(key, effective, Given(effective, "the configuration of the broker"), [], ""))
            continue
        chosen, rule = _chosen(key, given)
        rows.append(
            _row(
                key,
                chosen.value if effective is None else effective,
                chosen,
                [each for each in given if each is not chosen],
                rule,
            )
        )
    return rows


def retention_of(queue: Queue) -> dict[str, Any] | None:
    """Return what a queue retains of the messages that were acked; None if it retains nothing.

    Returns:
        `messages` and `bytes` that are retained; `exact`, false if there may be more messages, because those of an
        earlier run of the broker are counted when they leave; `oldest`, the time of the first ack (ms since the epoch;
        None if there is none, or it is not in memory); `skipped`, the numbers of acked messages that were not
        retained, by cause.

    """
    retention = None if queue.limits is None else queue.limits.retention
    retained = queue.retained
    if retention is None or retained is None:
        return None
    messages = retained.ready_count
    return {
        "messages": queue.retained_count,
        "exact": bool(retention.retained.is_counted),
        "bytes": 0 if retained.limits is None else retained.limits.octets,
        "oldest": (retained.backing.head_expires() if messages else None) or None,
        "skipped": dict(sorted(retention.skipped.items())),
    }


def _given(key: str, arguments: Mapping[str, Any], applied: Applied) -> Iterator[Given]:
    """Yield the values that were given for a setting: by an argument, an operator policy, a policy."""
    if f"x-{key}" in arguments:
        yield Given(arguments[f"x-{key}"], f"argument x-{key}")
    for what, policy in (("operator policy", applied.operator_policy), ("policy", applied.policy)):
        if policy is not None and key in policy.definition:
            yield Given(policy.definition[key], f"{what} '{policy.name}'")


def _chosen(key: str, given: list[Given]) -> tuple[Given, str]:
    """Return the value that applies of those given, in the order of `_given`, and the rule by which it does."""
    if len(given) == 1:
        return given[0], ""
    if key in LIMITS:
        return min(given, key=_value), _NUMBER_RULE
    return given[0], _ARGUMENT_RULE if given[0].source.startswith("argument") else _OPERATOR_RULE


def _value(given: Given) -> Any:
    return given.value


def _effective(key: str, settings: QueueSettings) -> Any:
    """Return the value in effect; None for the default, and for what is not kept among the settings."""
    name = _KEYS.get(key)
    if name is None:
        return None
    value = getattr(settings, name)
    return None if value in (getattr(QueueSettings(), name), COUNTED) else value


def _row(key: str, value: Any, chosen: Given, others: list[Given], rule: str) -> dict[str, Any]:
    return {
        "key": key,
        "value": value,
        "source": chosen.source,
        "given": chosen.value,
        "over": [each._asdict() for each in others],
        "rule": rule,
    }

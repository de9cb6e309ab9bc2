"""Policy keys: their validators, and the kinds of objects that do not support them.

Keys, checks and the texts of errors are those of RabbitMQ 3.13 (rabbit_policy, rabbit_policies,
rabbit_mirror_queue_misc). Intentional differences: the text for a wrong pattern is RE2's or Python's, an `ha-mode` that
is not a string is refused where RabbitMQ crashes, `delivery-limit` applies to classic queues too, which support it
here,
and there are `retain-for` and `retain-bytes`, and `confirm-mode` for classic queues.
`ha-*`, `queue-version`, `queue-master-locator`, `queue-leader-locator`, `max-in-memory-*` and the keys for streams
are stored and have no effect.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from leveret.broker.auth.name_patterns import InvalidPatternError, Patterns
from leveret.broker.vhost.parameter_checks import Check, check_number, pairs_text, term_text
from leveret.confirm.modes import CONFIRM_MODES

CLASSIC_QUEUES = "classic_queues"
QUORUM_QUEUES = "quorum_queues"
EXCHANGES = "exchanges"

_Test = Callable[[Any], bool]


def _at_least(low: int) -> _Test:
    return lambda value: type(value) is int and value >= low


def _one_of(*allowed: str | int) -> _Test:
    return lambda value: type(value) in {str, int} and value in allowed


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_age(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9]+[YMDhms]", value) is not None


def _is_filter_size(value: Any) -> bool:
    return type(value) is int and 16 <= value <= 255  # noqa: PLR2004 - the text says it too


_VALUES: Mapping[str, tuple[_Test, str]] = {
    "alternate-exchange": (_is_text, "alternate exchange name"),
    "confirm-mode": (_one_of(*CONFIRM_MODES), "confirm-mode value"),
    "consumer-timeout": (_at_least(0), "consumer timeout"),
    "dead-letter-exchange": (_is_text, "dead letter exchange name"),
    "dead-letter-routing-key": (_is_text, "dead letter routing key"),
    "dead-letter-strategy": (_one_of("at-most-once", "at-least-once"), "dead letter strategy"),
    "delivery-limit": (_at_least(0), "delivery limit"),
    "expires": (_at_least(1), "queue expiry"),
    "initial-cluster-size": (_at_least(0), "cluster size"),
    "max-age": (_is_age, "max age"),
    "max-in-memory-bytes": (_at_least(0), "maximum memory in bytes"),
    "max-in-memory-length": (_at_least(0), "maximum memory in bytes"),
    "max-length": (_at_least(0), "maximum length"),
    "max-length-bytes": (_at_least(0), "maximum length in bytes"),
    "message-ttl": (_at_least(0), "message TTL"),
    "overflow": (_one_of("drop-head", "reject-publish", "reject-publish-dlx"), "overflow value"),
    "queue-leader-locator": (
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "queue leader locator value",
    ),
    "queue-mode": (_one_of("default", "lazy"), "queue-mode value"),
    "queue-version": (_one_of(1, 2), "queue-version value"),
    "retain-bytes": (_at_least(0), "maximum size of retained messages in bytes"),
    "retain-for": (_at_least(0), "retention time"),
    "stream-filter-size-bytes": (_is_filter_size, "filter size. Valid range is 16-255"),
    "stream-max-segment-size-bytes": (_at_least(0), "segment size"),
    # keys with a validator in a module of their own, checked after the others
    "queue-master-locator": (_one_of("min-masters", "client-local", "random"), "queue master locator"),
    "target-group-size": (_at_least(1), "qq target count value"),
}
_MIRRORING = frozenset(
    (
        "ha-mode", "ha-params", "ha-sync-mode", "ha-sync-batch-size", "ha-promote-on-shutdown", "ha-promote-on-failure",
    )
)  # fmt: skip
_POLICY = frozenset(_VALUES) | _MIRRORING
_OPERATOR_POLICY = frozenset(
    (
        "confirm-mode", "delivery-limit", "expires", "ha-mode", "ha-params", "ha-sync-mode", "max-in-memory-bytes",
        "max-in-memory-length", "max-length", "max-length-bytes", "message-ttl", "overflow", "queue-version",
        "retain-bytes", "retain-for", "target-group-size",
    )
)  # fmt: skip

_FOR_STREAMS = {
    "max-age",
    "stream-max-segment-size-bytes",
    "stream-filter-size-bytes",
    "initial-cluster-size",
}
_FOR_QUORUM = {"dead-letter-strategy", "max-in-memory-bytes", "max-in-memory-length", "target-group-size"}
_FOR_CLASSIC = {"confirm-mode", "queue-mode", "queue-master-locator", *_MIRRORING}
IMPOSSIBLE: Mapping[str, set[str]] = {
    EXCHANGES: set(),
    CLASSIC_QUEUES: _FOR_STREAMS | _FOR_QUORUM,
    QUORUM_QUEUES: _FOR_STREAMS | _FOR_CLASSIC,
}
"""For each kind of object the keys that it does not support: a policy with one of them does not match it."""


def _check_pattern(patterns: Patterns) -> Check:
    def check(key: str, value: Any) -> Iterable[str]:
        if not isinstance(value, str):
            yield f"{key} should be a binary but was {term_text(value)}"
            return
        try:
            patterns.compile(value)
        except InvalidPatternError as error:
            yield f"{key} should be regular expression but is invalid: {error}"

    return check


def _check_apply_to(_key: str, value: Any) -> Iterable[str]:
    if value not in ("all", "queues", EXCHANGES, CLASSIC_QUEUES, QUORUM_QUEUES, "streams"):
        shown = value if isinstance(value, str) else term_text(value)
        yield (
            f"apply-to '{shown}' unrecognised; should be one of: 'queues', 'classic_queues',  "
            "'quorum_queues', 'streams', 'exchanges', or 'all'"
        )


def _check_definition(known: frozenset[str], what: str) -> Check:
    def check(key: str, value: Any) -> Iterable[str]:
        if value in ({}, []):
            yield "no policy provided"
        elif isinstance(value, list):
            yield f"definition must be a dictionary: {term_text(value)}"
        elif not isinstance(value, Mapping):
            yield f"parse error while reading policy {key}: {term_text(value)}. Validator: {what}."
        else:
            yield from _first_fault(known, value)

    return check


def _first_fault(known: frozenset[str], definition: Mapping[str, Any]) -> Iterable[str]:
    """Return the one fault that RabbitMQ reports: an invalid value, else a mirroring fault, else an unknown key."""
    for key, (is_valid, what) in _VALUES.items():
        if key in known and key in definition and not is_valid(definition[key]):
            yield f"{term_text(definition[key])} is not a valid {what}"
            return
    fault = _mirroring_fault({key: value for key, value in definition.items() if key in known & _MIRRORING})
    if fault:
        yield fault
        return
    strange = {key: value for key, value in definition.items() if key not in known}
    if strange:
        yield f"{pairs_text(strange)} are not recognised policy settings"


def _mirroring_fault(given: Mapping[str, Any]) -> str:
    """Return the fault of keys for mirrored queues (rabbit_mirror_queue_misc:validate_policy), '' for none."""
    if not given:
        return ""
    if "ha-mode" not in given:
        return "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
    mode, params = given["ha-mode"], given.get("ha-params")
    if mode not in ("all", "exactly", "nodes"):
        return f"{term_text(mode)} is not a valid ha-mode value"
    return _params_fault(mode, params, has_params="ha-params" in given) or next(
        (
            text.format(term_text(given[key]))
            for key, is_valid, text in _MIRRORING_VALUES
            if key in given and not is_valid(given[key])
        ),
        "",
    )


def _params_fault(mode: str, params: Any, *, has_params: bool) -> str:
    if mode == "all":
        return 'ha-mode="all" does not take parameters' if has_params else ""
    shown = term_text(params) if has_params else "none"
    if mode == "exactly":
        return "" if _at_least(1)(params) else f'ha-mode="exactly" takes an integer, {shown} given'
    if not isinstance(params, list):
        return f'ha-mode="nodes" takes a list, {shown} given'
    if not params:
        return 'ha-mode="nodes" list must be non-empty'
    strange = [node for node in params if not isinstance(node, str)]
    return (
        f'ha-mode="nodes" takes a list of strings, {term_text(strange)} was not a string' if strange else ""
    )


_MIRRORING_VALUES: tuple[tuple[str, _Test, str], ...] = (
    ("ha-sync-mode", _one_of("manual", "automatic"), 'ha-sync-mode must be "manual" or "automatic", got {}'),
    ("ha-sync-batch-size", _at_least(1), "ha-sync-batch-size takes an integer greater than 0, {} given"),
    (
        "ha-promote-on-shutdown",
        _one_of("always", "when-synced"),
        'ha-promote-on-shutdown must be "always" or "when-synced", got {}',
    ),
    (
        "ha-promote-on-failure",
        _one_of("always", "when-synced"),
        'ha-promote-on-failure must be "always" or "when-synced", got {}',
    ),
)


def policy_keys(patterns: Patterns, *, operator: bool) -> Mapping[str, tuple[Check, bool]]:
    """Return the validator of each key of a policy or operator policy, and whether the key is mandatory."""
    known, validator = (
        (_OPERATOR_POLICY, "operator_policy_validator") if operator else (_POLICY, "policy_validator")
    )
    return {
        "priority": (check_number, True),
        "pattern": (_check_pattern(patterns), True),
        "apply-to": (_check_apply_to, False),
        "definition": (_check_definition(known, validator), True),
    }

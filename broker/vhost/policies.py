"""Policies: settings for all queues and exchanges whose names match a pattern, changed while the broker runs.

Theory. At most one policy and one operator policy apply to an object: of those that match, the one with the highest
priority (of equal ones the first by name; RabbitMQ leaves that open). Definitions of several policies are not merged;
`broker.queue.settings.merged_definition` only adds the operator's definition to the user's. A policy with a key that a
type of queue does not support does not match queues of that type at all. Matches are not cached: they are computed when
an object is created, when a policy changes, and on request.

Keys, checks and the texts of errors are those of RabbitMQ 3.13 (rabbit_policy, rabbit_policies,
rabbit_mirror_queue_misc). Intentional differences: the text for a wrong pattern is RE2's or Python's, an `ha-mode` that
is not a string is refused where RabbitMQ crashes, and a negative `delivery-limit` is none as in 4.x. That key applies
to classic queues, too. Keys of our own are `retain-for`, `retain-bytes`, `allow-hold`, `hold-until-header`, `max-held`,
`deduplicate*`, and `confirm-mode` for classic queues. `consumer-disconnected-timeout`, `ha-*`, `queue-version`,
`queue-master-locator`, `queue-leader-locator`, `max-in-memory-*`, `initial-cluster-size` and `stream-filter-size-bytes`
are stored and have no effect.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from leveret.broker.amqp.tables import Table
from leveret.broker.auth.name_patterns import InvalidPatternError, Matcher, Patterns
from leveret.broker.queue.arguments import (
    CLASSIC,
    DEDUPLICATE_MODES,
    FILTER_SIZES,
    MOST_WINDOW_MS,
    OVERFLOWS,
    QUORUM,
    RETRY_KEYS,
    RETRY_TYPES,
    STREAM,
    is_age,
    is_id,
    queue_type,
)
from leveret.broker.queue.settings import merged_definition
from leveret.broker.vhost.parameter_checks import (
    Check,
    ParameterError,
    check_keys,
    check_number,
    pairs_text,
    refuse,
    term_text,
)
from leveret.confirm.modes import CONFIRM_MODES

CLASSIC_QUEUES = "classic_queues"
QUORUM_QUEUES = "quorum_queues"
STREAMS = "streams"
EXCHANGES = "exchanges"
QUEUES = frozenset((CLASSIC_QUEUES, QUORUM_QUEUES, STREAMS))
_KINDS = {CLASSIC: CLASSIC_QUEUES, QUORUM: QUORUM_QUEUES, STREAM: STREAMS}


_ALL = ".*"  # stands for the empty pattern, which, unlike in a permission, matches all names


_SCOPES = {"all": {EXCHANGES, *QUEUES}, "queues": QUEUES}
"""Values of `apply_to` that cover more than one kind."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy or operator policy.

    `pattern` is a regular expression, searched in the bytes of names. The highest `priority` applies. `apply_to` is
    all, queues, exchanges, classic_queues, quorum_queues or streams.
    """

    vhost: str
    name: str
    pattern: str
    definition: Mapping[str, Any]
    priority: float = 0
    apply_to: str = "all"
    kinds: frozenset[str] = field(init=False, repr=False, compare=False)
    """The kinds it applies to: `EXCHANGES` and those that `queue_kind` returns."""
    search: Matcher = field(repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        kinds = (kind for kind, barred in IMPOSSIBLE.items() if barred.isdisjoint(self.definition))
        object.__setattr__(self, "kinds", frozenset(kinds) & _SCOPES.get(self.apply_to, {self.apply_to}))

    def term(self) -> dict[str, Any]:
        """Return the policy as keys and values, the form in which parameters have it."""
        return {
            "pattern": self.pattern,
            "definition": dict(self.definition),
            "priority": self.priority,
            "apply-to": self.apply_to,
        }


@dataclass(frozen=True, slots=True)
class Applied:
    """The policy and operator policy that apply to one object."""

    policy: Policy | None = None
    operator_policy: Policy | None = None

    @property
    def definition(self) -> dict[str, Any]:
        """Return both definitions merged, sorted by key; empty if nothing applies."""
        policy = {} if self.policy is None else self.policy.definition
        operator = {} if self.operator_policy is None else self.operator_policy.definition
        return merged_definition(policy, operator)


NOTHING = Applied()


class Policies:
    """The policies and operator policies of a vhost; falsy if there are none. `changed` is called after each change.

    `limits_classic`: whether policies with `delivery-limit` match classic queues.
    """

    __slots__ = ("_barred", "_changed", "_kept", "_patterns", "_ranked", "_vhost", "record")

    def __init__(
        self,
        vhost: str,
        changed: Callable[[], object],
        patterns: Patterns | None = None,
        *,
        limits_classic: bool = True,
    ) -> None:
        self._patterns = patterns or Patterns()
        self._barred = frozenset(() if limits_classic else ("delivery-limit", *RETRY_KEYS))
        self.record: Any = None  # writes changes (`broker.metadata.recorder.StoredTopology`); None for none
        self._vhost = vhost
        self._changed = changed
        self._kept: tuple[dict[str, Policy], dict[str, Policy]] = ({}, {})
        self._ranked: list[list[Policy]] = [[], []]  # in the order in which they apply: the first match wins

    def __bool__(self) -> bool:
        return any(self._kept)

    def set_term(self, name: str, term: Any, *, operator: bool = False) -> None:
        """Set a policy or operator policy from unvalidated keys and values; a turn must run then.

        Without `apply-to` it applies to all kinds. If it raises ParameterError, nothing has changed.
        """
        refuse(check_keys(name, policy_keys(self._patterns, operator=operator), term))
        self._put(name, term, self._patterns.compile(term["pattern"] or _ALL), operator=operator)

    def restore(self, name: str, term: Mapping[str, Any], *, operator: bool) -> None:
        """Restore a stored policy; with an unusable pattern, which is logged, it applies to nothing."""
        owner = f"{'operator policy' if operator else 'policy'} '{name}' in vhost '{self._vhost}'"
        self._put(name, term, self._patterns.stored(term["pattern"] or _ALL, owner), operator=operator)

    def _put(self, name: str, term: Mapping[str, Any], search: Matcher, *, operator: bool) -> None:
        """Set a policy that is known to be valid; no effect if it exists unchanged."""
        definition, apply_to = dict(sorted(term["definition"].items())), term.get("apply-to", "all")
        policy = Policy(
            self._vhost, name, term["pattern"], definition, term["priority"], apply_to, search=search
        )
        if self._kept[operator].get(name) == policy:
            return
        self._kept[operator][name] = policy
        if self.record is not None:
            self.record.policy_set(policy, operator=operator)
        self._rank(operator=operator)

    def clear(self, name: str, *, operator: bool = False) -> None:
        """Remove a policy or operator policy; raises ParameterError if there is none. A turn must run then."""
        if name not in self._kept[operator]:
            raise ParameterError("Parameter does not exist")
        del self._kept[operator][name]
        if self.record is not None:
            self.record.policy_cleared(name, operator=operator)
        self._rank(operator=operator)

    def _rank(self, *, operator: bool) -> None:
        self._ranked[operator] = sorted(
            self._kept[operator].values(), key=lambda policy: (-policy.priority, policy.name)
        )
        self._changed()

    def tried(self, name: str, term: Any, *, operator: bool) -> "Policies":
        """Return a copy in which a policy is set, or removed if its term is None; raises ParameterError."""
        other = copy.copy(self)
        other.detach()
        if term is not None:
            other.set_term(name, term, operator=operator)
        elif other.get(name, operator=operator) is not None:
            other.clear(name, operator=operator)
        return other

    def detach(self) -> None:
        """Have nothing in common with the policies that this is a copy of."""
        self._kept = (dict(self._kept[0]), dict(self._kept[1]))
        self._ranked = list(self._ranked)
        self.record, self._changed = None, lambda: None

    def obstacle(self, policy: Policy, kind: str) -> str:
        """Return why a policy does not apply to objects of this kind, whatever their names are; '' if it does."""
        barred = IMPOSSIBLE[kind] | self._barred_for(kind)
        if kind not in _SCOPES.get(policy.apply_to, {policy.apply_to}):
            return f"it applies to {policy.apply_to} only"
        if keys := ", ".join(sorted(barred & set(policy.definition))):
            return f"{kind.replace('_', ' ')} do not have {keys}, and a policy applies as a whole"
        return ""

    def get(self, name: str, *, operator: bool = False) -> Policy | None:
        """Return the policy or operator policy of that name, or None."""
        return self._kept[operator].get(name)

    def list(self, *, operator: bool = False) -> list[Policy]:
        """Return the policies or operator policies sorted by name."""
        return [policy for _, policy in sorted(self._kept[operator].items())]

    def applied(self, kind: str, name: str) -> Applied:
        """Return the policies that apply to an object of this name and kind (`EXCHANGES` or from `queue_kind`)."""
        if not self:
            return NOTHING
        octets = name.encode("utf-8", "surrogateescape")
        barred = self._barred_for(kind)
        policy, operator_policy = (_first(ranked, kind, octets, barred) for ranked in self._ranked)
        if policy is None is operator_policy:
            return NOTHING
        return Applied(policy, operator_policy)

    def _barred_for(self, kind: str) -> frozenset[str]:
        return self._barred if kind == CLASSIC_QUEUES else frozenset()


def _first(ranked: Iterable[Policy], kind: str, name: bytes, barred: frozenset[str]) -> Policy | None:
    possible = (each for each in ranked if kind in each.kinds and barred.isdisjoint(each.definition))
    return next((policy for policy in possible if policy.search(name)), None)


def queue_kind(arguments: Table) -> str:
    """Return the kind of a queue, in the terms of `apply_to`, from its arguments."""
    return _KINDS[queue_type(arguments)]


# -- keys -------------------------------------------------------------------------------------------------------

_Test = Callable[[Any], bool]


def _at_least(low: int) -> _Test:
    return lambda value: type(value) is int and value >= low


def _one_of(*allowed: str | int) -> _Test:
    return lambda value: type(value) in {str, int} and value in allowed


def _is_integer(value: Any) -> bool:
    return type(value) is int


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_VALUES: Mapping[str, tuple[_Test, str]] = {
    "allow-hold": (lambda value: isinstance(value, bool), "allow-hold value"),
    "alternate-exchange": (_is_text, "alternate exchange name"),
    "confirm-mode": (_one_of(*CONFIRM_MODES), "confirm-mode value"),
    "consumer-disconnected-timeout": (_at_least(0), "consumer disconnected timeout"),
    "consumer-timeout": (_at_least(0), "consumer timeout"),
    "dead-letter-exchange": (_is_text, "dead letter exchange name"),
    "dead-letter-routing-key": (_is_text, "dead letter routing key"),
    "dead-letter-strategy": (_one_of("at-most-once", "at-least-once"), "dead letter strategy"),
    "delayed-retry-type": (
        _one_of(*RETRY_TYPES),
        f"delayed retry type. Must be one of: {', '.join(RETRY_TYPES)}",
    ),
    "delayed-retry-min": (_at_least(1), "delayed retry minimum delay. Must be a positive integer"),
    "delayed-retry-max": (_at_least(1), "delayed retry maximum delay. Must be a positive integer"),
    "delayed-retry-multiplier": (_at_least(1), "delayed retry multiplier. Must be a positive integer"),
    "delayed-retry-jitter": (
        lambda value: type(value) is int and 0 <= value <= 100,  # noqa: PLR2004 - percent
        "delayed retry jitter. Must be an integer from 0 to 100",
    ),
    "deduplicate": (
        lambda value: _is_text(value) and is_id(value),
        "id of messages. Must be message_id, body or header:NAME",
    ),
    "deduplicate-for": (
        lambda value: _is_integer(value) and 0 <= value <= MOST_WINDOW_MS,
        "time for which ids are known. Valid range is 0 to 30 days in ms",
    ),
    "deduplicate-mode": (
        _one_of(*DEDUPLICATE_MODES),
        f"deduplication mode. Must be one of: {', '.join(DEDUPLICATE_MODES)}",
    ),
    "delivery-limit": (_is_integer, "delivery limit"),
    "expires": (_at_least(1), "queue expiry"),
    "hold-until-header": (lambda value: _is_text(value) and value != "", "header name"),
    "initial-cluster-size": (_at_least(0), "cluster size"),
    "max-age": (lambda value: _is_text(value) and is_age(value), "max age"),
    "max-held": (_at_least(0), "maximum number of held messages"),
    "max-in-memory-bytes": (_at_least(0), "maximum memory in bytes"),
    "max-in-memory-length": (_at_least(0), "maximum memory in bytes"),
    "max-length": (_at_least(0), "maximum length"),
    "max-length-bytes": (_at_least(0), "maximum length in bytes"),
    "message-ttl": (_at_least(0), "message TTL"),
    "overflow": (_one_of(*OVERFLOWS), "overflow value"),
    "queue-leader-locator": (
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "queue leader locator value",
    ),
    "queue-mode": (_one_of("default", "lazy"), "queue-mode value"),
    "queue-version": (_one_of(1, 2), "queue-version value"),
    "retain-bytes": (_at_least(0), "maximum size of retained messages in bytes"),
    "retain-for": (_at_least(0), "retention time"),
    "stream-filter-size-bytes": (_one_of(*FILTER_SIZES), "filter size. Valid range is 16-255"),
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
        "confirm-mode", "delayed-retry-max", "delayed-retry-min", "delayed-retry-type", "delivery-limit", "expires",
        "ha-mode", "ha-params", "ha-sync-mode", "max-held", "max-in-memory-bytes", "max-in-memory-length", "max-length",
        "max-length-bytes", "message-ttl", "overflow", "queue-version", "retain-bytes", "retain-for",
        "target-group-size",
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
    STREAMS: set(_VALUES)
    - _FOR_STREAMS
    - {"max-length-bytes", "consumer-timeout", "queue-leader-locator", "alternate-exchange"}
    - {"allow-hold", "hold-until-header", "max-held", "deduplicate", "deduplicate-for"}
    | _MIRRORING,
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
    if value not in ("all", "queues", EXCHANGES, *QUEUES):
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
    strange = {key: value for key, value in definition.items() if key not in known}
    mirroring = {key: value for key, value in definition.items() if key in known & _MIRRORING}
    if fault := _retry_fault(definition) or _mirroring_fault(mirroring):
        yield fault
    elif strange:
        yield f"{pairs_text(strange)} are not recognised policy settings"


def _retry_fault(definition: Mapping[str, Any]) -> str:
    """Return the fault of keys for delayed retries together (rabbit_quorum_queue), '' for none."""
    kind, least, most = (definition.get(f"delayed-retry-{each}") for each in ("type", "min", "max"))
    if kind not in {None, "disabled"} and least is None:
        return f"delayed-retry-min is required when delayed-retry-type is {kind}"
    if least is not None and most is not None and most < least:
        return f"delayed-retry-max ({most}) must not be smaller than delayed-retry-min ({least})"
    return ""


def _mirroring_fault(given: Mapping[str, Any]) -> str:
    """Return the fault of keys for mirrored queues (rabbit_mirror_queue_misc:validate_policy), '' for none."""
    if not given:
        return ""
    if "ha-mode" not in given:
        return "ha-mode must be specified to specify ha-params, ha-sync-mode or ha-promote-on-shutdown"
    mode, params = given["ha-mode"], given.get("ha-params")
    if mode not in ("all", "exactly", "nodes"):
        return f"{term_text(mode)} is not a valid ha-mode value"
    faults = (
        f"{key} {text.format(term_text(given[key]))}"
        for key, (is_valid, text) in _MIRRORING_VALUES.items()
        if key in given and not is_valid(given[key])
    )
    return _params_fault(mode, params, has_params="ha-params" in given) or next(faults, "")


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


_WHEN_PROMOTED = _one_of("always", "when-synced"), 'must be "always" or "when-synced", got {}'
_MIRRORING_VALUES: Mapping[str, tuple[_Test, str]] = {
    "ha-sync-mode": (_one_of("manual", "automatic"), 'must be "manual" or "automatic", got {}'),
    "ha-sync-batch-size": (_at_least(1), "takes an integer greater than 0, {} given"),
    "ha-promote-on-shutdown": _WHEN_PROMOTED,
    "ha-promote-on-failure": _WHEN_PROMOTED,
}


def unknown_keys(term: Any, *, operator: bool) -> dict[str, Any]:
    """Return the entries of a policy's definition with unknown keys; {} also without a definition."""
    definition = term.get("definition") if isinstance(term, Mapping) else None
    known = known_keys(operator=operator)
    pairs = definition.items() if isinstance(definition, Mapping) else ()
    return {key: value for key, value in pairs if key not in known}


def policy_keys(patterns: Patterns, *, operator: bool) -> Mapping[str, tuple[Check, bool]]:
    """Return the validator of each key of a policy or operator policy, and whether the key is mandatory."""
    validator = "operator_policy_validator" if operator else "policy_validator"
    return {
        "priority": (check_number, True),
        "pattern": (_check_pattern(patterns), True),
        "apply-to": (_check_apply_to, False),
        "definition": (_check_definition(known_keys(operator=operator), validator), True),
    }


def known_keys(*, operator: bool) -> frozenset[str]:
    """Return the keys that policies or operator policies may have."""
    return _OPERATOR_POLICY if operator else _POLICY

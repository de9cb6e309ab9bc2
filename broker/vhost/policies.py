"""Policies: settings for all queues and exchanges whose names match a pattern, changed while the broker runs.

Theory. At most one policy and one operator policy apply to an object: of those that match, the one with the highest
priority (of equal ones the first by name; RabbitMQ leaves that open). Definitions of several policies are not merged;
`broker.queue.settings.merged_definition` only adds the operator's definition to the user's. A policy with a key that a
type of queue does not support does not match queues of that type at all. Matches are not cached: they are computed when
an object is created, when a policy changes, and on request. The keys of a policy are in `broker.vhost.policy_keys`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from leveret.broker.amqp.tables import Table
from leveret.broker.auth.name_patterns import Matcher, Patterns
from leveret.broker.queue.arguments import QUORUM, queue_type
from leveret.broker.queue.settings import merged_definition
from leveret.broker.vhost.parameter_checks import ParameterError, check_keys, refuse
from leveret.broker.vhost.policy_keys import CLASSIC_QUEUES, EXCHANGES, IMPOSSIBLE, QUORUM_QUEUES, policy_keys


class PolicyError(ParameterError):
    """A policy cannot be set or cleared; the text is RabbitMQ's."""


_SCOPES = {
    "all": {EXCHANGES, CLASSIC_QUEUES, QUORUM_QUEUES},
    "queues": {CLASSIC_QUEUES, QUORUM_QUEUES},
}
"""Values of `apply_to` that cover more than one kind."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy or operator policy.

    Attributes:
        vhost: the name of its vhost.
        name: its name, the key for replacing and removing it.
        pattern: a regular expression (`broker.auth.name_patterns`), searched in the bytes of names.
        definition: keys and values, as in JSON.
        priority: the highest one applies; an integer or a float.
        apply_to: all, queues, exchanges, classic_queues, quorum_queues or streams.
        search: the matcher of the pattern.

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


class PolicyRecord(Protocol):
    """Persists policies (`broker.metadata.recorder`)."""

    def policy_set(self, policy: Policy, *, operator: bool) -> None:
        """Record a policy that is new, or that replaces the one of its name."""

    def policy_cleared(self, name: str, *, operator: bool) -> None:
        """Record that a policy was removed."""


class Policies:
    """The policies and operator policies of a vhost; falsy if there are none.

    Args:
        vhost: its name.
        changed: called after each change.
        patterns: compiles the patterns of policies.

    `record` is notified of changes; None without persistence.
    """

    __slots__ = ("_changed", "_kept", "_patterns", "_ranked", "_vhost", "record")

    def __init__(self, vhost: str, changed: Callable[[], object], patterns: Patterns | None = None) -> None:
        self._patterns = patterns or Patterns()
        self.record: PolicyRecord | None = None
        self._vhost = vhost
        self._changed = changed
        self._kept: tuple[dict[str, Policy], dict[str, Policy]] = ({}, {})
        self._ranked: list[list[Policy]] = [[], []]
        """The policies in the order in which they apply: the first match wins."""

    def __bool__(self) -> bool:
        return any(self._kept)

    def set(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        priority: float = 0,
        apply_to: str = "all",
        *,
        operator: bool = False,
    ) -> None:
        """Set a policy or operator policy with immediate effect. The caller runs a turn afterwards.

        Raises:
            PolicyError: invalid; nothing has changed then.

        """
        term = {"pattern": pattern, "definition": definition, "priority": priority, "apply-to": apply_to}
        self.set_term(name, term, operator=operator)

    def set_term(self, name: str, term: Any, *, operator: bool = False) -> None:
        """Set a policy from unvalidated keys and values. Without `apply-to` it applies to all kinds."""
        try:
            refuse(check_keys(name, policy_keys(self._patterns, operator=operator), term))
        except ParameterError as error:
            raise PolicyError(str(error)) from None
        self.add(
            Policy(
                self._vhost,
                name,
                term["pattern"],
                dict(sorted(term["definition"].items())),
                term["priority"],
                term.get("apply-to", "all"),
                search=self._patterns.compile(_all_if_empty(term["pattern"])),
            ),
            operator=operator,
        )

    def restore(
        self,
        name: str,
        pattern: str,
        definition: Mapping[str, Any],
        priority: float,
        apply_to: str,
        *,
        operator: bool,
    ) -> None:
        """Restore a policy that an earlier run has stored.

        An unusable pattern is logged, and the policy then applies to nothing.
        """
        owner = f"{'operator policy' if operator else 'policy'} '{name}' in vhost '{self._vhost}'"
        search = self._patterns.stored(_all_if_empty(pattern), owner)
        self.add(
            Policy(self._vhost, name, pattern, definition, priority, apply_to, search=search),
            operator=operator,
        )

    def add(self, policy: Policy, *, operator: bool) -> None:
        """Set a policy that is known to be valid; no effect if it exists unchanged."""
        if self._kept[operator].get(policy.name) == policy:
            return
        self._kept[operator][policy.name] = policy
        if self.record is not None:
            self.record.policy_set(policy, operator=operator)
        self._rank(operator=operator)

    def clear(self, name: str, *, operator: bool = False) -> None:
        """Remove a policy or operator policy with immediate effect. The caller runs a turn afterwards.

        Raises:
            PolicyError: there is no such policy.

        """
        if name not in self._kept[operator]:
            raise PolicyError("Parameter does not exist")
        del self._kept[operator][name]
        if self.record is not None:
            self.record.policy_cleared(name, operator=operator)
        self._rank(operator=operator)

    def _rank(self, *, operator: bool) -> None:
        self._ranked[operator] = sorted(
            self._kept[operator].values(), key=lambda policy: (-policy.priority, policy.name)
        )
        self._changed()

    def get(self, name: str, *, operator: bool = False) -> Policy | None:
        """Return the policy or operator policy of that name, or None."""
        return self._kept[operator].get(name)

    def list(self, *, operator: bool = False) -> list[Policy]:
        """Return the policies or operator policies sorted by name."""
        return [policy for _, policy in sorted(self._kept[operator].items())]

    def terms(self, *, operator: bool = False) -> dict[str, dict[str, Any]]:
        """Return the policies or operator policies by name, as keys and values."""
        return {policy.name: policy.term() for policy in self.list(operator=operator)}

    def applied(self, kind: str, name: str) -> Applied:
        """Return the policies that apply to an object of this name and kind (`EXCHANGES` or from `queue_kind`)."""
        if not self:
            return NOTHING
        octets = name.encode("utf-8", "surrogateescape")
        policy, operator_policy = (_first(ranked, kind, octets) for ranked in self._ranked)
        if policy is None is operator_policy:
            return NOTHING
        return Applied(policy, operator_policy)


def _all_if_empty(pattern: str) -> str:
    """Return the pattern to compile: unlike in a permission, an empty pattern matches all names."""
    return pattern or ".*"


def _first(ranked: Iterable[Policy], kind: str, name: bytes) -> Policy | None:
    return next((policy for policy in ranked if kind in policy.kinds and policy.search(name)), None)


def queue_kind(arguments: Table) -> str:
    """Return the kind of a queue, in the terms of `apply_to`, from its arguments."""
    return QUORUM_QUEUES if queue_type(arguments) == QUORUM else CLASSIC_QUEUES

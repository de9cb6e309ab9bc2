"""Runtime parameters: values set while the broker runs, by component and name, per vhost or global.

Theory. There is no separate store for a vhost's parameters: each component keeps its values where they are used, vhost
limits in `broker.auth.users.Users` and operator policies in `broker.vhost.policies.Policies`. `Parameters` is the
interface that RabbitMQ's tools use for them, and it refuses components that have no effect here.
Global parameters belong to no component: any name may have any value.

Values are JSON values. The texts of errors are RabbitMQ's (rabbit_runtime_parameters, rabbit_parameter_validation),
because tools show and compare them; terms in them are printed as Erlang does, without its line breaks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from leveret.broker.amqp.tables import binary_text, float_text, string_text
from leveret.broker.auth.users import Users, VHostLimits

LIMITS = "vhost-limits"
OPERATOR_POLICY = "operator_policy"
LIMITS_NAME = "limits"
_MAX_CHARACTER = 255

Check = Callable[[str, Any], Iterable[str]]
"""Validator: given a key and its value, yields the errors found."""


class ParameterError(ValueError):
    """A parameter or policy cannot be set or cleared; the text is RabbitMQ's."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a vhost."""

    vhost: str
    component: str
    name: str
    value: Any


class OperatorPolicies(Protocol):
    """The part of a vhost's policies that parameters use (`broker.vhost.policies.Policies`)."""

    def set_term(self, name: str, term: Any, *, operator: bool = False) -> None:
        """Set a policy from its keys and values; raises ParameterError."""

    def clear(self, name: str, *, operator: bool = False) -> None:
        """Remove a policy; raises ParameterError if there is none."""

    def terms(self, *, operator: bool = False) -> dict[str, dict[str, Any]]:
        """Return the policies by name, as keys and values."""


class ParameterVHost(Protocol):
    """The part of a vhost that parameters use."""

    @property
    def policies(self) -> OperatorPolicies:
        """The vhost's policies."""


class ParameterHost(Protocol):
    """The part of the server that parameters use."""

    users: Users

    @property
    def vhosts(self) -> Mapping[str, ParameterVHost]:
        """The vhosts by name."""


class Parameters:
    """The parameters of vhosts.

    Args:
        host: holds the values.

    """

    __slots__ = ("_host",)

    def __init__(self, host: ParameterHost) -> None:
        self._host = host

    def set(self, vhost: str, component: str, name: str, value: Any) -> None:
        """Set a parameter of a vhost that exists; the caller runs a turn afterwards.

        Raises:
            ParameterError: unknown component or invalid value; nothing has changed then.

        """
        if component == OPERATOR_POLICY:
            self._host.vhosts[vhost].policies.set_term(name, value, operator=True)
            return
        check_parameter(component, name, value)
        limits = value or {}
        self._host.users.set_vhost_limits(
            vhost, VHostLimits(limits.get("max-connections"), limits.get("max-queues"))
        )

    def clear(self, vhost: str, component: str, name: str) -> None:
        """Remove a parameter of a vhost that exists; the caller runs a turn afterwards.

        Raises:
            ParameterError: there is no such parameter.

        """
        if component == "policy":
            raise ParameterError("policies may not be cleared using this method")
        if component == OPERATOR_POLICY:
            self._host.vhosts[vhost].policies.clear(name, operator=True)
        elif component == LIMITS and name == LIMITS_NAME and self._limits(vhost):
            self._host.users.set_vhost_limits(vhost, VHostLimits())
        else:
            raise ParameterError("Parameter does not exist")

    def list(self, vhost: str | None = None, component: str | None = None) -> list[Parameter]:
        """Return all parameters, or those of one vhost or component: operator policies but not policies."""
        found = []
        for place in self._host.vhosts if vhost is None else (vhost,):
            limits = self._limits(place)
            if limits:
                found.append(Parameter(place, LIMITS, LIMITS_NAME, limits))
            found += [
                Parameter(place, OPERATOR_POLICY, name, term)
                for name, term in self._host.vhosts[place].policies.terms(operator=True).items()
            ]
        return [parameter for parameter in found if component in {None, parameter.component}]

    def _limits(self, vhost: str) -> dict[str, int]:
        limits = self._host.users.vhost_limits(vhost)
        pairs = (("max-connections", limits.max_connections), ("max-queues", limits.max_queues))
        return {key: value for key, value in pairs if value is not None}


class GlobalParameters:
    """Named values for the whole broker; the broker itself uses none of them."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        """Set a value, of any type."""
        self._values[name] = value

    def clear(self, name: str) -> None:
        """Remove a value.

        Raises:
            ParameterError: there is no such value.

        """
        if name not in self._values:
            raise ParameterError("Parameter does not exist")
        del self._values[name]

    def list(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(self._values)


# -- checking --------------------------------------------------------------------------------------------------------

MAX_DEPTH = 64
"""Maximum nesting depth of objects and lists in values set from outside."""


def is_too_deep(value: Any) -> bool:
    """Return whether objects and lists are nested deeper than `MAX_DEPTH`; not recursive, so safe for any value."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (Mapping, list, tuple))
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
        if not level:
            return False
    return True


def refuse(faults: Sequence[str]) -> None:
    """Raise ParameterError if there are any faults."""
    if faults:
        raise ParameterError("Validation failed\n\n" + "".join(f"{fault}\n" for fault in faults))


def check_keys(name: str, keys: Mapping[str, tuple[Check, bool]], term: Any) -> list[str]:
    """Return the faults of an object: missing mandatory keys, unknown keys and invalid values.

    Args:
        name: the name of what it is the value of, for messages.
        keys: for each key its validator, and whether it is mandatory.
        term: the object. An empty list is an object without keys, as in Erlang.

    """
    if is_too_deep(term):
        return [f"{name} is nested deeper than {MAX_DEPTH} levels"]
    if not isinstance(term, Mapping):
        if term == []:
            term = {}
        elif isinstance(term, list):
            return [f"Unrecognised terms {term_text(term)} in {name}"]
        else:
            return [f"{name} not a list {term_text(term)}"]
    strange = {key: value for key, value in term.items() if key not in keys}
    faults = [f"Unrecognised terms {pairs_text(strange)} in {name}"] if strange else []
    for key, (check, mandatory) in reversed(list(keys.items())):  # RabbitMQ reports the last fault first
        if key in term:
            faults += check(key, term[key])
        elif mandatory:
            faults.append(f'Key "{key}" not found in {name}')
    return faults


def check_parameter(component: str, name: str, value: Any) -> None:
    """Raise ParameterError for a parameter that cannot be set; operator policies are validated by `Policies`."""
    if component == "policy":
        raise ParameterError("policies may not be set using this method")
    if component != LIMITS:
        refuse([f"component {component} not found"])
    refuse(check_keys(name, _LIMIT_KEYS, value))
    if name != LIMITS_NAME:
        raise ParameterError(f"the parameter of component {LIMITS} is named '{LIMITS_NAME}'")


def check_number(key: str, value: Any) -> Iterable[str]:
    """Accept an integer of 64 bits (the range that can be stored) or a float."""
    if not isinstance(value, float) and not _is_integer(value):
        yield f"{key} should be a number, actually was {term_text(value)}"


def check_integer(key: str, value: Any) -> Iterable[str]:
    """Accept an integer of 64 bits."""
    if not _is_integer(value):
        yield f"{key} should be a number, actually was {term_text(value)}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


_LIMIT_KEYS = {"max-connections": (check_integer, False), "max-queues": (check_integer, False)}


def pairs_text(pairs: Mapping[str, Any]) -> str:
    """Format an object as RabbitMQ's validators see it: as a list of pairs sorted by key."""
    return f"[{','.join(f'{{{term_text(key)},{term_text(pairs[key])}}}' for key in sorted(pairs))}]"


def term_text(value: Any) -> str:
    """Format a JSON value as Erlang's `~p` prints the term that RabbitMQ makes of it."""
    if isinstance(value, str):
        return binary_text(value.encode("utf-8", "surrogatepass"))
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return float_text(value)
    if isinstance(value, Mapping):
        return f"#{{{','.join(f'{term_text(key)} => {term_text(value[key])}' for key in sorted(value))}}}"
    if isinstance(value, list):
        return _string_of_numbers(value) or f"[{','.join(map(term_text, value))}]"
    return str(value)


def _string_of_numbers(items: Sequence[Any]) -> str:
    """Return a list of printable character codes as the string that Erlang takes it for; '' for any other list."""
    numbers = all(type(item) is int and 0 <= item <= _MAX_CHARACTER for item in items)
    return string_text(bytes(items)) if items and numbers else ""

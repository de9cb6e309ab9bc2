"""Runtime parameters: what is set while the broker runs, by component and name, for a vhost or for all.

Theory. A vhost's parameters are no store of their own: each component that there is keeps its values where they are
used, its limits in `broker.auth.users.Users` and its operator policies in `broker.vhost.policies.Policies`.
`Parameters` is the door through which RabbitMQ's users reach them, and it refuses components that nobody would heed.
Global parameters belong to no component: any name has any value.

Values are what JSON has. The texts of errors are RabbitMQ's (rabbit_runtime_parameters, rabbit_parameter_validation),
because tools show and compare them; terms in them are printed as Erlang does, without its line breaks.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from leveret.broker.amqp.tables import binary_text, float_text, string_text
from leveret.broker.auth.users import Users, VHostLimits

LIMITS = "vhost-limits"
OPERATOR_POLICY = "operator_policy"
_LIMITS_NAME = "limits"
_MAX_CHARACTER = 255

Check = Callable[[str, Any], Iterable[str]]
"""Given a key and its value, says what is wrong with it."""


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
    """What parameters need of a vhost's policies (`broker.vhost.policies.Policies`)."""

    def set_term(self, name: str, term: Any, *, operator: bool = False) -> None:
        """Set a policy from its keys and values; raises ParameterError."""

    def clear(self, name: str, *, operator: bool = False) -> None:
        """Remove a policy; raises ParameterError if there is none."""

    def terms(self, *, operator: bool = False) -> dict[str, dict[str, Any]]:
        """The policies by name, as keys and values."""


class ParameterVHost(Protocol):
    """What parameters need of a vhost."""

    @property
    def policies(self) -> OperatorPolicies:
        """Its policies."""


class ParameterHost(Protocol):
    """What parameters need of the server."""

    users: Users

    @property
    def vhosts(self) -> Mapping[str, ParameterVHost]:
        """The vhosts by name."""


class Parameters:
    """The parameters of vhosts.

    Args:
        host: has what they are kept in.

    """

    __slots__ = ("_host",)

    def __init__(self, host: ParameterHost) -> None:
        self._host = host

    def set(self, vhost: str, component: str, name: str, value: Any) -> None:
        """Set a parameter of a vhost that exists; the caller runs a turn afterwards.

        Raises:
            ParameterError: no such component, or no such value; nothing has changed then.

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
            ParameterError: there is none.

        """
        if component == "policy":
            raise ParameterError("policies may not be cleared using this method")
        if component == OPERATOR_POLICY:
            self._host.vhosts[vhost].policies.clear(name, operator=True)
        elif component == LIMITS and name == _LIMITS_NAME and self._limits(vhost):
            self._host.users.set_vhost_limits(vhost, VHostLimits())
        else:
            raise ParameterError("Parameter does not exist")

    def list(self, vhost: str | None = None, component: str | None = None) -> list[Parameter]:
        """All parameters, or those of one vhost or component. Policies are no parameters, operator policies are."""
        found = []
        for place in self._host.vhosts if vhost is None else (vhost,):
            limits = self._limits(place)
            if limits:
                found.append(Parameter(place, LIMITS, _LIMITS_NAME, limits))
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
    """Named values for the whole broker; none has an effect on it."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def set(self, name: str, value: Any) -> None:
        """Set a value, whatever it is."""
        self._values[name] = value

    def clear(self, name: str) -> None:
        """Remove a value.

        Raises:
            ParameterError: there is none.

        """
        if name not in self._values:
            raise ParameterError("Parameter does not exist")
        del self._values[name]

    def list(self) -> dict[str, Any]:
        """The values by name."""
        return dict(self._values)


# -- checking --------------------------------------------------------------------------------------------------------

MAX_DEPTH = 64
"""How deep objects and lists may be nested in each other, in what is set from outside."""


def is_too_deep(value: Any) -> bool:
    """Whether objects and lists are nested deeper than `MAX_DEPTH`; takes no stack for that, whatever the value."""
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
    """Raise ParameterError if there are any."""
    if faults:
        raise ParameterError("Validation failed\n\n" + "".join(f"{fault}\n" for fault in faults))


def check_keys(name: str, keys: Mapping[str, tuple[Check, bool]], term: Any) -> list[str]:
    """What is wrong with an object: a key that is not there and must be, or that must not be, or a bad value.

    Args:
        name: what it is the value of.
        keys: for each key how to check its value, and whether it must be there.
        term: the object. An empty list is one without keys, as Erlang has it.

    """
    if is_too_deep(term):
        return [f"{name} has objects or lists that are nested deeper than {MAX_DEPTH}"]
    if not isinstance(term, Mapping):
        if term == []:
            term = {}
        elif isinstance(term, list):
            return [f"Unrecognised terms {term_text(term)} in {name}"]
        else:
            return [f"{name} not a list {term_text(term)}"]
    strange = {key: value for key, value in term.items() if key not in keys}
    faults = [f"Unrecognised terms {pairs_text(strange)} in {name}"] if strange else []
    for key, (check, mandatory) in reversed(list(keys.items())):  # RabbitMQ tells the last fault first
        if key in term:
            faults += check(key, term[key])
        elif mandatory:
            faults.append(f'Key "{key}" not found in {name}')
    return faults


def check_parameter(component: str, name: str, value: Any) -> None:
    """Raise ParameterError for a parameter that cannot be set; operator policies know themselves."""
    if component == "policy":
        raise ParameterError("policies may not be set using this method")
    if component != LIMITS:
        refuse([f"component {component} not found"])
    refuse(check_keys(name, _LIMIT_KEYS, value))
    if name != _LIMITS_NAME:
        raise ParameterError(f"the parameter of component {LIMITS} is named '{_LIMITS_NAME}'")


def check_number(key: str, value: Any) -> Iterable[str]:
    """An integer of 64 bits, as it is written down, or a float."""
    if not isinstance(value, float) and not _is_integer(value):
        yield f"{key} should be a number, actually was {term_text(value)}"


def check_integer(key: str, value: Any) -> Iterable[str]:
    """An integer of 64 bits."""
    if not _is_integer(value):
        yield f"{key} should be a number, actually was {term_text(value)}"


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


_LIMIT_KEYS = {"max-connections": (check_integer, False), "max-queues": (check_integer, False)}


def pairs_text(pairs: Mapping[str, Any]) -> str:
    """Print an object as the list of pairs that it is to RabbitMQ's validators: sorted by key."""
    return f"[{','.join(f'{{{term_text(key)},{term_text(pairs[key])}}}' for key in sorted(pairs))}]"


def term_text(value: Any) -> str:
    """Print a JSON value as Erlang's `~p` prints the term that RabbitMQ makes of it."""
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
    """A list of numbers that are printable characters is a string to Erlang; '' for any other."""
    numbers = all(type(item) is int and 0 <= item <= _MAX_CHARACTER for item in items)
    return string_text(bytes(items)) if items and numbers else ""

"""Runtime parameters: values set while the broker runs, by component and name, per vhost or global.

Theory. There is no separate store for a vhost's parameters: each component keeps its values where they are used, vhost
limits in `broker.auth.users.Users`, operator policies in `broker.vhost.policies.Policies`, shovels in the
`VHostParameters` of the vhost. `Parameters` is the interface that RabbitMQ's tools use for them, and it refuses
components that have no effect here.
Global parameters belong to no component: any name may have any value.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from leveret.broker.auth.users import VHOST_LIMITS, Users, VHostLimits, limits_by_name
from leveret.broker.vhost.parameter_checks import SHOVEL, ParameterError, check_keys, limit_checks, refuse
from leveret.broker.vhost.vhost_parameters import VHostParameters

LIMITS = "vhost-limits"
OPERATOR_POLICY = "operator_policy"
LIMITS_NAME = "limits"
_LIMIT_KEYS = limit_checks(VHOST_LIMITS)


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

    @property
    def parameters(self) -> VHostParameters:
        """The vhost's parameters that have no other place."""


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

    def set(self, vhost: str, component: str, name: str, value: Any, setter: str = "") -> None:
        """Set a parameter of a vhost that exists; the caller runs a turn afterwards.

        Args:
            vhost: the vhost.
            component: the component.
            name: the name.
            value: the value.
            setter: name of the user, with whose rights it is carried out; '' for an administrator.

        Raises:
            ParameterError: unknown component or invalid value; nothing has changed then.

        """
        if component == OPERATOR_POLICY:
            self._host.vhosts[vhost].policies.set_term(name, value, operator=True)
            return
        check_parameter(component, name, value)
        if component == SHOVEL:
            self._host.vhosts[vhost].parameters.set(component, name, value, setter)
            return
        limits = value or {}
        self._host.users.set_vhost_limits(vhost, VHostLimits(*[limits.get(name) for name in VHOST_LIMITS]))

    def clear(self, vhost: str, component: str, name: str) -> None:
        """Remove a parameter of a vhost that exists; the caller runs a turn afterwards.

        Raises:
            ParameterError: there is no such parameter.

        """
        if component == "policy":
            raise ParameterError("policies may not be cleared using this method")
        if component == OPERATOR_POLICY:
            self._host.vhosts[vhost].policies.clear(name, operator=True)
        elif component == LIMITS and name == LIMITS_NAME and self._host.users.has_vhost_limits(vhost):
            self._host.users.clear_vhost_limits(vhost)
        elif component != SHOVEL or not self._host.vhosts[vhost].parameters.clear(component, name):
            raise ParameterError("Parameter does not exist")

    def list(self, vhost: str | None = None, component: str | None = None) -> list[Parameter]:
        """Return all parameters, or those of one vhost or component: operator policies but not policies."""
        found = []
        for place in self._host.vhosts if vhost is None else (vhost,):
            if self._host.users.has_vhost_limits(place):
                found.append(Parameter(place, LIMITS, LIMITS_NAME, self._limits(place) or []))
            found += [
                Parameter(place, OPERATOR_POLICY, name, term)
                for name, term in self._host.vhosts[place].policies.terms(operator=True).items()
            ]
            found += [Parameter(place, *each) for each in self._host.vhosts[place].parameters.items()]
        return [parameter for parameter in found if component in {None, parameter.component}]

    def _limits(self, vhost: str) -> dict[str, int]:
        limits = self._host.users.vhost_limits(vhost)
        return limits_by_name(limits)


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

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> Any:
        """Return a value; None if there is none."""
        return self._values.get(name)

    def list(self) -> dict[str, Any]:
        """Return the values by name."""
        return dict(self._values)


def check_parameter(component: str, name: str, value: Any) -> None:
    """Raise ParameterError for a parameter that cannot be set; operator policies are validated by `Policies`."""
    if component == "policy":
        raise ParameterError("policies may not be set using this method")
    if component == SHOVEL:
        from leveret.broker.vhost.shovel_keys import check_shovel  # noqa: PLC0415 - only if there is one

        check_shovel(name, value)
        return
    if component != LIMITS:
        refuse([f"component {component} not found"])
    refuse(check_keys(name, _LIMIT_KEYS, value))
    if name != LIMITS_NAME:
        raise ParameterError(f"the parameter of component {LIMITS} is named '{LIMITS_NAME}'")

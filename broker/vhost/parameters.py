"""Runtime parameters: values set while the broker runs, by component and name, per vhost or global.

Theory. There is no separate store for a vhost's parameters: each component keeps its values where they are used, vhost
limits in `broker.auth.users.Users`, operator policies in `broker.vhost.policies.Policies`, shovels in the
`VHostParameters` of the vhost. `Parameters` is the interface that RabbitMQ's tools use for them, and it refuses
components that have no effect here.
Global parameters (`broker.metadata.recorder`) belong to no component: any name may have any value.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from leveret.broker.auth.users import VHOST_LIMITS, Users, VHostLimits, limits_by_name
from leveret.broker.vhost.parameter_checks import SHOVEL, ParameterError, check_keys, limit_checks, refuse

LIMITS = "vhost-limits"
OPERATOR_POLICY = "operator_policy"
LIMITS_NAME = "limits"
_LIMIT_KEYS = limit_checks(VHOST_LIMITS)


class Parameter(NamedTuple):
    """One parameter of a vhost."""

    vhost: str
    component: str
    name: str
    value: Any


class VHostParameters:
    """The parameters of one vhost that have no other place: those of components, such as shovels. Falsy without any.

    A parameter may make the broker act for as long as it exists, which needs rights. So the parameter keeps the user
    who has set it. One that an administrator has set keeps none, and acts as the broker itself, as one from the
    broker's files does.

    `on_change` is called with the vhost, the component and the name after each change.
    """

    __slots__ = ("_setters", "_values", "_vhost", "on_change", "record")

    def __init__(self, vhost: str) -> None:
        self._vhost = vhost
        self._values: dict[tuple[str, str], Any] = {}
        self._setters: dict[tuple[str, str], str] = {}
        self.record: Any = None  # writes changes (`broker.metadata.recorder.StoredTopology`); None for none
        self.on_change: Callable[[str, str, str], object] | None = None

    def __bool__(self) -> bool:
        return bool(self._values)

    def set(self, component: str, name: str, value: Any, setter: str = "") -> None:
        """Set a valid value; `setter`: name of the user, '' for an administrator."""
        self._values[component, name] = value
        self._setters[component, name] = setter
        if self.record is not None:
            self.record.parameter_set(component, name, value, setter)
        self._changed(component, name)

    def clear(self, component: str, name: str) -> bool:
        """Remove a value; returns whether there was one."""
        if (component, name) not in self._values:
            return False
        del self._values[component, name], self._setters[component, name]
        if self.record is not None:
            self.record.parameter_cleared(component, name)
        self._changed(component, name)
        return True

    def get(self, component: str, name: str) -> Any:
        """Return a value; None if there is none."""
        return self._values.get((component, name))

    def setter(self, component: str, name: str) -> str:
        """Return the name of the user who has set an existing value; '' for an administrator."""
        return self._setters[component, name]

    def items(self) -> Iterator[tuple[str, str, Any]]:
        """Yield component, name and value of each, as they are now."""
        for (component, name), value in list(self._values.items()):
            yield component, name, value

    def _changed(self, component: str, name: str) -> None:
        if self.on_change is not None:
            self.on_change(self._vhost, component, name)


class Parameters:
    """The parameters of vhosts."""

    def __init__(self, users: Users, vhosts: Mapping[str, Any]) -> None:  # `VHost`s, which import this module
        self._users, self._vhosts = users, vhosts

    def set(self, vhost: str, component: str, name: str, value: Any, setter: str = "") -> None:
        """Set a parameter of a vhost, with the rights of `setter` ('': an administrator). A turn must run then.

        Raises ParameterError for an unknown component or an invalid value; nothing has changed then.
        """
        if component == OPERATOR_POLICY:
            self._vhosts[vhost].policies.set_term(name, value, operator=True)
            return
        check_parameter(component, name, value)
        if component == SHOVEL:
            self._vhosts[vhost].parameters.set(component, name, value, setter)
            return
        limits = value or {}
        self._users.set_vhost_limits(vhost, VHostLimits(*[limits.get(name) for name in VHOST_LIMITS]))

    def clear(self, vhost: str, component: str, name: str) -> None:
        """Remove a parameter of a vhost that exists; raises ParameterError if there is none. A turn must run then."""
        if component == "policy":
            raise ParameterError("policies may not be cleared using this method")
        if component == OPERATOR_POLICY:
            self._vhosts[vhost].policies.clear(name, operator=True)
        elif component == LIMITS and name == LIMITS_NAME and self._users.has_vhost_limits(vhost):
            self._users.clear_vhost_limits(vhost)
        elif component != SHOVEL or not self._vhosts[vhost].parameters.clear(component, name):
            raise ParameterError("Parameter does not exist")

    def list(self, vhost: str | None = None, component: str | None = None) -> list[Parameter]:
        """Return all parameters, or those of one vhost or component: operator policies but not policies."""
        found = []
        for place in self._vhosts if vhost is None else (vhost,):
            if self._users.has_vhost_limits(place):
                limits = limits_by_name(self._users.vhost_limits(place))
                found.append(Parameter(place, LIMITS, LIMITS_NAME, limits or []))
            found += [
                Parameter(place, OPERATOR_POLICY, policy.name, policy.term())
                for policy in self._vhosts[place].policies.list(operator=True)
            ]
            found += [Parameter(place, *each) for each in self._vhosts[place].parameters.items()]
        return [parameter for parameter in found if component in {None, parameter.component}]


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

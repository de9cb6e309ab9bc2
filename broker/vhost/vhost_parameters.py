"""The parameters of one vhost that have no other place: those of components, such as shovels, by name.

What a parameter makes the broker do may need rights for as long as it is there. So the user who has set it is kept with
it, unless that was an administrator: then the broker itself is meant, as it is by whoever edits its files.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol


class ParameterRecord(Protocol):
    """Persists parameters (`broker.metadata.recorder`)."""

    def parameter_set(self, component: str, name: str, value: Any, setter: str) -> None:
        """Record a parameter that is new, or that replaces the one of its name."""

    def parameter_cleared(self, component: str, name: str) -> None:
        """Record that a parameter was removed."""


class VHostParameters:
    """Values by component and name; falsy if there are none.

    Args:
        vhost: name of the vhost.

    Attributes:
        record: notified of changes; None without persistence.
        on_change: called with the vhost, the component and the name after each change; None if nobody is interested.

    """

    __slots__ = ("_setters", "_values", "_vhost", "on_change", "record")

    def __init__(self, vhost: str) -> None:
        self._vhost = vhost
        self._values: dict[tuple[str, str], Any] = {}
        self._setters: dict[tuple[str, str], str] = {}
        self.record: ParameterRecord | None = None
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
        """Return the name of the user who has set a value that is there; '' for an administrator."""
        return self._setters[component, name]

    def items(self) -> Iterator[tuple[str, str, Any]]:
        """Yield component, name and value of each, as they are now."""
        for (component, name), value in list(self._values.items()):
            yield component, name, value

    def _changed(self, component: str, name: str) -> None:
        if self.on_change is not None:
            self.on_change(self._vhost, component, name)

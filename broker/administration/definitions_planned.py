"""Common parts of the checks of an import: what they return, and the names that entries may refer to."""

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple

from leveret.broker.administration.access import AdministeredBroker, BadRequestError

Step = Callable[[], object]

SHORT = 255
"""Maximum size in bytes of a name or key, on the wire and in the store."""


class Planned(NamedTuple):
    """A valid entry.

    Attributes:
        before: the properties of the object in the broker; None if it is not there.
        after: its properties in the file.
        apply: carries out the change.
        is_kept: True if an object that is there stays as it is.

    """

    before: Mapping[str, Any] | None
    after: Mapping[str, Any]
    apply: Step
    is_kept: bool = False


class UncheckedError(Exception):
    """An entry belongs to something that is refused, so that it cannot be checked."""


class Names:
    """The names that entries may refer to: those in the broker, and those of the entries before.

    Args:
        broker: the broker.

    """

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker
        self.added: set[tuple[str, ...]] = set()
        """Section, vhost if there is one, and name of what is added."""
        self.queue_types: dict[str, str] = {}
        """The default queue types of vhosts that the file has."""
        self._refused: set[tuple[str, ...]] = set()

    def refuse(self, section: str, entry: object) -> None:
        """Note an entry that is refused: others that belong to it are not."""
        values = (
            entry
            if isinstance(entry, Mapping)
            else {key: getattr(entry, key, None) for key in ("vhost", "name")}
        )
        keys = ("vhost", "name") if section in {"exchanges", "queues"} else ("name",)
        name = [value for key in keys if isinstance(value := values.get(key), str)]
        if section in {"vhosts", "users", "exchanges", "queues"} and len(name) == len(keys):
            self._refused.add((section, *name))

    def check(self, *identity: str) -> None:
        """Raise UncheckedError for something that is refused."""
        if identity in self._refused:
            raise UncheckedError

    def check_vhost(self, name: str) -> None:
        """Raise BadRequestError for a vhost that does not exist."""
        self.check("vhosts", name)
        if name not in self._broker.vhosts and ("vhosts", name) not in self.added:
            raise BadRequestError(f"Virtual host '{name}' does not exist")

    def default_queue_type(self, vhost: str) -> str:
        """Return the type that a queue of a vhost gets if its entry has none; '' if there is no default."""
        if vhost in self.queue_types:
            return self.queue_types[vhost]
        return self._broker.vhosts[vhost].default_queue_type if vhost in self._broker.vhosts else ""

    def check_user(self, name: str) -> None:
        """Raise BadRequestError for a user that does not exist."""
        self.check("users", name)
        if self._broker.users.get(name) is None and ("users", name) not in self.added:
            raise BadRequestError(f"User '{name}' does not exist")

    def forgetting(self) -> Generator[None]:
        """Forget everything in steps, because a large set is not freed in one."""
        for names in (self.added, self._refused):
            while names:
                names.pop()
                yield


def check_short(what: str, text: str) -> None:
    """Raise BadRequestError for a name or key that is too long."""
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > SHORT:
        raise BadRequestError(f"{what} is {size} bytes long, more than {SHORT}")

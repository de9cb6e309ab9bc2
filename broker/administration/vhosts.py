"""Vhosts and their limits."""

from collections.abc import Iterable, Iterator
from typing import Any

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    Group,
    ProtectedError,
    Right,
    authorize,
    found_vhost,
    visible_vhosts,
)
from leveret.broker.auth.users import User, limits_by_name
from leveret.broker.queue.arguments import TYPES
from leveret.broker.queue.compatibility import short_queue_type
from leveret.broker.vhost.vhost import Metadata, VHost

NO_TYPE = "undefined"  # the default queue type of a vhost that has none, in RabbitMQ's documents
_NAME_OCTETS = 255


class VHostAdministration(Group):
    """Vhosts."""

    def put(
        self,
        actor: User | None,
        name: str,
        *,
        description: str = "",
        tags: Iterable[str] = (),
        default_queue_type: str = "",
    ) -> None:
        """Add a vhost, or change the metadata of the existing one of that name; raises BadRequestError."""
        broker = self._broker
        authorize(broker.users, actor, Right.ADMINISTRATOR)
        check_vhost_name(name)
        kind = checked_queue_type(default_queue_type)
        if name not in broker.vhosts:
            check_vhost_limit(broker, name, len(broker.vhosts) + 1)
        put_vhost(broker, name, description=description, tags=tuple(tags), default_queue_type=kind)

    def delete(self, actor: User | None, name: str) -> None:
        """Close the connections to a vhost and delete it with all in it; raises NotFoundError, ProtectedError."""
        vhost, broker = self._found(actor, name), self._broker
        if vhost.metadata.protected_from_deletion:
            raise ProtectedError(
                f"Refusing to delete virtual host '{name}' because it is protected from deletion"
            )
        for connection in [each for each in broker.clients.connections if each.vhost is vhost]:
            connection.force_close(f"vhost '{name}' is deleted")
        broker.directory.remove_vhost(vhost)

    def protect(self, actor: User | None, name: str, *, is_protected: bool) -> None:
        """Protect a vhost from deletion, or no longer; raises NotFoundError."""
        self._found(actor, name)
        put_vhost(self._broker, name, protected_from_deletion=is_protected)

    def trace(self, actor: User | None, name: str, *, traced: bool) -> None:
        """Switch the firehose of a vhost on or off (`broker.vhost.firehose`); off at a start. Raises NotFoundError."""
        if self._broker.place == "front" and traced:
            raise BadRequestError("there is no firehose with vhosts.processes")
        taps = self._found(actor, name).taps
        taps.trace(self._broker.clients.node_name if traced else None)

    def _found(self, actor: User | None, name: str) -> VHost:
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        return found_vhost(self._broker, name)

    def limits(self, actor: User | None, name: str | None = None) -> Iterator[dict[str, Any]]:
        """Yield the limits of one vhost or of all that the actor may see, of those that have some.

        In the list of all the value is an empty list where none is left until they are cleared, as in RabbitMQ.
        """
        users = self._broker.users
        rows = (
            (vhost.name, limits_by_name(users.vhost_limits(vhost.name)))
            for vhost in visible_vhosts(self._broker, actor, name)
        )
        return (
            {"vhost": place, "value": limits or []}
            for place, limits in rows
            if limits or (name is None and users.has_vhost_limits(place))
        )


def check_vhost_name(name: str) -> None:
    """Raise BadRequestError for an invalid vhost name."""
    if not name:
        raise BadRequestError("Virtual host name cannot be empty")
    if len(name.encode("utf-8", "surrogateescape")) > _NAME_OCTETS:
        raise BadRequestError(f"Virtual host name is limited to {_NAME_OCTETS} bytes")


def checked_queue_type(text: str) -> str:
    """Return a vhost's default queue type, '' for none (or `undefined`); raises BadRequestError for an unknown one."""
    kind = short_queue_type(text)
    if kind in {"", NO_TYPE}:
        return ""
    if kind not in TYPES:
        raise BadRequestError(
            f"Unsupported default queue type '{text}': it must be one of {', '.join(TYPES)}"
        )
    return kind


def check_vhost_limit(broker: AdministeredBroker, name: str, count: int) -> None:
    """Raise BadRequestError if `count` vhosts, including a new one of that name, exceed the limit."""
    if (most := broker.config.limits.vhost_max) is not None and count > most:
        raise BadRequestError(f"cannot create vhost '{name}': vhost limit of {most} is reached")


def put_vhost(broker: AdministeredBroker, name: str, **changed: Any) -> None:
    """Add a vhost, or change fields of its `Metadata`; a new queue type that is empty is that of the configuration."""
    vhost = broker.vhosts.get(name)
    if not changed.get("default_queue_type", vhost is not None):
        changed["default_queue_type"] = broker.directory.default_queue_type
    metadata = (Metadata() if vhost is None else vhost.metadata)._replace(**changed)
    if vhost is None:
        broker.directory.add_vhost(name, metadata)
    elif metadata != vhost.metadata:
        vhost.metadata = metadata
        broker.directory.definitions.update_vhost(vhost)


def metadata_of(vhost: VHost) -> dict[str, Any]:
    """Return the metadata of a vhost as RabbitMQ's API shows them."""
    found = vhost.metadata._asdict() | {"tags": list(vhost.metadata.tags)}
    return {key: value for key, value in found.items() if value or key in {"description", "tags"}}

"""Export of the definitions of a broker, or of a stored one, in RabbitMQ's form."""

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from leveret import __version__
from leveret.broker import COMPATIBLE_VERSION
from leveret.broker.administration.definitions_document import (
    BindingEntry,
    Document,
    Entry,
    ExchangeEntry,
    GlobalParameterEntry,
    ParameterEntry,
    PermissionEntry,
    PolicyEntry,
    QueueEntry,
    TopicPermissionEntry,
    UserEntry,
    VHostEntry,
    VHostMetadata,
    at_once,
    json_text,
    plain_arguments,
)
from leveret.broker.administration.definitions_topology import RESERVED
from leveret.broker.administration.users import shown_user_limits
from leveret.broker.administration.vhosts import shown_vhost_limits
from leveret.broker.auth.users import Permissions, User, Users
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.parameters import GlobalParameters, Parameter, Parameters
from leveret.broker.vhost.policies import Policy
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange

_Thing = TypeVar("_Thing")

HEADING: Final[Mapping[str, Any]] = {
    "rabbit_version": COMPATIBLE_VERSION,
    "rabbitmq_version": COMPATIBLE_VERSION,
    "product_name": "Leveret",
    "product_version": __version__,
}
"""The keys of an export that are not sections."""


class Defined(Protocol):
    """The source of an export: a broker, or its stored metadata."""

    users: Users
    vhosts: dict[str, VHost]

    @property
    def global_parameters(self) -> GlobalParameters:
        """The global parameters."""


def exporting(defined: Defined, only: VHost | None = None) -> Generator[None, None, Document]:
    """Return the definitions in RabbitMQ's form, one entry per step; of `only`, if given, what is in that vhost.

    What changes meanwhile is exported as it was at the first step, except bindings: those made or removed meanwhile may
    be included or not, if both their ends are.

    Omits what RabbitMQ omits: exclusive queues and their bindings, exchanges and queues whose names begin with `amq.`,
    and the bindings of the default exchange. Internal exchanges are included, as in the export of its API.
    """
    document = Document(**HEADING)
    users = defined.users
    vhosts = list(defined.vhosts.values()) if only is None else [only]
    exchanges = [(vhost, list(vhost.router.exchanges.values())) for vhost in vhosts]
    queues = [
        (vhost, [each for each in vhost.queues.values() if each.exclusive_owner is None]) for vhost in vhosts
    ]
    of_all: dict[str, Iterable[Entry | None]] = {
        "vhosts": (_vhost_entry(vhost, users) for vhost in vhosts),
        "users": (_user_entry(user, users) for user in users.all()),
        "permissions": _permissions(users.permission_rows()),
        "topic_permissions": _topic_permissions(users.topic_permission_rows()),
        "global_parameters": _global_parameters(defined.global_parameters.list()),
    }
    sections: dict[str, Iterable[Entry | None]] = {
        **(of_all if only is None else {}),
        "parameters": _parameters(Parameters(defined).list(None if only is None else only.name)),
        "policies": _policies([(vhost, vhost.policies.list()) for vhost in vhosts]),
        "exchanges": _exchanges(exchanges),
        "queues": _queues(queues),
        "bindings": _bindings(
            vhosts, [{*each[1], *more[1]} for each, more in zip(exchanges, queues, strict=True)]
        ),
    }
    for name, entries in sections.items():
        section = getattr(document, name)
        for entry in entries:
            if entry is not None:
                section.append(entry)
            yield
    return document


def exported(defined: Defined) -> Document:
    """Return the definitions at once; see `exporting`."""
    return at_once(exporting(defined))


def _vhost_entry(vhost: VHost, users: Users) -> VHostEntry:
    description, tags = json_text(vhost.description), [*map(json_text, vhost.tags)]
    kind = json_text(vhost.default_queue_type) or msgspec.UNSET
    return VHostEntry(
        name=json_text(vhost.name),
        description=description,
        tags=tags,
        default_queue_type=kind,
        metadata=VHostMetadata(
            description=description,
            tags=tags,
            default_queue_type=kind,
            protected_from_deletion=vhost.is_protected or msgspec.UNSET,
        ),
        limits=shown_vhost_limits(users.vhost_limits(vhost.name)),
    )


def _user_entry(user: User, users: Users) -> UserEntry:
    return UserEntry(
        name=json_text(user.name),
        password_hash=user.password_hash,
        hashing_algorithm=user.hashing_algorithm,
        tags=[json_text(tag) for tag in user.tags],
        limits=shown_user_limits(users.user_limits(user.name)),
    )


def _permissions(rows: Iterable[tuple[str, str, Permissions]]) -> Iterator[PermissionEntry]:
    for user, vhost, row in rows:
        yield PermissionEntry(
            user=json_text(user),
            vhost=json_text(vhost),
            configure=json_text(row.configure),
            write=json_text(row.write),
            read=json_text(row.read),
        )


def _topic_permissions(rows: Iterable[tuple[str, str, str, str, str]]) -> Iterator[TopicPermissionEntry]:
    for row in rows:
        user, vhost, exchange, write, read = map(json_text, row)
        yield TopicPermissionEntry(user=user, vhost=vhost, exchange=exchange, write=write, read=read)


def _parameters(parameters: Sequence[Parameter]) -> Iterator[ParameterEntry]:
    for each in parameters:
        yield ParameterEntry(
            vhost=json_text(each.vhost),
            component=each.component,
            name=json_text(each.name),
            value=each.value,
        )


def _global_parameters(parameters: Mapping[str, Any]) -> Iterator[GlobalParameterEntry]:
    for name, value in parameters.items():
        yield GlobalParameterEntry(name=json_text(name), value=value)


def _policies(found: Sequence[tuple[VHost, Sequence[Policy]]]) -> Iterator[PolicyEntry]:
    for vhost, policy in _flat(found):
        yield PolicyEntry(
            vhost=json_text(vhost.name),
            name=json_text(policy.name),
            pattern=json_text(policy.pattern),
            definition=dict(policy.definition),
            priority=policy.priority,
            apply_to=policy.apply_to,
        )


def _exchanges(found: Sequence[tuple[VHost, Sequence[Exchange]]]) -> Iterator[ExchangeEntry]:
    for vhost, exchange in _flat(found):
        if exchange.name and not exchange.name.startswith(RESERVED):
            yield ExchangeEntry(
                vhost=json_text(vhost.name),
                name=json_text(exchange.name),
                type=exchange.type,
                durable=exchange.durable,
                auto_delete=exchange.auto_delete,
                internal=exchange.internal,
                arguments=plain_arguments(exchange.arguments),
            )


def _queues(found: Sequence[tuple[VHost, Sequence[Queue]]]) -> Iterator[QueueEntry]:
    for vhost, queue in _flat(found):
        yield QueueEntry(
            vhost=json_text(vhost.name),
            name=json_text(queue.name),
            durable=queue.durable,
            auto_delete=queue.auto_delete,
            type=queue.type,
            arguments=plain_arguments(queue.arguments),
        )


def _bindings(vhosts: Sequence[VHost], ends: Sequence[Collection[object]]) -> Iterator[BindingEntry | None]:
    """Yield the bindings between objects that are exported, and None for others, such as of exclusive queues."""
    for vhost, known in zip(vhosts, ends, strict=True):
        for source, destination, key, arguments in vhost.router.bindings():
            to: Any = destination
            if to not in known or vhost.router.exchanges.get(source) not in known:
                yield None
                continue
            yield BindingEntry(
                vhost=json_text(vhost.name),
                source=json_text(source),
                destination=json_text(to.name),
                destination_type="queue" if isinstance(to, Queue) else "exchange",
                routing_key=json_text(key),
                arguments=plain_arguments(arguments),
            )


def _flat(found: Sequence[tuple[VHost, Sequence[_Thing]]]) -> Iterator[tuple[VHost, _Thing]]:
    return ((vhost, thing) for vhost, things in found for thing in things)

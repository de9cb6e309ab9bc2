"""Export of the definitions of a broker, or of a stored one, in RabbitMQ's form."""

from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from leveret import __version__
from leveret.broker import COMPATIBLE_VERSION
from leveret.broker.administration.definitions_document import (
    BindingEntry,
    Document,
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
    json_text,
    plain_arguments,
)
from leveret.broker.administration.definitions_import import RESERVED
from leveret.broker.administration.users import shown_user_limits
from leveret.broker.administration.vhosts import shown_vhost_limits
from leveret.broker.auth.users import User, Users
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.parameters import GlobalParameters, Parameters
from leveret.broker.vhost.vhost import VHost


class Defined(Protocol):
    """The source of an export: a broker, or its stored metadata."""

    users: Users
    vhosts: dict[str, VHost]

    @property
    def global_parameters(self) -> GlobalParameters:
        """The global parameters."""


def exported(defined: Defined) -> Document:
    """Return the definitions in RabbitMQ's form.

    Omits what RabbitMQ omits: exclusive queues and their bindings, exchanges and queues whose names begin with `amq.`,
    and the bindings of the default exchange. Internal exchanges are included, as in the export of its API.
    """
    vhosts = list(defined.vhosts.values())
    return Document(
        rabbit_version=COMPATIBLE_VERSION,
        rabbitmq_version=COMPATIBLE_VERSION,
        product_name="Leveret",
        product_version=__version__,
        vhosts=[_vhost_entry(vhost, defined.users) for vhost in vhosts],
        users=[_user_entry(user, defined.users) for user in defined.users.all()],
        permissions=list(_permissions(defined.users)),
        topic_permissions=list(_topic_permissions(defined.users)),
        parameters=list(_parameters(defined)),
        global_parameters=list(_global_parameters(defined.global_parameters)),
        policies=[entry for vhost in vhosts for entry in _policies(vhost)],
        exchanges=[entry for vhost in vhosts for entry in _exchanges(vhost)],
        queues=[entry for vhost in vhosts for entry in _queues(vhost)],
        bindings=[entry for vhost in vhosts for entry in _bindings(vhost)],
    )


def _vhost_entry(vhost: VHost, users: Users) -> VHostEntry:
    description, tags = json_text(vhost.description), [*map(json_text, vhost.tags)]
    kind = json_text(vhost.default_queue_type) or msgspec.UNSET
    return VHostEntry(
        name=json_text(vhost.name),
        description=description,
        tags=tags,
        default_queue_type=kind,
        metadata=VHostMetadata(description=description, tags=tags, default_queue_type=kind),
        limits=shown_vhost_limits(users.vhost_limits(vhost.name)),
    )


def _user_entry(user: User, users: Users) -> UserEntry:
    return UserEntry(
        name=json_text(user.name),
        password_hash=user.password_hash,
        hashing_algorithm=user.hashing_algorithm,
        tags=sorted(map(json_text, user.tags)),
        limits=shown_user_limits(users.user_limits(user.name)),
    )


def _permissions(users: Users) -> Iterator[PermissionEntry]:
    for user, vhost, row in users.permission_rows():
        yield PermissionEntry(
            user=json_text(user),
            vhost=json_text(vhost),
            configure=json_text(row.configure),
            write=json_text(row.write),
            read=json_text(row.read),
        )


def _topic_permissions(users: Users) -> Iterator[TopicPermissionEntry]:
    for row in users.topic_permission_rows():
        user, vhost, exchange, write, read = map(json_text, row)
        yield TopicPermissionEntry(user=user, vhost=vhost, exchange=exchange, write=write, read=read)


def _parameters(defined: Defined) -> Iterator[ParameterEntry]:
    for each in Parameters(defined).list():
        yield ParameterEntry(
            vhost=json_text(each.vhost),
            component=each.component,
            name=json_text(each.name),
            value=each.value,
        )


def _global_parameters(parameters: GlobalParameters) -> Iterator[GlobalParameterEntry]:
    for name, value in parameters.list().items():
        yield GlobalParameterEntry(name=json_text(name), value=value)


def _policies(vhost: VHost) -> Iterator[PolicyEntry]:
    for policy in vhost.policies.list():
        yield PolicyEntry(
            vhost=json_text(vhost.name),
            name=json_text(policy.name),
            pattern=json_text(policy.pattern),
            definition=dict(policy.definition),
            priority=policy.priority,
            apply_to=policy.apply_to,
        )


def _exchanges(vhost: VHost) -> Iterator[ExchangeEntry]:
    for exchange in vhost.router.exchanges.values():
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


def _queues(vhost: VHost) -> Iterator[QueueEntry]:
    for queue in vhost.queues.values():
        if queue.exclusive_owner is None:
            yield QueueEntry(
                vhost=json_text(vhost.name),
                name=json_text(queue.name),
                durable=queue.durable,
                auto_delete=queue.auto_delete,
                type=queue.type,
                arguments=plain_arguments(queue.arguments),
            )


def _bindings(vhost: VHost) -> Iterator[BindingEntry]:
    for source, destination, key, arguments in vhost.router.bindings():
        to: Any = destination
        is_queue = isinstance(to, Queue)
        if not is_queue or to.exclusive_owner is None:
            yield BindingEntry(
                vhost=json_text(vhost.name),
                source=json_text(source),
                destination=json_text(to.name),
                destination_type="queue" if is_queue else "exchange",
                routing_key=json_text(key),
                arguments=plain_arguments(arguments),
            )

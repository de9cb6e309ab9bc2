"""Export and import of the definitions of a whole broker.

Theory. An import first checks all entries, each against existing objects and the entries before it, and changes
something only if all are valid; the changes belong to one turn, so they are on disk together or not at all. Existing
objects are kept where the name alone does not identify all properties (exchanges, queues, bindings), and replaced where
it does (users, permissions, parameters, policies), as in RabbitMQ.
"""

import logging
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

import msgspec

from leveret import __version__
from leveret.broker import COMPATIBLE_VERSION
from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    DefinitionsError,
    MalformedError,
    Right,
    authorize,
)
from leveret.broker.administration.definitions_document import (
    BindingEntry,
    Document,
    Entry,
    ExchangeEntry,
    GlobalParameterEntry,
    NotJSONError,
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
    read_document,
    writing,
)
from leveret.broker.administration.definitions_import import RESERVED, Plan, Step
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.auth.users import Permissions, User, Users, limits_by_name
from leveret.broker.errors import AMQPError
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.parameters import GlobalParameters, Parameter, Parameters
from leveret.broker.vhost.policies import Policy
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.base import Exchange
from leveret.exchanges.errors import ExchangeError

log = logging.getLogger("leveret.definitions")


class DefinitionsAdministration:
    """Export and import. Every method takes the acting user first (`access.authorize`)."""

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker

    def export_file(self, actor: User | None) -> bytes:
        """Return all definitions as JSON, at once."""
        return at_once(self.exporting(actor))

    def exporting(self, actor: User | None) -> Generator[None, None, bytes]:
        """Return all definitions as JSON in steps, between which clients may be served: see `definitions_export`."""
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        document = yield from exporting(self._broker)
        return (yield from writing(document))

    def import_file(self, actor: User | None, octets: bytes, *, dry_run: bool = False) -> Outcome:
        """Import a definitions file at once, entirely or not at all; see `importing`."""
        return at_once(self.importing(actor, octets, dry_run=dry_run))

    def importing(
        self, actor: User | None, octets: bytes, vhost: str | None = None, *, dry_run: bool = False
    ) -> Generator[None, None, Outcome]:
        """Import a definitions file in steps, as a job beside clients that waits for the disk: `Turn.add_writing_job`.

        Nothing is changed before everything was checked. The changes are then committed in parts.

        Args:
            actor: the acting user.
            octets: the file.
            vhost: import into this vhost only (see `read_document`).
            dry_run: only find out what would be done; invalid entries are then part of the outcome, and no error.

        Returns:
            What was added and changed, or would be.

        Raises:
            MalformedError: the file is not a JSON object.
            BadRequestError: entries are invalid, or what they need was deleted meanwhile; the text names them.

        """
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        try:
            reading = yield from read_document(octets, vhost)
        except NotJSONError as error:
            raise MalformedError(str(error)) from None
        except DefinitionsError as error:
            raise BadRequestError(str(error)) from None
        plan = Plan(self._broker, reading)
        changes = yield from _planned(plan, keep=not dry_run)
        if dry_run:
            return plan.outcome
        if plan.outcome.refused:
            raise BadRequestError(plan.outcome.error())
        for name in reading.unknown:
            log.warning("definitions: unknown key '%s' ignored", name)
        while changes:
            change = changes.popleft()
            try:
                change()
            except (KeyError, AMQPError, ExchangeError) as error:
                raise BadRequestError(
                    f"the broker was changed by others during the import: {error}"
                ) from None
            yield
        return plan.outcome


def _planned(plan: Plan, *, keep: bool) -> Generator[None, None, deque[Step]]:
    """Check everything; returns the changes, or none if there is something invalid or they are not to be kept."""
    changes: deque[Step] = deque()
    for change in plan.changes():
        if change is not None and keep and not plan.outcome.refused:
            changes.append(change)
        yield
    while plan.outcome.refused and changes:  # a long list is not freed in one step
        changes.pop()
        yield
    return changes


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
        limits=limits_by_name(users.vhost_limits(vhost.name)),
    )


def _user_entry(user: User, users: Users) -> UserEntry:
    return UserEntry(
        name=json_text(user.name),
        password_hash=user.password_hash,
        hashing_algorithm=user.hashing_algorithm,
        tags=[json_text(tag) for tag in user.tags],
        limits=limits_by_name(users.user_limits(user.name)),
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

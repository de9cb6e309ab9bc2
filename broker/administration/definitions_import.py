"""Import of definitions: computes the changes before anything is changed."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from leveret.broker.administration.access import (
    AdministeredBroker,
    AdministrationError,
    BadRequestError,
    checked_limits,
)
from leveret.broker.administration.definitions_document import (
    BindingEntry,
    DefinitionsError,
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
    as_object,
    as_words,
    table_of,
    where,
)
from leveret.broker.administration.users import USER_LIMITS, check_user, user_limits_of, user_of
from leveret.broker.administration.vhosts import (
    VHOST_LIMITS,
    check_vhost_limit,
    check_vhost_name,
    put_vhost,
    set_vhost_limits,
)
from leveret.broker.auth.name_patterns import InvalidPatternError
from leveret.broker.auth.users import Users
from leveret.broker.errors import AMQPError, resource
from leveret.broker.queue.arguments import (
    check_alternate_exchange_type,
    check_dead_letter_exchange_type,
    check_queue_arguments,
    check_queue_properties,
)
from leveret.broker.vhost.parameters import (
    OPERATOR_POLICY,
    ParameterError,
    check_keys,
    check_parameter,
    refuse,
)
from leveret.broker.vhost.policy_keys import policy_keys
from leveret.exchanges.errors import ExchangeError
from leveret.exchanges.router import EXCHANGE_TYPES, Router

log = logging.getLogger("leveret.definitions")

RESERVED = "amq."
_SHORT = 255
"""Maximum size in bytes of a name or key, on the wire and in the store."""

Step = Callable[[], object]


class Plan:
    """The changes of an import: `changes` checks every entry, and only the steps it yields change anything."""

    def __init__(self, broker: AdministeredBroker, document: Document) -> None:
        self._broker = broker
        self._document = document
        self._vhosts = broker.vhosts.keys() | {entry.name for entry in document.vhosts}
        self._users = {user.name for user in broker.users.all()} | {entry.name for entry in document.users}
        self._scratch = Router()
        """A scratch router in which exchanges and bindings are tried out, under the names of `_scratch_name`."""
        self._patterns = broker.users.patterns
        self._tried = Users(patterns=self._patterns)
        """Scratch users that receive the permissions."""
        self._queues = {(entry.vhost, entry.name) for entry in document.queues}

    def changes(self) -> Iterator[Step]:
        """Yield the changes in order, each after its entry was checked; raises BadRequestError for an invalid one."""
        plans: tuple[tuple[str, Callable[[Any], Step]], ...] = (
            ("vhosts", self._vhost),
            ("users", self._user),
            ("permissions", self._permission),
            ("topic_permissions", self._topic_permission),
            ("parameters", self._parameter),
            ("global_parameters", self._global_parameter),
            ("policies", self._policy),
            ("exchanges", self._exchange),
            ("queues", self._queue),
            ("bindings", self._binding),
        )
        for section, plan in plans:
            for at, entry in enumerate(getattr(self._document, section)):
                try:
                    change = plan(entry)
                except AMQPError as error:
                    raise BadRequestError(f"{where(section, at, entry)}: {error.explanation}") from None
                except (
                    AdministrationError,
                    DefinitionsError,
                    ExchangeError,
                    InvalidPatternError,
                    ParameterError,
                ) as error:
                    text = str(error).removeprefix("Validation failed").strip()
                    raise BadRequestError(f"{where(section, at, entry)}: {text}") from None
                yield change

    def _vhost(self, entry: VHostEntry) -> Step:
        check_vhost_name(entry.name)
        if entry.name not in self._broker.vhosts:
            check_vhost_limit(self._broker, entry.name, len(self._vhosts))
        metadata = entry.metadata
        kind = metadata.default_queue_type or entry.default_queue_type or ""
        limits = checked_limits(as_object(entry.limits) or {}, VHOST_LIMITS, "limits")

        def make() -> None:
            put_vhost(
                self._broker,
                entry.name,
                description=metadata.description or entry.description,
                tags=tuple(as_words(metadata.tags or entry.tags)),
                default_queue_type="" if kind == "undefined" else kind,
            )
            if limits:
                set_vhost_limits(self._broker, entry.name, limits)

        return make

    def _user(self, entry: UserEntry) -> Step:
        check_user(entry.name, entry.hashing_algorithm)
        limits = checked_limits(as_object(entry.limits) or {}, USER_LIMITS, "user-limits")
        users = self._broker.users

        def make() -> None:
            user = user_of(
                users.get(entry.name),
                entry.name,
                tags=as_words(entry.tags),
                password=entry.password or None,
                password_hash=None if entry.password_hash is msgspec.UNSET else entry.password_hash,
                hashing_algorithm=entry.hashing_algorithm,
            )
            users.add(user)
            users.set_user_limits(entry.name, user_limits_of(limits))

        return make

    def _permission(self, entry: PermissionEntry) -> Step:
        self._check_user_and_vhost(entry.user, entry.vhost)
        rights = entry.configure, entry.write, entry.read
        self._tried.set_permissions(entry.user, entry.vhost, *rights)
        return lambda: self._broker.users.set_permissions(entry.user, entry.vhost, *rights)

    def _topic_permission(self, entry: TopicPermissionEntry) -> Step:
        self._check_user_and_vhost(entry.user, entry.vhost)
        _check_short("the name of the exchange", entry.exchange)
        row = entry.user, entry.vhost, entry.exchange, entry.write, entry.read
        self._tried.set_topic_permissions(*row)
        return lambda: self._broker.users.set_topic_permissions(*row)

    def _parameter(self, entry: ParameterEntry) -> Step:
        self._check_vhost(entry.vhost)
        value = as_object(entry.value)
        if entry.component == OPERATOR_POLICY:
            if isinstance(value, dict):
                value = value | {"definition": as_object(value.get("definition"))}
            refuse(check_keys(entry.name, policy_keys(self._patterns, operator=True), value))
        else:
            check_parameter(entry.component, entry.name, value)
        return lambda: self._broker.parameters.set(entry.vhost, entry.component, entry.name, value)

    def _global_parameter(self, entry: GlobalParameterEntry) -> Step:
        value = as_object(entry.value)
        return lambda: self._broker.global_parameters.set(entry.name, value)

    def _policy(self, entry: PolicyEntry) -> Step:
        self._check_vhost(entry.vhost)
        term = {
            "pattern": entry.pattern,
            "definition": as_object(entry.definition),
            "priority": entry.priority,
            "apply-to": entry.apply_to,
        }
        refuse(check_keys(entry.name, policy_keys(self._patterns, operator=False), term))
        return lambda: self._broker.vhosts[entry.vhost].policies.set_term(entry.name, term)

    def _exchange(self, entry: ExchangeEntry) -> Step:
        self._check_vhost(entry.vhost)
        if entry.name.startswith(RESERVED) or not entry.name:
            return lambda: log.warning("definitions: predeclared exchange '%s' ignored", entry.name)
        _check_short("its name", entry.name)
        arguments = table_of(entry.arguments)
        if entry.type not in EXCHANGE_TYPES:
            raise BadRequestError(f"unknown exchange type '{entry.type}'")
        check_alternate_exchange_type(entry.name, entry.vhost, arguments)
        self._scratch.declare(_scratch_name(entry.vhost, entry.name), entry.type, arguments=arguments)

        def make() -> None:
            vhost = self._broker.vhosts[entry.vhost]
            if vhost.router.get(entry.name) is None:
                vhost.declare_exchange(
                    entry.name,
                    entry.type,
                    durable=entry.durable,
                    auto_delete=entry.auto_delete,
                    internal=entry.internal,
                    arguments=arguments,
                )

        return make

    def _queue(self, entry: QueueEntry) -> Step:
        self._check_vhost(entry.vhost)
        if not entry.name:
            raise BadRequestError("queue name cannot be empty")
        _check_short("its name", entry.name)
        arguments = table_of(entry.arguments)
        check_dead_letter_exchange_type(entry.name, entry.vhost, arguments)
        check_queue_arguments(entry.name, entry.vhost, arguments)
        check_queue_properties(
            entry.name,
            entry.vhost,
            durable=entry.durable,
            exclusive=False,
            auto_delete=entry.auto_delete,
            arguments=arguments,
        )

        def make() -> None:
            vhost = self._broker.vhosts[entry.vhost]
            if entry.name not in vhost.queues:
                vhost.create_queue(
                    entry.name,
                    durable=entry.durable,
                    exclusive_owner=None,
                    auto_delete=entry.auto_delete,
                    arguments=arguments,
                )

        return make

    def _binding(self, entry: BindingEntry) -> Step:
        self._check_vhost(entry.vhost)
        _check_short("its routing key", entry.routing_key)
        arguments = table_of(entry.arguments)
        source = self._find_exchange(entry.vhost, entry.source)
        to_queue = entry.destination_type == "queue"
        present = self._broker.vhosts.get(entry.vhost)
        if not to_queue:
            self._find_exchange(entry.vhost, entry.destination)
        elif (entry.vhost, entry.destination) not in self._queues and (
            present is None or entry.destination not in present.queues
        ):
            raise BadRequestError(f"no {resource('queue', entry.destination, entry.vhost)}")
        self._scratch.bind(source, entry.destination, entry.routing_key, arguments)

        def make() -> None:
            vhost = self._broker.vhosts[entry.vhost]
            found: object = (vhost.queues if to_queue else vhost.router.exchanges)[entry.destination]
            vhost.router.bind(entry.source, found, entry.routing_key, arguments)

        return make

    def _find_exchange(self, vhost: str, name: str) -> str:
        """Return the scratch name of an exchange of the file or the broker."""
        scratch = _scratch_name(vhost, name)
        if self._scratch.get(scratch) is None:
            place = self._broker.vhosts.get(vhost)
            router = Router() if place is None else place.router
            if place is None:
                router.predeclare()
            present = router.get(name)
            if present is None or not name:
                raise BadRequestError(f"no {resource('exchange', name, vhost)}")
            self._scratch.declare(scratch, present.type, arguments=present.arguments)
        return scratch

    def _check_vhost(self, vhost: str) -> None:
        if vhost not in self._vhosts:
            raise BadRequestError(f"Virtual host '{vhost}' does not exist")

    def _check_user_and_vhost(self, user: str, vhost: str) -> None:
        self._check_vhost(vhost)
        if user not in self._users:
            raise BadRequestError(f"User '{user}' does not exist")


def _scratch_name(vhost: str, name: str) -> str:
    return f"{vhost}\0{name}"


def _check_short(what: str, text: str) -> None:
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > _SHORT:
        raise BadRequestError(f"{what} is {size} bytes long, more than {_SHORT}")

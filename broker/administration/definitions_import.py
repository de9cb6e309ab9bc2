"""Import of definitions: checks every entry before anything is changed, and computes the changes.

Theory. An entry that is invalid refuses the file. One that is valid in RabbitMQ and cannot exist here (an exchange
of another type, a parameter of another plugin, a key of a policy, a binding whose ends an export leaves out) does so
too, or is left out with all that belongs to it: `definitions.on_unsupported`. What RabbitMQ leaves out itself (queues
and exchanges named `amq.*`) always is.
"""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from leveret.broker.administration.access import (
    AdministeredBroker,
    AdministrationError,
    BadRequestError,
    DefinitionsError,
    checked_limits,
)
from leveret.broker.administration.definitions_document import (
    SECTIONS,
    BindingEntry,
    Entry,
    ExchangeEntry,
    GlobalParameterEntry,
    ParameterEntry,
    PermissionEntry,
    PolicyEntry,
    Problem,
    QueueEntry,
    Reading,
    TopicPermissionEntry,
    UserEntry,
    VHostEntry,
    as_object,
    as_words,
    limits_of,
    plain_arguments,
    table_of,
)
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.administration.topology import (
    check_vhost_limit,
    check_vhost_name,
    checked_queue_type,
    put_vhost,
)
from leveret.broker.administration.users import check_password_rules, check_user, user_limits_of, user_of
from leveret.broker.amqp.tables import Table
from leveret.broker.auth.name_patterns import InvalidPatternError
from leveret.broker.auth.passwords import SHA256, Password, check_password
from leveret.broker.auth.users import USER_LIMITS, VHOST_LIMITS, Users, limits_by_name
from leveret.broker.errors import AMQPError, resource
from leveret.broker.queue.arguments import (
    check_dead_letter_exchange_type,
    check_exchange_arguments,
    check_locator,
    check_queue_arguments,
    check_queue_properties,
    with_default_type,
)
from leveret.broker.vhost.parameter_checks import SHOVEL, ParameterError, check_keys, pairs_text, refuse
from leveret.broker.vhost.parameters import LIMITS, LIMITS_NAME, OPERATOR_POLICY, check_parameter
from leveret.broker.vhost.policies import policy_keys, unknown_keys
from leveret.exchanges.base import Exchange
from leveret.exchanges.delayed import DELAYED
from leveret.exchanges.errors import ExchangeError
from leveret.exchanges.router import EXCHANGE_TYPES, Router

log = logging.getLogger("leveret.definitions")
Step = Callable[[], object]

SHORT = 255  # maximum size in bytes of a name or key, on the wire and in the store
RESERVED = "amq."
INVALID = AdministrationError, DefinitionsError, ExchangeError, InvalidPatternError, ParameterError
_POLICY: Final = "policy"
_RESERVED_NAME: Final = "RabbitMQ imports none whose name begins with 'amq.' either"
_INTERNAL: Final = ": exports of RabbitMQ leave out internal exchanges, but not their bindings"
_TARGETS: Final = {
    "queues": {"x-dead-letter-exchange": ("exchanges", "dead letters are lost")},
    "exchanges": {"alternate-exchange": ("exchanges", "unroutable messages are lost")},
    "parameters": dict.fromkeys(("src-queue", "dest-queue"), ("queues", "messages are not moved as meant")),
}
"""By the section and the key: the kind of object that gets messages, and the effect if it is left out."""
_NEW_HASH: Final = "new"  # stands for the hash of a new password, which is computed when it is stored


class Planned(NamedTuple):
    """A valid entry: what there is in the broker (None for nothing), what is in the file, and what makes the change.

    `is_kept` is true if an object that is there stays as it is.
    """

    before: Mapping[str, Any] | None
    after: Mapping[str, Any]
    apply: Step
    is_kept: bool = False


class UncheckedError(Exception):
    """An entry belongs to something that is refused, so that it cannot be checked."""


class UnsupportedError(BadRequestError):
    """An entry that can exist in RabbitMQ cannot exist here."""


class LeftOutError(Exception):
    """An entry is not imported, as in RabbitMQ, or because it belongs to one that is not."""


class Plan:
    """The changes of an import: `changes` checks every entry, and only the steps it yields change anything.

    Entries are removed from the file as they are checked, because many are not freed in one step. The outcome is
    complete when `changes` is at its end. With `skips` what cannot exist here is left out, otherwise it is refused.
    """

    def __init__(self, broker: AdministeredBroker, reading: Reading, *, skips: bool = False) -> None:
        self._reading, self._skips = reading, skips
        self._checks = Checks(broker)
        self.outcome = Outcome()

    def changes(self) -> Iterator[Step | None]:
        """Yield the changes in order, each after its entry was checked, and None for an entry that is refused."""
        for problem in self._reading.problems:
            self._refuse(problem)
            yield None
        for section in SECTIONS:
            positions = self._reading.positions_of(section)
            entries = getattr(self._reading.document, section)
            if section == "bindings":
                yield from self._checks.noting_bindings(entries)
            entries.reverse()
            while entries:
                yield self._checked(section, next(positions), entries.pop())
        for problem in self._checks.lost():
            self.outcome.skip(problem, is_part=True)
            yield None
        yield from self._checks.forgetting()

    def _checked(self, section: str, at: int, entry: Any) -> Step | None:
        if self._skips and (part := without_unsupported(section, entry)):
            self.outcome.skip(Problem(section, at, entry, part), is_part=True)
        try:
            self._checks.check_place(entry)
            planned: Planned = getattr(self._checks, section)(entry)
        except UncheckedError:
            self.outcome.leave_unchecked(section, entry)
            self._checks.refuse(section, entry)
            return None
        except (LeftOutError, UnsupportedError) as error:
            problem = Problem(section, at, entry, str(error))
            if isinstance(error, UnsupportedError) and not self._skips:
                self.outcome.unsupported += 1
                self._refuse(problem)
            else:
                self.outcome.skip(problem)
                self._checks.leave_out(section, entry)
            return None
        except (AMQPError, *INVALID) as error:
            given = error.explanation if isinstance(error, AMQPError) else str(error)
            self._refuse(Problem(section, at, entry, given.removeprefix("Validation failed").strip()))
            return None
        self._checks.note_targets(section, at, entry)
        self.outcome.add(section, at, entry, planned.before, planned.after, is_kept=planned.is_kept)
        return planned.apply

    def _refuse(self, problem: Problem) -> None:
        self.outcome.refuse(problem)
        self._checks.refuse(problem.section, problem.entry)


class Checks:
    """Checks entries against existing objects and the entries before them.

    There is a method for each section; it raises one of `INVALID` for an entry that cannot be imported. Objects whose
    name alone identifies all their properties are replaced; exchanges, queues and bindings are kept.
    """

    def __init__(self, broker: AdministeredBroker) -> None:
        self._broker = broker
        self._added: set[tuple[str, ...]] = set()  # section, vhost if there is one, and name of what is added
        self._refused: set[tuple[str, ...]] = set()
        self._left_out: set[tuple[str, ...]] = set()
        self._targets: list[tuple[tuple[str, ...], Problem]] = []
        """The exchanges that take dead letters or what is unroutable, and what is said if they are left out."""
        self._queue_types: dict[str, str] = {}  # the default queue types of vhosts that the file has
        self._vhost_count = len(broker.vhosts)
        self._tried = Users(patterns=broker.users.patterns)  # scratch users that get each permission
        self._exchanges: dict[tuple[str, str], Exchange] = {}
        """The exchanges of the file, by vhost and name: tried out, and connected to nothing."""
        self._written: set[tuple[str, str, bool, str, str, bytes]] = set()
        """Bindings with arguments that the broker has, as an export writes them."""
        self._predeclared = Router()
        self._predeclared.predeclare()

    def refuse(self, section: str, entry: object) -> None:
        """Note an entry that is refused: others that belong to it are not."""
        self._refused.update(_identity(section, entry))

    def leave_out(self, section: str, entry: object) -> None:
        """Note an entry that is left out: others that belong to it are, too."""
        self._left_out.update(_identity(section, entry))

    def note_targets(self, section: str, at: int, entry: Any) -> None:
        """Note the exchange that takes dead letters or unroutable messages, and the queues of a shovel."""
        given = getattr(entry, "arguments", None) or getattr(entry, "value", None)
        for key, (kind, what) in _TARGETS.get(section, {}).items():
            if isinstance(given, Mapping) and isinstance(name := given.get(key), str):
                text = f"{what}: {kind[:-1]} '{name}' is left out"
                self._targets.append(((kind, entry.vhost, name), Problem(section, at, entry, text)))

    def lost(self) -> Iterator[Problem]:
        """Yield what loses messages, or moves none, because an exchange or queue is left out."""
        return (problem for identity, problem in self._targets if identity in self._left_out)

    def check_place(self, entry: Entry) -> None:
        """Check that the vhost and the user of an entry exist; raises UncheckedError if they are refused."""
        vhost, user = getattr(entry, "vhost", None), getattr(entry, "user", None)
        if vhost is not None:
            text = f"Virtual host '{vhost}' does not exist"
            is_there = vhost in self._broker.vhosts or (user is not None and self._broker.has_vhost(vhost))
            self._check(text, "vhosts", vhost, is_there=is_there)
        if user is not None:
            is_there = self._broker.users.get(user) is not None
            self._check(f"User '{user}' does not exist", "users", user, is_there=is_there)

    def _check(self, text: str, *identity: str, is_there: bool = False) -> None:
        """Raise UncheckedError for a refused object, BadRequestError for one that neither is there nor is added."""
        self._check_refused(*identity)
        if not is_there and identity not in self._added:
            raise BadRequestError(text)

    def _check_refused(self, *identity: str) -> None:
        """Raise UncheckedError for a refused object, LeftOutError for one that is left out."""
        if identity in self._refused:
            raise UncheckedError
        if identity in self._left_out:
            raise LeftOutError(f"{identity[0][:-1]} '{identity[-1]}' is left out")

    def forgetting(self) -> Generator[None]:
        """Forget everything in steps, because a large set is not freed in one."""
        every: tuple[Any, ...] = (self._added, self._refused, self._left_out, self._written, self._targets)
        for names in every:
            while names:
                names.pop()
                yield
        while self._exchanges:
            self._exchanges.popitem()
            yield

    # -- what is replaced -------------------------------------------------------------------------------------------

    def vhosts(self, entry: VHostEntry) -> Planned:
        """Check a vhost."""
        broker = self._broker
        check_vhost_name(entry.name)
        present = broker.vhosts.get(entry.name)
        if present is None and ("vhosts", entry.name) not in self._added:
            check_vhost_limit(broker, entry.name, self._vhost_count + 1)
            self._vhost_count += 1
        metadata = entry.metadata
        wanted = metadata.default_queue_type or entry.default_queue_type or ""
        kind = checked_queue_type(wanted) or broker.directory.default_queue_type
        properties: dict[str, Any] = {
            "description": metadata.description or entry.description,
            "tags": tuple(as_words(metadata.tags or entry.tags)),
            "default_queue_type": kind,
        }
        if isinstance(metadata.protected_from_deletion, bool):
            properties["protected_from_deletion"] = metadata.protected_from_deletion
        limits = checked_limits(limits_of(entry.limits), VHOST_LIMITS, "limits")
        self._added.add(("vhosts", entry.name))
        self._queue_types[entry.name] = kind

        def apply() -> None:
            put_vhost(broker, entry.name, **properties)
            if limits:
                broker.parameters.set(entry.name, LIMITS, LIMITS_NAME, limits)

        before: dict[str, Any] | None = None
        if present is not None:
            before = {name: getattr(present.metadata, name) for name in properties}
            if limits:
                before["limits"] = limits_by_name(broker.users.vhost_limits(entry.name))
        return Planned(before, {**properties, **({"limits": _set(limits)} if limits else {})}, apply)

    def users(self, entry: UserEntry) -> Planned:
        """Check a user."""
        given_hash = None if entry.password_hash is msgspec.UNSET else entry.password_hash
        users = self._broker.changed_users
        present = users.get(entry.name)
        check_user(entry.name, entry.hashing_algorithm, given_hash, present)
        limits = checked_limits(limits_of(entry.limits), USER_LIMITS, "user-limits")
        given_password = entry.password or None
        algorithm = entry.hashing_algorithm
        if (
            given_hash is None
            and given_password
            and present is not None
            and present.hashing_algorithm == algorithm
            and check_password(Password(given_password), present.password_hash, algorithm)
        ):
            given_hash = present.password_hash
        if given_hash is None:
            check_password_rules(users, given_password)
            if given_password and algorithm == SHA256:  # the default of an entry
                algorithm = users.passwords.algorithm
        self._added.add(("users", entry.name))

        def apply() -> None:
            now, tags = users.get(entry.name), as_words(entry.tags)
            users.add(user_of(now, entry.name, tags, given_password, given_hash, algorithm))
            users.set_user_limits(entry.name, user_limits_of(limits))

        after = {
            "tags": list(dict.fromkeys(as_words(entry.tags))),
            "password_hash": _NEW_HASH if given_hash is None and given_password else given_hash or "",
            "hashing_algorithm": algorithm,
            "limits": _set(limits),
        }
        if present is None:
            return Planned(None, after, apply)
        kept = {"password_hash": present.password_hash, "hashing_algorithm": present.hashing_algorithm}
        before = {"tags": list(present.tags), **kept, "limits": limits_by_name(users.user_limits(entry.name))}
        return Planned(before, after | kept if given_hash is None and not given_password else after, apply)

    def permissions(self, entry: PermissionEntry) -> Planned:
        """Check permissions."""
        identity, users = (entry.user, entry.vhost), self._broker.changed_users
        rights = {"configure": entry.configure, "write": entry.write, "read": entry.read}
        self._tried.set_permissions(*identity, **rights)
        self._tried.clear_permissions(*identity)
        row = users.permissions(*identity) if users.may_access(*identity) else None
        before = None if row is None else {name: getattr(row, name) for name in rights}
        return Planned(before, rights, lambda: users.set_permissions(*identity, **rights))

    def topic_permissions(self, entry: TopicPermissionEntry) -> Planned:
        """Check topic permissions."""
        check_short("the name of the exchange", entry.exchange)
        identity = entry.user, entry.vhost, entry.exchange
        rights = {"write": entry.write, "read": entry.read}
        self._tried.set_topic_permissions(*identity, **rights)
        self._tried.clear_topic_permissions(*identity)
        users = self._broker.changed_users
        row = users.topic_permissions(entry.user, entry.vhost).rows.get(entry.exchange)
        before = None if row is None else {name: getattr(row, name) for name in rights}
        return Planned(before, rights, lambda: users.set_topic_permissions(*identity, **rights))

    def parameters(self, entry: ParameterEntry) -> Planned:
        """Check a parameter of a vhost, or an operator policy."""
        broker, value = self._broker, as_object(entry.value)
        place = broker.vhosts.get(entry.vhost)
        if entry.component == OPERATOR_POLICY:
            if isinstance(value, dict):
                value = value | {"definition": as_object(value.get("definition"))}
            before = self._policy(entry, value, operator=True)
            after = {"apply-to": "all", **value}
        elif entry.component == SHOVEL:
            check_protocols(value)
            check_parameter(entry.component, entry.name, value)
            before = None if place is None else place.parameters.get(entry.component, entry.name)
            after = value
            if before == after:  # so that it is not restarted
                return Planned(before, after, lambda: None)
        elif entry.component not in {LIMITS, _POLICY}:
            raise UnsupportedError(f"component {entry.component} not found")
        else:
            check_parameter(entry.component, entry.name, value)
            before = limits_by_name(broker.users.vhost_limits(entry.vhost)) or None
            after = _set(value or {})
            if before is None and not after:
                before = {}
        return Planned(
            before, after, lambda: broker.parameters.set(entry.vhost, entry.component, entry.name, value)
        )

    def global_parameters(self, entry: GlobalParameterEntry) -> Planned:
        """Check a global parameter."""
        self._broker.check_shared()
        parameters = self._broker.directory.global_parameters
        value = as_object(entry.value)
        before = {"value": parameters.get(entry.name)} if entry.name in parameters else None
        return Planned(before, {"value": value}, lambda: parameters.set(entry.name, value))

    def policies(self, entry: PolicyEntry) -> Planned:
        """Check a policy."""
        term = {
            "pattern": entry.pattern,
            "definition": as_object(entry.definition),
            "priority": entry.priority,
            "apply-to": entry.apply_to,
        }
        vhosts, before = self._broker.vhosts, self._policy(entry, term, operator=False)
        return Planned(before, term, lambda: vhosts[entry.vhost].policies.set_term(entry.name, term))

    def _policy(self, entry: PolicyEntry | ParameterEntry, term: Any, *, operator: bool) -> Any:
        """Check a policy; returns the present one of its name."""
        if unknown := unknown_keys(term, operator=operator):
            raise UnsupportedError(f"{pairs_text(unknown)} are not recognised policy settings")
        refuse(check_keys(entry.name, policy_keys(self._tried.patterns, operator=operator), term))
        place = self._broker.vhosts.get(entry.vhost)
        present = None if place is None else place.policies.get(entry.name, operator=operator)
        return None if present is None else present.term()

    # -- what is kept -----------------------------------------------------------------------------------------------

    def exchanges(self, entry: ExchangeEntry) -> Planned:
        """Check an exchange."""
        if entry.name.startswith(RESERVED) or not entry.name:
            place = self._broker.vhosts.get(entry.vhost)
            if (self._predeclared if place is None else place.router).get(entry.name) is None:
                raise LeftOutError(_RESERVED_NAME)
            return Planned({}, {}, lambda: None)
        check_short("its name", entry.name)
        arguments = table_of(entry.arguments)
        inner = entry.arguments.get("x-delayed-type") if entry.type == DELAYED else None
        for kind in (entry.type, inner):
            if isinstance(kind, str) and kind not in EXCHANGE_TYPES:
                raise UnsupportedError(f"unknown exchange type '{kind}'")
        check_exchange_arguments(entry.name, entry.vhost, arguments)
        tried = Router().declare(entry.name, entry.type, arguments=arguments)
        self._exchanges.setdefault((entry.vhost, entry.name), tried)
        flags = {"internal": entry.internal, "durable": entry.durable, "auto_delete": entry.auto_delete}

        def apply() -> None:
            vhost = self._broker.vhosts[entry.vhost]
            if vhost.router.get(entry.name) is None:
                vhost.declare_exchange(entry.name, entry.type, **flags, arguments=arguments)

        after = {"type": entry.type, **flags, "arguments": entry.arguments}
        return Planned(self._present(entry, after), after, apply, is_kept=True)

    def queues(self, entry: QueueEntry) -> Planned:
        """Check a queue."""
        if not entry.name:
            raise BadRequestError("queue name cannot be empty")
        check_short("its name", entry.name)
        if entry.name.startswith(RESERVED):
            raise LeftOutError(_RESERVED_NAME)
        flags = {"durable": entry.durable, "auto_delete": entry.auto_delete}
        default = self._queue_types.get(entry.vhost)
        if default is None and entry.vhost in self._broker.vhosts:
            default = self._broker.vhosts[entry.vhost].metadata.default_queue_type
        arguments = with_default_type(table_of(entry.arguments), default or "", **flags, exclusive=False)
        check_dead_letter_exchange_type(entry.name, entry.vhost, arguments)
        release = self._broker.config.compatibility.queues.arguments
        check_queue_arguments(entry.name, entry.vhost, arguments, release)
        check_queue_properties(entry.name, entry.vhost, **flags, exclusive=False, arguments=arguments)
        check_locator(arguments, release)
        self._added.add(("queues", entry.vhost, entry.name))

        def apply() -> None:
            vhost = self._broker.vhosts[entry.vhost]
            if entry.name not in vhost.queues:
                vhost.create_queue(entry.name, **flags, exclusive_owner=None, arguments=arguments)

        after = {**flags, "arguments": plain_arguments(arguments)}
        return Planned(self._present(entry, after), after, apply, is_kept=True)

    def bindings(self, entry: BindingEntry) -> Planned:
        """Check a binding."""
        check_short("its routing key", entry.routing_key)
        arguments = table_of(entry.arguments)
        to_queue = entry.destination_type == "queue"
        find = self._found_queue if to_queue else self._found_exchange
        destination = find(entry.vhost, entry.destination)
        if not entry.source:
            if to_queue and entry.routing_key == entry.destination:
                return Planned({}, {}, lambda: None)
            raise LeftOutError(
                "the default exchange routes to every queue by its name, and has no other bindings"
            )
        source = self._found_exchange(entry.vhost, entry.source)
        source.validate_binding(destination, entry.routing_key, arguments)
        is_there = source.has_binding(destination, entry.routing_key, arguments)
        if arguments and not is_there:
            # an export has no types of numbers: the binding that it came from is another one than it would make
            ends = entry.vhost, entry.source, to_queue, entry.destination
            is_there = (*ends, entry.routing_key, _json_of(arguments)) in self._written

        def apply() -> None:
            if is_there:
                return
            vhost = self._broker.vhosts[entry.vhost]
            found: object = (vhost.queues if to_queue else vhost.router.exchanges)[entry.destination]
            vhost.router.bind(entry.source, found, entry.routing_key, arguments)

        return Planned({} if is_there else None, {}, apply, is_kept=True)

    def noting_bindings(self, entries: Sequence[BindingEntry]) -> Generator[None]:
        """Note the bindings that there are, in steps; must come before `bindings` is called for these entries."""
        if not any(entry.arguments for entry in entries):
            return
        for name, vhost in tuple(self._broker.vhosts.items()):
            for exchange in tuple(vhost.router.exchanges.values()):
                for each in exchange.bindings():
                    if each.arguments:
                        to_queue = not isinstance(each.destination, Exchange)
                        written = _json_of(each.arguments)
                        target: str = each.destination.name  # type: ignore[attr-defined]
                        self._written.add((name, exchange.name, to_queue, target, each.binding_key, written))
                    yield

    def _present(self, entry: ExchangeEntry | QueueEntry, after: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return those properties of an object of the broker that its entry has; None if there is none."""
        place = self._broker.vhosts.get(entry.vhost)
        there: Any = {} if place is None else place.router.exchanges
        if place is not None and isinstance(entry, QueueEntry):
            there = place.queues
        if (thing := there.get(entry.name)) is None:
            return None
        return {name: getattr(thing, name) for name in after} | {
            "arguments": plain_arguments(thing.arguments)
        }

    def _found_queue(self, vhost: str, name: str) -> object:
        """Return a queue of the broker; None for one of the file."""
        place = self._broker.vhosts.get(vhost)
        present = None if place is None else place.queues.get(name)
        if present is None and ("queues", vhost, name) not in self._added:
            self._check_refused("queues", vhost, name)
            raise UnsupportedError(f"no {resource('queue', name, vhost)}")
        return present

    def _found_exchange(self, vhost: str, name: str) -> Exchange:
        place = self._broker.vhosts.get(vhost)
        router = self._predeclared if place is None else place.router
        present = router.get(name) or self._exchanges.get((vhost, name))
        if present is not None and name:
            return present
        self._check_refused("exchanges", vhost, name)
        raise UnsupportedError(f"no {resource('exchange', name, vhost)}{_INTERNAL}")


def without_unsupported(section: str, entry: Any) -> str:
    """Take from a valid entry what cannot exist here, if something is left of it; returns a sentence about that."""
    is_operator = section == "parameters" and entry.component == OPERATOR_POLICY
    if not is_operator and section != "policies":
        return ""
    term = as_object(entry.value) if is_operator else {"definition": entry.definition}
    if not isinstance(term, dict):
        return ""
    definition = as_object(term.get("definition"))
    unknown = unknown_keys({"definition": definition}, operator=is_operator)
    if not unknown or len(unknown) == len(definition):
        return ""
    kept = {key: value for key, value in definition.items() if key not in unknown}
    if is_operator:
        entry.value = term | {"definition": kept}
    else:
        entry.definition = kept
    return f"without {', '.join(unknown)}"


def check_protocols(value: Any) -> None:
    """Raise UnsupportedError for a shovel of another protocol."""
    for end in ("src-protocol", "dest-protocol"):
        if isinstance(value, dict) and value.get(end) in ("amqp10", "local"):
            raise UnsupportedError(f"{end} {value[end]} is not supported: only amqp091 is")


def _identity(section: str, entry: object) -> Iterator[tuple[str, ...]]:
    """Yield the section, vhost if there is one, and name of an entry that others may belong to."""
    keys = ("vhost", "name") if section in {"exchanges", "queues"} else ("name",)
    values = entry if isinstance(entry, Mapping) else {key: getattr(entry, key, None) for key in keys}
    name = [value for key in keys if isinstance(value := values.get(key), str)]
    if section in {"vhosts", "users", "exchanges", "queues"} and len(name) == len(keys):
        yield section, *name


def check_short(what: str, text: str) -> None:
    """Raise BadRequestError for a name or key that is too long."""
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > SHORT:
        raise BadRequestError(f"{what} is {size} bytes long, more than {SHORT}")


def _set(limits: dict[str, int]) -> dict[str, int]:
    """Return the limits that are set by these: a negative number is none."""
    return {name: limit for name, limit in limits.items() if limit >= 0}


def _json_of(arguments: Table) -> bytes:
    """Return arguments as an export writes them, in one order."""
    return msgspec.json.encode(plain_arguments(arguments), order="sorted")

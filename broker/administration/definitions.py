"""Export and import of the definitions of a whole broker.

Theory. An import first checks all entries, each against existing objects and the entries before it, and changes
something only if all are valid; the changes belong to one turn, so they are on disk together or not at all. Existing
objects are kept where the name alone does not identify all properties (exchanges, queues, bindings), and replaced where
it does (users, permissions, parameters, policies), as in RabbitMQ.
"""

import logging
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

import msgspec

from leveret import __version__
from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    DefinitionsError,
    Group,
    MalformedError,
    Right,
    authorize,
)
from leveret.broker.administration.definitions_document import (
    SECTIONS,
    Document,
    Entry,
    NotJSONError,
    Reading,
    VHostMetadata,
    encoded,
    plain_arguments,
    read_document,
)
from leveret.broker.administration.definitions_import import RESERVED, Plan, Step
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.auth.users import User, Users, limits_by_name
from leveret.broker.errors import AMQPError
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.time_slices import at_once
from leveret.broker.vhost.parameters import Parameters
from leveret.broker.vhost.vhost import VHost
from leveret.exchanges.errors import ExchangeError

log = logging.getLogger("leveret.definitions")


class PartElsewhere(Protocol):
    """Imports a part of the definitions that this process does not have."""

    own: Reading  # the other part

    def checked(self, outcome: Outcome) -> Generator[Any, Any, None]:
        """Check it, and add to the outcome."""

    def imported(self) -> Generator[Any, Any, None]:
        """Import it, once the own part is."""


class DefinitionsAdministration(Group):
    """Export and import; `divide` is what divides an import, if not everything is in this process."""

    divide: Callable[[User | None, Reading, str], Generator[Any, Any, PartElsewhere]] | None = None

    def export_file(self, actor: User | None) -> bytes:
        """Return all definitions as RabbitMQ's JSON, but indented for readers and version control, at once."""
        return msgspec.json.format(encoded(at_once(self.exporting(actor))), indent=2) + b"\n"

    def exporting(self, actor: User | None, only: VHost | None = None) -> Generator[None, None, Document]:
        """Return the definitions in RabbitMQ's form, one entry per step; of `only`, if given, what is in that vhost.

        What changes meanwhile is exported as it was at the first step, except bindings: those made or removed meanwhile
        may be included or not, if both their ends are.

        Omits what RabbitMQ omits: exclusive queues and their bindings, exchanges and queues whose names begin with
        `amq.`, and the bindings of the default exchange. Internal exchanges are included, as in the export of its API.
        """
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        document, directory = Document(**heading(self._broker)), self._broker.directory
        users, scope = directory.users, None if only is None else only.name
        vhosts = list(directory.vhosts.values()) if only is None else [only]
        exchanges = [list(vhost.router.exchanges.values()) for vhost in vhosts]
        queues = [
            [each for each in vhost.queues.values() if each.exclusive_owner is None] for vhost in vhosts
        ]
        policies = [policy for vhost in vhosts for policy in vhost.policies.list()]
        of_all: dict[str, Iterable[Entry | None]] = {
            "vhosts": (_vhost_entry(vhost, users) for vhost in vhosts),
            "users": (_user_entry(user, users) for user in users.all()),
            "permissions": (
                _entry("permissions", row, user=user, vhost=vhost)
                for user, vhost, row in users.permission_rows()
            ),
            "topic_permissions": (
                _entry(
                    "topic_permissions",
                    **dict(zip(("user", "vhost", "exchange", "write", "read"), row, strict=True)),
                )
                for row in users.topic_permission_rows()
            ),
            "global_parameters": (
                _entry("global_parameters", name=name, value=value)
                for name, value in directory.global_parameters.list().items()
            ),
        }
        sections: dict[str, Iterable[Entry | None]] = {
            **(of_all if only is None else {}),
            "parameters": (
                _entry("parameters", each) for each in Parameters(users, directory.vhosts).list(scope)
            ),
            "policies": (_entry("policies", each, definition=dict(each.definition)) for each in policies),
            "exchanges": (
                _entry("exchanges", each, vhost=vhost.name, arguments=plain_arguments(each.arguments))
                for vhost, found in zip(vhosts, exchanges, strict=True)
                for each in found
                if each.name and not each.name.startswith(RESERVED)
            ),
            "queues": (
                _entry("queues", each, arguments=plain_arguments(each.arguments))
                for each in chain.from_iterable(queues)
            ),
            "bindings": _bindings(
                vhosts, [{*each, *more} for each, more in zip(exchanges, queues, strict=True)]
            ),
        }
        for name, entries in sections.items():
            section = getattr(document, name)
            for entry in entries:
                if entry is not None:
                    section.append(entry)
                yield
        return document

    def import_file(
        self, actor: User | None, octets: bytes, *, dry_run: bool = False, on_unsupported: str = ""
    ) -> Outcome:
        """Import a definitions file at once, entirely or not at all; see `importing`."""
        return at_once(self.importing(actor, octets, dry_run=dry_run, on_unsupported=on_unsupported))

    def importing(
        self,
        actor: User | None,
        octets: bytes,
        vhost: str | None = None,
        *,
        dry_run: bool = False,
        on_unsupported: str = "",
    ) -> Generator[Any, Any, Outcome]:
        """Import a definitions file in steps, as a job beside clients that waits for the disk: `Turn.add_writing_job`.

        Nothing is changed before everything was checked. The changes are then committed in parts. With a vhost only
        what is in that vhost is imported (`read_document`). A dry run only finds out what would be done; invalid
        entries are then part of the outcome, and no error. `on_unsupported`: `refuse` or `skip` what cannot exist here,
        '' for what the configuration says. Raises MalformedError: the file is not a JSON object; BadRequestError:
        entries are invalid, or what they need was deleted meanwhile; the text names them.
        """
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        try:
            reading = yield from read_document(octets, vhost)
        except NotJSONError as error:
            raise MalformedError(str(error)) from None
        except DefinitionsError as error:
            raise BadRequestError(str(error)) from None
        on_unsupported = on_unsupported or self._broker.config.on_unsupported
        part = None if self.divide is None else (yield from self.divide(actor, reading, on_unsupported))
        plan = Plan(self._broker, reading if part is None else part.own, skips=on_unsupported == "skip")
        changes = yield from _planned(plan, keep=not dry_run)
        if part is not None:
            yield from part.checked(plan.outcome)
        if dry_run:
            return plan.outcome
        if plan.outcome.refused:
            raise BadRequestError(plan.outcome.error())
        for name in reading.unknown:
            log.warning("definitions: unknown key '%s' ignored", name)
        yield from self._log_skipped(plan.outcome)
        while changes:
            change = changes.popleft()
            try:
                change()
            except (KeyError, AMQPError, ExchangeError) as error:
                raise BadRequestError(
                    f"the broker was changed by others during the import: {error}"
                ) from None
            yield
        if part is not None:
            yield from part.imported()
        return plan.outcome

    def _log_skipped(self, outcome: Outcome) -> Iterator[None]:
        self._broker.directory.skipped += outcome.skipped_count
        for text in outcome.skipped:
            log.warning("definitions: left out: %s", text)
            yield
        if more := outcome.skipped_count - len(outcome.skipped):
            log.warning("definitions: left out: %d more", more)


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


# -- export -----------------------------------------------------------------------------------------------------------


def heading(broker: AdministeredBroker) -> dict[str, Any]:
    """Return the keys of an export that are not sections."""
    version = broker.config.compatibility.version
    return {
        "rabbit_version": version,
        "rabbitmq_version": version,
        "product_name": "Leveret",
        "product_version": __version__,
    }


def _entry(section: str, thing: Any = None, **given: Any) -> Entry:
    """Return an entry with these values, and for its other fields those of the thing, which has the same names."""
    form = SECTIONS[section]
    return form(
        **{name: getattr(thing, name) for name in form.__struct_fields__ if name not in given}, **given
    )


def _vhost_entry(vhost: VHost, users: Users) -> Entry:
    told = vhost.metadata._asdict() | {"tags": list(vhost.metadata.tags)}
    told["default_queue_type"] = told["default_queue_type"] or msgspec.UNSET
    is_protected = told.pop("protected_from_deletion") or msgspec.UNSET
    metadata = VHostMetadata(protected_from_deletion=is_protected, **told)
    limits = limits_by_name(users.vhost_limits(vhost.name))
    return _entry("vhosts", name=vhost.name, metadata=metadata, limits=limits, **told)


def _user_entry(user: User, users: Users) -> Entry:
    limits = limits_by_name(users.user_limits(user.name))
    return _entry("users", user, password=msgspec.UNSET, tags=list(user.tags), limits=limits)


def _bindings(vhosts: Sequence[VHost], ends: Sequence[Collection[object]]) -> Iterator[Entry | None]:
    """Yield the bindings between objects that are exported, and None for others, such as of exclusive queues."""
    for vhost, known in zip(vhosts, ends, strict=True):
        for source, destination, key, arguments in vhost.router.bindings():
            to: Any = destination
            if to not in known or vhost.router.exchanges.get(source) not in known:
                yield None
                continue
            yield _entry(
                "bindings",
                vhost=vhost.name,
                source=source,
                destination=to.name,
                destination_type="queue" if isinstance(to, Queue) else "exchange",
                routing_key=key,
                arguments=plain_arguments(arguments),
            )

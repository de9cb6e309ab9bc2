"""Export and import of the definitions of a whole broker.

Theory. An import first checks all entries, each against existing objects and the entries before it, and changes
something only if all are valid; the changes belong to one turn, so they are on disk together or not at all. Existing
objects are kept where the name alone does not identify all properties (exchanges, queues, bindings), and replaced where
it does (users, permissions, parameters, policies), as in RabbitMQ.
"""

import logging
from collections import deque
from collections.abc import Generator

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    DefinitionsError,
    MalformedError,
    Right,
    authorize,
)
from leveret.broker.administration.definitions_document import at_once, writing
from leveret.broker.administration.definitions_export import exporting
from leveret.broker.administration.definitions_import import Plan
from leveret.broker.administration.definitions_outcome import Outcome
from leveret.broker.administration.definitions_planned import Step
from leveret.broker.administration.definitions_reading import NotJSONError, read_document
from leveret.broker.auth.users import User
from leveret.broker.errors import AMQPError
from leveret.exchanges.errors import ExchangeError

log = logging.getLogger("leveret.definitions")


class DefinitionsAdministration:
    """Export and import. Every method takes the acting user first (`access.authorize`).

    Args:
        broker: the administered broker.

    """

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

"""Export and import of the definitions of a whole broker.

Theory. An import first checks all entries, each against existing objects and the entries before it, and changes
something only if all are valid; the changes belong to one turn, so they are on disk together or not at all. Existing
objects are kept where the name alone does not identify all properties (exchanges, queues, bindings), and replaced where
it does (users, permissions, parameters, policies), as in RabbitMQ.
"""

import logging
from collections.abc import Generator, Iterator

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    MalformedError,
    Right,
    authorize,
)
from leveret.broker.administration.definitions_document import (
    SECTIONS,
    DefinitionsError,
    Document,
    NotJSONError,
    at_once,
    read_document,
    writing,
)
from leveret.broker.administration.definitions_export import exporting
from leveret.broker.administration.definitions_import import Plan
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

    def import_file(self, actor: User | None, octets: bytes) -> str:
        """Import a definitions file at once, entirely or not at all.

        Returns:
            A short summary of its contents.

        Raises:
            BadRequestError: an entry is invalid; the text names it.

        """
        return at_once(self.importing(actor, octets))

    def importing(
        self, actor: User | None, octets: bytes, vhost: str | None = None
    ) -> Generator[None, None, str]:
        """Import a definitions file in steps, as a job beside clients that waits for the disk: `Turn.add_writing_job`.

        Nothing is changed before everything was checked. The changes are then committed in parts.

        Args:
            actor: the acting user.
            octets: the file.
            vhost: import into this vhost only (see `read_document`).

        Returns:
            A short summary of its contents.

        Raises:
            MalformedError: the file is not a JSON object.
            BadRequestError: an entry is invalid, or what it needs was deleted meanwhile; the text names the entry.

        """
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        try:
            document, unknown = yield from read_document(octets, vhost)
        except NotJSONError as error:
            raise MalformedError(str(error)) from None
        except DefinitionsError as error:
            raise BadRequestError(str(error)) from None
        for name in unknown:
            log.warning("definitions: unknown key '%s' ignored", name)
        yield from self._importing(actor, document)
        counts = [(len(getattr(document, section)), section) for section in SECTIONS]
        return ", ".join(f"{count} {name.replace('_', ' ')}" for count, name in counts if count) or "nothing"

    def import_document(self, actor: User | None, document: Document) -> None:
        """Import definitions, entirely or not at all; raises BadRequestError."""
        at_once(self._importing(actor, document))

    def _importing(self, actor: User | None, document: Document) -> Iterator[None]:
        authorize(self._broker.users, actor, Right.ADMINISTRATOR)
        changes = []
        for change in Plan(self._broker, document).changes():
            changes.append(change)
            yield
        for change in changes:
            try:
                change()
            except (KeyError, AMQPError, ExchangeError) as error:
                raise BadRequestError(
                    f"the broker was changed by others during the import: {error}"
                ) from None
            yield

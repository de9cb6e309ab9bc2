"""Definitions of a whole broker: exporting what there is, importing what a file says.

Theory. An import looks at everything first, each entry against what exists and what the entries before it would make,
and changes something only when nothing is wrong; the changes are one turn's, so that they are on disk together or not
at all. What exists already is left as it is where two of the kind cannot be told apart by name alone (exchanges,
queues, bindings), and replaced where a name says it all (users, rights, parameters, policies), as in RabbitMQ.
"""

import logging
from collections.abc import Generator, Iterator
from typing import TypeVar

from leveret.broker.administration.access import BadRequestError, Right, Site, authorize
from leveret.broker.administration.definitions_document import (
    SECTIONS,
    DefinitionsError,
    Document,
    read_document,
    write_document,
)
from leveret.broker.administration.definitions_export import exported
from leveret.broker.administration.definitions_import import Plan
from leveret.broker.auth.users import User

log = logging.getLogger("leveret.definitions")
T = TypeVar("T")


class DefinitionsAdministration:
    """Export and import. Every method takes who asks first (`access.authorize`).

    Args:
        site: the broker.

    """

    def __init__(self, site: Site) -> None:
        self._site = site

    def export_file(self, actor: User | None) -> bytes:
        """All definitions as JSON."""
        authorize(self._site.users, actor, Right.ADMINISTRATOR)
        return write_document(exported(self._site))

    def import_file(self, actor: User | None, octets: bytes) -> str:
        """Make what a definitions file says, or nothing of it, at once.

        Returns:
            What was in it, in a few words.

        Raises:
            BadRequestError: something in it cannot be; the text names the entry.

        """
        return _at_once(self.importing(actor, octets))

    def importing(self, actor: User | None, octets: bytes) -> Generator[None, None, str]:
        """Do the same a piece at a time, for a job beside clients: see `broker.scheduling.time_slices`.

        Nothing is changed before all of it was looked at. What is changed then is on disk in parts.
        """
        authorize(self._site.users, actor, Right.ADMINISTRATOR)
        try:
            document, unknown = yield from read_document(octets)
        except DefinitionsError as error:
            raise BadRequestError(str(error)) from None
        for name in unknown:
            log.warning("definitions: '%s' is nothing that is known here; ignored", name)
        yield from self._importing(actor, document)
        counts = [(len(getattr(document, section)), section) for section in SECTIONS]
        return ", ".join(f"{count} {name.replace('_', ' ')}" for count, name in counts if count) or "nothing"

    def import_document(self, actor: User | None, document: Document) -> None:
        """Make what definitions say, or nothing of it; raises BadRequestError."""
        _at_once(self._importing(actor, document))

    def _importing(self, actor: User | None, document: Document) -> Iterator[None]:
        authorize(self._site.users, actor, Right.ADMINISTRATOR)
        changes = []
        for change in Plan(self._site, document).changes():
            changes.append(change)
            yield
        for change in changes:
            change()
            yield


def _at_once(pieces: Generator[None, None, T] | Iterator[None]) -> T:
    """Carry out all pieces; returns what the last one says."""
    while True:
        try:
            next(pieces)
        except StopIteration as done:
            said: T = done.value
            return said

"""Definitions of a whole broker: exporting what there is, importing what a file says.

Theory. An import looks at everything first, each entry against what exists and what the entries before it would make,
and changes something only when nothing is wrong; the changes are one turn's, so that they are on disk together or not
at all. What exists already is left as it is where two of the kind cannot be told apart by name alone (exchanges,
queues, bindings), and replaced where a name says it all (users, rights, parameters, policies), as in RabbitMQ.
"""

import logging

from broker.administration.access import BadRequestError, Right, Site, authorize
from broker.administration.exporting import exported
from broker.administration.importing import Plan
from broker.auth import User
from broker.definitions_file import SECTIONS, DefinitionsError, Document, read_document, write_document

log = logging.getLogger("leveret.definitions")


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
        """Make what a definitions file says, or nothing of it.

        Returns:
            What was in it, in a few words.

        Raises:
            BadRequestError: something in it cannot be; the text names the entry.

        """
        authorize(self._site.users, actor, Right.ADMINISTRATOR)
        try:
            document, unknown = read_document(octets)
        except DefinitionsError as error:
            raise BadRequestError(str(error)) from None
        for name in unknown:
            log.warning("definitions: '%s' is nothing that is known here; ignored", name)
        self.import_document(actor, document)
        counts = [(len(getattr(document, section)), section) for section in SECTIONS]
        return ", ".join(f"{count} {name.replace('_', ' ')}" for count, name in counts if count) or "nothing"

    def import_document(self, actor: User | None, document: Document) -> None:
        """Make what definitions say, or nothing of it; raises BadRequestError."""
        authorize(self._site.users, actor, Right.ADMINISTRATOR)
        for step in Plan(self._site, document).steps():
            step()

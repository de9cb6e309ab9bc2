"""Ids that queues and exchanges know: looked up, and forgotten by an operator (`broker.queue.deduplication`)."""

from typing import Any, Literal

from leveret.broker.administration.access import BadRequestError, Group, entered, exchange_of, visible_vhosts
from leveret.broker.administration.detached_channel import check_permission
from leveret.broker.administration.messages import Steps, found_queue
from leveret.broker.auth.users import User
from leveret.broker.errors import resource
from leveret.broker.queue.deduplication import Deduplication
from leveret.broker.scheduling.time_slices import portions

STEP = 200  # queues that one step of a list looks at
Kind = Literal["queue", "exchange"]


class KnownIds(Group):
    """Ids that queues and exchanges know."""

    def listing(self, actor: User | None, vhost: str | None = None) -> Steps[list[dict[str, Any]]]:
        """Return the exchanges and queues that take each message once, of one vhost or of all that the actor may see.

        `ids` is the number of ids that are known; some of them may have expired. `repeated` counts dropped publishes.
        """
        places = visible_vhosts(self._broker, actor, vhost)
        rows = []
        for some in portions([queue for place in places for queue in place.queues.values()], STEP):
            known = [queue.ids for queue in some if queue.settings.deduplicate is not None]
            rows += [ids_row(ids) for ids in known if ids is not None]
            yield None
        return rows + [ids_row(ids) for place in places for ids in place.once.values()]

    def look(
        self, actor: User | None, vhost: str, name: str, text: str, kind: Kind = "queue"
    ) -> dict[str, Any]:
        """Return whether a queue or exchange knows an id, and until when (epoch ms); None: that depends on its message.

        Of a body the id is the SHA-256 in hexadecimal digits. Raises NotFoundError and ForbiddenError as for a client,
        BadRequestError if it takes all messages.
        """
        until = self._ids_of(actor, vhost, name, kind, "read").known_until(text)
        return {"id": text, "known": until is not None, "until": until or None}

    def forget(
        self, actor: User | None, vhost: str, name: str, text: str | None = None, kind: Kind = "queue"
    ) -> int:
        """Forget an id, or all ids, of what the user must be able to configure; raises as `look`.

        Returns the number of ids that were known, of all: at most. Messages stay.
        """
        ids = self._ids_of(actor, vhost, name, kind, "configure")
        return ids.forget_all() if text is None else int(ids.forget(text))

    def _ids_of(
        self, actor: User | None, vhost: str, name: str, kind: Kind, permission: str
    ) -> Deduplication:
        broker = self._broker
        if kind == "queue":
            place, queue = found_queue(broker, actor, vhost, name)
            ids = queue.ids
        else:
            place = entered(broker, actor, vhost, change=True)
            ids = place.once.get(exchange_of(place, name).name)
        check_permission(broker, actor, place, permission, kind, name)
        if ids is None or ids.settings.deduplicate is None:
            raise BadRequestError(f"{resource(kind, name, vhost)} has no x-deduplicate")
        return ids


def ids_row(ids: Deduplication) -> dict[str, Any]:
    """Return what a queue or exchange that takes each message once knows."""
    settings, owner = ids.settings, ids.owner
    return {
        "vhost": owner.vhost,
        "queue": owner.name if ids.kind == "queue" else "",
        "exchange": owner.name if ids.kind == "exchange" else "",
        "deduplicate": settings.deduplicate,
        "mode": settings.deduplicate_mode,
        "for": settings.deduplicate_for,
        "ids": ids.count,
        "repeated": owner.tally.repeated,
    }

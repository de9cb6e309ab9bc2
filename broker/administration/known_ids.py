"""Ids that queues know: looked up, and forgotten by an operator (`broker.queue.deduplication`)."""

from typing import Any

from leveret.broker.administration.access import BadRequestError, Group, visible_vhosts
from leveret.broker.administration.detached_channel import check_permission
from leveret.broker.administration.messages import Steps, found_queue
from leveret.broker.auth.users import User
from leveret.broker.errors import resource
from leveret.broker.queue.deduplication import Deduplication
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.time_slices import portions

STEP = 200  # queues that one step of a list looks at


class KnownIds(Group):
    """Ids that queues know."""

    def listing(self, actor: User | None, vhost: str | None = None) -> Steps[list[dict[str, Any]]]:
        """Return the queues that take each message once, of one vhost or of all that the actor may see.

        `ids` is the number of ids that are known; some of them may have expired. `repeated` counts dropped publishes.
        """
        places = visible_vhosts(self._broker, actor, vhost)
        rows = []
        for some in portions([queue for place in places for queue in place.queues.values()], STEP):
            rows += [ids_row(queue) for queue in some if queue.settings.deduplicate is not None]
            yield None
        return rows

    def look(self, actor: User | None, vhost: str, name: str, text: str) -> dict[str, Any]:
        """Return whether a queue knows an id, and until when (epoch ms); None: that depends on its message.

        Of a body the id is the SHA-256 in hexadecimal digits. Raises NotFoundError and ForbiddenError as for a client,
        BadRequestError if the queue takes all messages.
        """
        ids = _ids_of(found_queue(self._broker, actor, vhost, name)[1])
        until = ids.known_until(text)
        return {"id": text, "known": until is not None, "until": until or None}

    def forget(self, actor: User | None, vhost: str, name: str, text: str | None = None) -> int:
        """Forget an id, or all ids, of a queue, which the user must be able to configure; raises as `look`.

        Returns the number of ids that were known, of all: at most. Messages stay.
        """
        place, queue = found_queue(self._broker, actor, vhost, name)
        check_permission(self._broker, actor, place, "configure", "queue", name)
        ids = _ids_of(queue)
        return ids.forget_all() if text is None else int(ids.forget(text))


def _ids_of(queue: Queue) -> Deduplication:
    if queue.ids is None or queue.settings.deduplicate is None:
        raise BadRequestError(f"{resource('queue', queue.name, queue.vhost)} has no x-deduplicate")
    return queue.ids


def ids_row(queue: Queue) -> dict[str, Any]:
    """Return what a queue that takes each message once knows."""
    settings, ids = queue.settings, queue.ids
    return {
        "vhost": queue.vhost,
        "queue": queue.name,
        "deduplicate": settings.deduplicate,
        "mode": settings.deduplicate_mode,
        "for": settings.deduplicate_for,
        "ids": 0 if ids is None else ids.count,
        "repeated": queue.tally.repeated,
    }

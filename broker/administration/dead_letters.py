"""Queues that hold dead letters: their reasons, origins and ages."""

from collections import Counter
from typing import Any

from leveret.broker.administration.access import AdministeredBroker, visible_vhosts
from leveret.broker.administration.messages import Steps
from leveret.broker.auth.users import User
from leveret.broker.queue.queue import Queue
from leveret.broker.transfer.retry import Death, death_of, headers_of
from leveret.storage.queues.backing_queue import Piece

SAMPLE = 1000
"""Maximum number of messages of each queue that are looked at, from its head on."""
_PIECE = 32
"""Messages that are decoded between two checks of the time."""


def dead_letter_queues(
    broker: AdministeredBroker, actor: User | None, vhost: str | None = None
) -> Steps[list[dict[str, Any]]]:
    """Return the queues that hold dead letters or lost some in a cycle, of one vhost or of all that the actor may see.

    Returns:
        For each of them `vhost`, `queue`, its ready `messages`, how many were looked at (`examined`), and of these the
        numbers of dead letters (`dead_letters`) by their newest reason (`reasons`) and the queue in which they died
        (`origins`), and the times of the `oldest` and the `newest` death, in seconds since 1970; None if unknown.
        `cycled` is the number of messages that died in this queue and were dropped, as their dead letters would have
        returned to a queue in which they had died.

    """
    return _rows([queue for place in visible_vhosts(broker, actor, vhost) for queue in place.queues.values()])


def _rows(queues: list[Queue]) -> Steps[list[dict[str, Any]]]:
    rows = []
    for queue in queues:
        ready = queue.ready_count
        if queue.deleted or not (ready or queue.tally.cycled):
            continue
        examined, deaths = yield from _deaths(queue)
        if deaths or queue.tally.cycled:
            rows.append(_row(queue, ready, examined, deaths))
    return rows


def _deaths(queue: Queue) -> Steps[tuple[int, list[Death]]]:
    """Return how many messages were looked at, and the newest deaths of those that have any."""
    examined = 0
    deaths: list[Death] = []
    walk = queue.backing.walk()
    answer: Any = None
    while examined < SAMPLE:
        try:
            found = walk.send(answer)
        except StopIteration:
            break
        answer = None
        if not isinstance(found, Piece):
            answer = yield found
            continue
        for number, peeked in enumerate(found.messages, 1):
            examined += 1
            death = death_of(headers_of(peeked.message))
            if death is not None and death.queue != queue.name:  # it is back, after a retry
                deaths.append(death)
            if not number % _PIECE:
                yield None
        yield None
    return examined, deaths


def _row(queue: Queue, ready: int, examined: int, deaths: list[Death]) -> dict[str, Any]:
    times = [death.time for death in deaths if death.time is not None]
    return {
        "vhost": queue.vhost,
        "queue": queue.name,
        "messages": ready,
        "examined": examined,
        "dead_letters": len(deaths),
        "reasons": dict(Counter(death.reason for death in deaths).most_common()),
        "origins": dict(Counter(death.queue for death in deaths).most_common()),
        "oldest": min(times, default=None),
        "newest": max(times, default=None),
        "cycled": queue.tally.cycled,
    }

"""The health of a queue: the one judgement that the page, `leveret top`, explanations, metrics and alerts show.

Theory. Counters and settings tell most of it at once; what needs time (growth, consumers that are stuck) comes from
the samples, so that a single slow moment is no trouble. A queue without a consumer is as it should be if its messages
are meant to wait: those of a delay or retry queue expire and go on by the dead letter exchange. Dead letters wait for a
person, not for a worker.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from leveret.broker.connection.flow_control import Pause
from leveret.broker.connection.state import FLOW_SECONDS
from leveret.broker.queue.arguments import STREAM
from leveret.broker.queue.queue import Queue
from leveret.broker.statistics import families
from leveret.broker.transfer.retry import headers_of

if TYPE_CHECKING:
    from leveret.broker.statistics.statistics import Statistics

OK: Final = "ok"
WARNING: Final = "warning"
CRITICAL: Final = "critical"
GROWTH_SECONDS = 15  # time over which a queue must have become longer to be one that grows
STUCK_SECONDS = 60  # time without a delivery or an ack after which consumers that hold messages are stuck
GROWTH, GROWTH_SHARE = 0.5, 0.05  # messages a second, and share of the arrivals, from which a queue grows
READS_PER_DELIVERED = 2  # messages read back from disk for each delivered one, beyond which it thrashes
LEAST_READS = 1000


class Reason(NamedTuple):
    """Something that is wrong with a queue: how bad it is (`WARNING`, `CRITICAL`), what it is, what to do."""

    state: str
    reason: str
    advice: str


NO_CONSUMER: Final = Reason(
    CRITICAL, "no consumer", "Nobody takes these messages: is the worker running, and does it consume from this queue?"
)  # fmt: skip
GROWING: Final = NO_CONSUMER._replace(reason="growing, no consumer")
UNCONFIRMED: Final = Reason(
    CRITICAL,
    "publishers wait for a consumer",
    "Acks of consumers confirm what is published here, and there is no consumer: start the worker.",
)
STUCK: Final = Reason(
    CRITICAL,
    "consumers stuck",
    "Consumers hold unacknowledged messages, and have neither taken nor acknowledged one for a minute: they have "
    "crashed in the middle, wait for something else, or never acknowledge.",
)
DEAD_LETTERS: Final = Reason(
    CRITICAL,
    "dead letters",
    "See why they died under Dead letters, fix the cause, then retry them.",
)
FULL: Final = Reason(
    CRITICAL, "full", "The queue refuses publishes: it has reached its maximum length. Add consumers, or raise it."
)  # fmt: skip
SLOW: Final = Reason(
    WARNING,
    "consumers not keeping up",
    "More comes in than is acknowledged: add consumers, or see what they wait for.",
)
UNREAD: Final = Reason(
    WARNING,
    "expires unread",
    "Messages are deleted when their time to live is over, and nobody takes them before: start a worker, or set a dead "
    "letter exchange.",
)
THRASHING: Final = Reason(
    WARNING,
    "thrashing",
    "Messages are read from disk several times before they are delivered: memory is short, or the prefetch counts of "
    "consumers are high.",
)
PAUSED: Final = Reason(WARNING, "paused", "Consumers get nothing before the queue is resumed.")
SLOWED: Final = Reason(WARNING, "publishers slowed down", "The queue cannot take more at this rate.")
_deliveries = families.QUEUES.reader("deliver_get")
_acks = families.QUEUES.reader("ack")
_published = families.QUEUES.reader("publish")
_messages = families.QUEUES.reader("messages")


def health(queue: Queue, statistics: "Statistics", now: float) -> tuple[Reason, ...]:
    """Return what is wrong with a queue, the worst first; () if nothing is. `now` is in seconds of the loop's clock."""
    found = tuple(_reasons(queue, statistics, now))
    if len(found) < 2:  # noqa: PLR2004 - nothing to sort
        return found
    return tuple(sorted(found, key=lambda each: each.state != CRITICAL))


def shown(reasons: tuple[Reason, ...]) -> dict[str, Any]:
    """Return a judgement as the API has it: the state, reason and advice of the worst, and the others."""
    worst = reasons[0] if reasons else Reason(OK, "", "")
    return {**worst._asdict(), "others": [each._asdict() for each in reasons[1:]]}


def _reasons(queue: Queue, statistics: "Statistics", now: float) -> Iterator[Reason]:
    state = queue_state(queue, now)
    if state == "flow":
        yield SLOWED
    if lacks_acks(queue):
        yield UNCONFIRMED
    if not queue.backing.ready_count:
        return
    if state == "paused":
        yield PAUSED
    elif queue.consumer_count:
        yield from _of_consumers(queue, statistics)
    elif not lacks_acks(queue):
        yield from _without_consumer(queue, statistics)
    if queue.settings.rejects and refusal(queue):
        yield FULL
    if reads_per_delivered(queue, LEAST_READS) > READS_PER_DELIVERED:
        yield THRASHING


def _of_consumers(queue: Queue, statistics: "Statistics") -> Iterator[Reason]:
    if _is_stuck(queue, statistics):
        yield STUCK
    if queue.type != STREAM and _grows(queue, statistics):
        yield SLOW


def _without_consumer(queue: Queue, statistics: "Statistics") -> Iterator[Reason]:
    if queue.type == STREAM:
        return
    if needs_consumer(queue):
        yield GROWING if _grows(queue, statistics) else NO_CONSUMER
    elif not _delays(queue):
        yield DEAD_LETTERS if holds_dead_letters(queue) else UNREAD


def queue_state(queue: Queue, now: float) -> str:
    """Return the state of a queue: `paused` by an operator, `flow` if publishers are slowed down, or `running`."""
    if queue.is_paused:
        return "paused"
    if now - queue.publishers_paused_at < FLOW_SECONDS:
        return "flow"
    return "flow" if any(isinstance(each, Pause) for each in queue.run_listeners) else "running"


def lacks_acks(queue: Queue) -> bool:
    """Return whether publishes wait for the acks of a queue's consumers, and it has none."""
    return queue.awaiting is not None and queue.awaiting.open_count > 0 and not queue.consumer_count


def is_unserved(queue: Queue) -> bool:
    """Return whether messages wait in a queue for a consumer that is not there."""
    return queue.backing.ready_count > 0 and not queue.is_paused and needs_consumer(queue)


def needs_consumer(queue: Queue) -> bool:
    """Return whether a queue lacks a consumer: it has none, and its messages are not meant to wait or to expire."""
    if (
        queue.consumer_count
        or queue.type == STREAM
        or queue.settings.message_ttl is not None
        or _delays(queue)
    ):
        return False
    return not holds_dead_letters(queue)


def _delays(queue: Queue) -> bool:
    """Return whether messages go on by the dead letter exchange when they expire, as those of a retry queue."""
    settings = queue.settings
    return settings.dead_letter_exchange is not None and (
        settings.message_ttl is not None or queue.tally.expired > 0
    )


def holds_dead_letters(queue: Queue) -> bool:
    """Return whether most of a queue's messages have died elsewhere, as far as its head and its counters tell.

    One that came back to the queue in which it died first, as by a retry, is not there as a dead letter.
    """
    head = queue.backing.head_message()
    if head is None:
        return 2 * queue.tally.forwarded > queue.published
    if b"x-death" not in head.header:
        return False
    origin = headers_of(head).get("x-first-death-queue")
    return isinstance(origin, str) and origin != queue.name


def _grows(queue: Queue, statistics: "Statistics") -> bool:
    then = statistics.past(queue, GROWTH_SECONDS, families.QUEUES)
    if then is None:
        return False
    now = families.QUEUES.read(queue)
    grown = _messages(now) - _messages(then)
    return grown > max(GROWTH * GROWTH_SECONDS, GROWTH_SHARE * (_published(now) - _published(then)))


def _is_stuck(queue: Queue, statistics: "Statistics") -> bool:
    if not queue.backing.unacked_count:
        return False
    then = statistics.past(queue, STUCK_SECONDS, families.QUEUES)
    if then is None:
        return False
    now = families.QUEUES.read(queue)
    return _deliveries(now) == _deliveries(then) and _acks(now) == _acks(then)


def refusal(queue: Queue) -> str:
    """Return why a queue would refuse a message of one byte, or drop another one for it; '' if it would not."""
    settings = queue.settings
    ready = queue.ready_count
    octets = 0 if queue.limits is None else queue.limits.octets
    for there, most, unit in (
        (ready, settings.max_length, "messages"),
        (octets, settings.max_octets, "bytes"),
    ):
        if most is not None and there >= most:
            effect = " and rejects publishes" if settings.rejects else ": its oldest message is dropped"
            return f"it is full ({there} of {most} {unit}){effect}"
    return ""


def reads_per_delivered(queue: Queue, least: int = 0) -> float:
    """Return how often messages were read from disk for each that was delivered; 0 for less than `least` reads."""
    reads = queue.backing.paging_counts().transitions.get("from_delta", 0)
    return reads / queue.delivered if queue.delivered and reads >= least else 0.0

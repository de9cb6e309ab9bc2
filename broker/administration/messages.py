"""Messages: what is in a queue, or delayed at an exchange, without taking any of it.

A look is an operation in steps (`Steps`): it begins at once, and goes on in pieces, between which others are served. A
step may need a read from disk, which only the caller can run in a thread.

Theory. A queue may have millions of messages, and a condition that few of them meet has to see all. So a peek is a walk
in portions (`storage.queues.peek`), which keeps the messages that it has found and no others, and of their bodies a
bounded part. Each portion shows its own moment: to show a whole queue at one moment, `peek_queue` copies its lists.
Ready messages come first, then the unacked ones, whose channels are searched only for those that were found, then the
delayed ones that would be routed to the queue now; those that it holds before these.
"""

import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import partial
from math import inf
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, cast

import msgspec

from leveret.broker.administration.access import (
    AdministeredBroker,
    BadRequestError,
    Group,
    NotFoundError,
    as_client_errors,
    entered,
    exchange_of,
    queue_of,
)
from leveret.broker.administration.detached_channel import check_permission
from leveret.broker.auth.users import User
from leveret.broker.channel.channel import Channel
from leveret.broker.message_filter.message_facts import MessageFacts
from leveret.broker.queue.delivery_limit import count_headers
from leveret.broker.queue.due_line import DueLine, Pieces
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.time_slices import at_once
from leveret.broker.vhost.delay_line import DelayLine
from leveret.broker.vhost.vhost import VHost
from leveret.storage.delayed import Due
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Look, Peeked

if TYPE_CHECKING:
    from leveret.broker.message_filter.message_filter import MessageFilter

T = TypeVar("T")
Steps = Generator[Callable[[], Any] | None, Any, T]
"""An operation in steps: it yields None after each, or a read to be run in a thread, whose result must be sent back."""

PIECE = 64  # messages that are decoded between two checks of the time


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message at the time of the call.

    Attributes:
        body: the body.
        properties: the properties that are set, by their AMQP names, without `headers`.
        headers: the headers as plain values.
        exchange: the exchange that it was published to; '' for the default exchange.
        routing_key: the routing key.
        redelivered: whether the next delivery of it will be marked as redelivered.
        deaths: the entries of `x-death` as plain values, the latest first; empty if it was never dead-lettered.
        state: 'ready'; 'unacked' if it was delivered and not settled yet; 'held' if its queue keeps it until its time;
            'delayed' if its exchange does;
            'published' in a record of what was published.
        consumer: tag of the consumer that has it; '' unless it is unacked by one.
        channel: the channel that has it, as `channels` are named; '' unless it is unacked by a client.
        expires: time at which it expires, in milliseconds since the epoch; None for never.
        due: time in milliseconds since the epoch until which it is held or delayed; None unless it is.
        queues: names of the queues that it was routed to; empty unless it is 'published'.
        size: bytes of its body, of which `body` may be the beginning only.
        number: its place among the ready messages, 1 for the next to be delivered; 0 if it is not known.
        age: seconds since it came to its queue; None if that is not known.
        unacked_for: seconds since it was delivered, within a second or two; None unless it is unacked by a client.
    """

    body: bytes
    properties: dict[str, Any]
    headers: dict[str, Any]
    exchange: str
    routing_key: str
    redelivered: bool = False
    deaths: list[dict[str, Any]] = []
    state: Literal["ready", "unacked", "held", "delayed", "published"] = "ready"
    consumer: str = ""
    channel: str = ""
    expires: int | None = None
    due: int | None = None
    queues: tuple[str, ...] = ()
    size: int = 0
    number: int = 0
    age: float | None = None
    unacked_for: float | None = None


State = Literal["ready", "unacked", "held", "delayed"]
STATES: Final[tuple[State, ...]] = ("ready", "unacked", "held", "delayed")

MOST_MESSAGES: Final = 1000  # maximum number of messages of each state that are returned
MOST_OCTETS: Final = 16 * 1024 * 1024
"""Bytes of headers and bodies after which a part of a search ends, with some 256 messages; maximum bytes of a body."""
BODY_OCTETS: Final = 64 * 1024  # bytes of each body that are returned unless the caller wants less or more
EFFORT: Final = 100_000  # messages that one request of a client may search: more take a few seconds
_PORTION = 256


class Wanted(NamedTuple):
    """Messages that are asked for."""

    most: int = 10  # maximum number of them for each state (1 to 1000)
    from_tail: bool = False  # True to begin with the newest
    where: str = ""  # condition that they meet (`broker.message_filter`); '' for all
    octets: int = BODY_OCTETS  # maximum bytes of each body
    skip: int = 0  # number of messages of each state that are passed over first
    states: tuple[State, ...] = STATES  # the states of messages that are returned
    after: str = ""  # `Found.following` of the part of a search before; '' for the first one
    effort: int | None = None  # messages after which a part of a search ends (`MOST_OCTETS`); None for no end


SOME: Final = Wanted()


class Found(NamedTuple):
    """The result of a search, or of a part of it, that has considered so many messages.

    `following` is where the next part begins, '' if there is none; `is_complete` is false if there were more delayed
    messages than could be considered or returned.
    """

    messages: list[MessageView]
    searched: int
    following: str
    is_complete: bool


class MessageAdministration(Group):
    """Messages."""

    def peek_queue(
        self, actor: User | None, vhost: str, name: str, most: int | None = None
    ) -> Steps[list[MessageView]]:
        """Look at the messages of a queue at one moment; the user needs the permission to read it.

        Returns the ready messages from the head on (at most `most`), in the order in which they will be delivered; then
        the unacked ones in the order of the queue; then those it holds; then those delayed in this vhost that would be
        routed to it now.
        Raises NotFoundError and ForbiddenError as for a client.
        """
        place, queue = found_queue(self._broker, actor, vhost, name)
        queue.settle()
        return _Look(self._broker, place, queue, Wanted(octets=sys.maxsize)).whole(most)

    def peek_delayed(self, actor: User | None, vhost: str, name: str) -> Steps[list[MessageView]]:
        """Look at the messages that an exchange delays, in the order in which they are due; raises as `peek_queue`."""
        place = entered(self._broker, actor, vhost, change=True)
        exchange = exchange_of(place, name)
        check_permission(self._broker, actor, place, "read", "exchange", name)
        return _delayed(exchange.line.pieces([]) if isinstance(exchange.line, DelayLine) else ())

    def peek(self, actor: User | None, vhost: str, name: str, wanted: Wanted = SOME) -> Steps[Found]:
        """Look at messages of a queue; the user needs the permission to read it.

        Order, marks of redelivery, counts and memory of the queue stay as they are. Returns the ready messages in the
        order of delivery, then the unacked ones in the order of the queue, then the delayed ones in the order in which
        they are due; each from the tail if that is wanted. Raises NotFoundError and ForbiddenError as for a client, and
        BadRequestError if the condition or a number is invalid.
        """
        place, queue = found_queue(self._broker, actor, vhost, name)
        condition = condition_of(wanted.where)
        if not 0 < wanted.most <= MOST_MESSAGES:
            raise BadRequestError(f"count must be from 1 to {MOST_MESSAGES}")
        if not 0 <= wanted.octets <= MOST_OCTETS:
            raise BadRequestError(f"truncate must be from 0 to {MOST_OCTETS} bytes")
        place_before = _Place.parsed(wanted.after) if wanted.after else None
        queue.settle()
        return _Look(self._broker, place, queue, wanted, condition, place_before).steps()


def channels_of(broker: AdministeredBroker, vhost: VHost) -> Iterator[tuple[Channel, str]]:
    """Yield the channels in a vhost with their names."""
    for connection in list(broker.clients.connections):
        if connection.vhost is vhost:
            for channel in list(connection.channels.values()):
                yield channel, f"{connection.name} ({channel.number})"


def found_queue(broker: AdministeredBroker, actor: User | None, vhost: str, name: str) -> tuple[VHost, Queue]:
    """Return a queue whose messages a user may read; raises NotFoundError, ForbiddenError as a client's."""
    place = entered(broker, actor, vhost, change=True)
    queue = queue_of(place, name)
    check_permission(broker, actor, place, "read", "queue", name)
    if actor is not None:
        with as_client_errors():  # it may be exclusive to a connection
            place.check_access(queue, None)
    return place, queue


def next_piece(pieces: Generator[Any, Any, object]) -> Steps[Any]:
    """Return the next piece of messages that a walk yields, None at its end; what it needs is passed on."""
    answer: Any = None
    while True:
        try:
            piece = pieces.send(answer)
        except StopIteration:
            return None
        if piece is not None and not callable(piece):
            return piece
        answer = yield piece


def _goes_to(queue: Queue, line: DueLine, message: Message) -> bool:
    return not isinstance(line, DelayLine) or queue in line.destinations(message)


def _delayed(
    pieces: "Pieces | tuple[()]",
    wants: Callable[[Message], bool] = lambda _message: True,
    state: Literal["held", "delayed"] = "delayed",
) -> Steps[list[MessageView]]:
    found: list[MessageView] = []
    while pieces and (piece := (yield from next_piece(pieces))) is not None:
        for number, (due, message) in enumerate(piece, 1):
            if wants(message):
                found.append(view_of(message, state=state, due=due[0]))
            if not number % PIECE:
                yield None
    return found


def view_of(
    message: Message, *, counts: Mapping[str, int] | None = None, octets: int | None = None, **attributes: Any
) -> MessageView:
    """Return what a message contains, with further attributes of the view.

    `counts` are headers that consumers will get beside its own (`count_headers`); `octets` is the maximum of its body.
    """
    facts = MessageFacts(message, counts=counts or {})
    return MessageView(
        body=message.body if octets is None else facts.beginning(octets),
        properties=facts.properties,
        headers=facts.headers,
        exchange=facts.exchange,
        routing_key=facts.routing_key,
        deaths=facts.deaths,
        size=facts.size,
        **attributes,
    )


class _Place(NamedTuple):
    """A place in a search: the position of the message considered last, the next number, and how many were found."""

    state: State
    position: int
    number: int
    found: int = 0

    @classmethod
    def parsed(cls, text: str) -> "_Place":
        """Return the place that `str` has written; raises BadRequestError."""
        try:
            state, position, number, found = text.split(".")
            if state in {"ready", "unacked"} and len(text) < 80:  # noqa: PLR2004 - more than any place has
                return cls(cast("State", state), int(position), int(number), max(0, int(found)))
        except ValueError:
            pass
        raise BadRequestError("'after' is not a value that a search has returned")

    def __str__(self) -> str:
        return f"{self.state}.{self.position}.{self.number}.{self.found}"


def condition_of(where: str) -> "MessageFilter":
    """Parse a condition; raises BadRequestError with the column of its first mistake."""
    from leveret.broker.message_filter.message_filter import (  # noqa: PLC0415 - few programs have conditions
        FilterError,
        MessageFilter,
    )

    try:
        return MessageFilter(where)
    except FilterError as error:
        raise BadRequestError(f"where: {error}") from None


def facts_of(queue: Queue, peeked: Peeked, now: float, wall: int) -> MessageFacts:
    """Return a message of a queue as conditions see it, at `now` (seconds) and `wall` (ms since the epoch)."""
    came = queue.backing.came_before(peeked.seq_id)
    held = None if came is None else max(0.0, now - came)
    if peeked.came:
        held = max(0, wall - peeked.came) / 1000
    counts = delivery_counts(queue, peeked)
    waits = queue.waiting.get(peeked.seq_id)
    due = None if waits is None else waits[0]
    return MessageFacts(
        peeked.message, redelivered=peeked.redelivered, held=held, now=wall, due=due, counts=counts
    )


def delivery_counts(queue: Queue, peeked: Peeked) -> Mapping[str, int]:
    """Return the headers that say how often a message was requeued, if its queue counts that."""
    known = queue.limits is not None and queue.limits.deliveries.count(peeked.seq_id)
    return _count_headers(queue, known or peeked.returns)


def _count_headers(queue: Queue, count: int) -> Mapping[str, int]:
    tells_failures = queue.limits is not None and queue.limits.deliveries.tells_failures
    return count_headers(count, tells_failures=tells_failures)


class _Look:
    def __init__(
        self,
        broker: AdministeredBroker,
        place: VHost,
        queue: Queue,
        wanted: Wanted,
        condition: "MessageFilter | None" = None,
        before: _Place | None = None,
    ) -> None:
        self._broker = broker
        self._vhost = place
        self._queue = queue
        self._wanted = wanted
        self._matches = condition.matches if condition else lambda _message: True
        self._now = broker.now()
        self._wall = broker.wall_clock()
        self._before = before
        self._following: _Place | None = None
        self._searched = 0
        self._is_complete = True
        self._portion = _PORTION if condition else min(_PORTION, wanted.skip + wanted.most)
        self._skip = 0  # messages of the current state that are still to be passed over
        self._room = inf if wanted.effort is None else MOST_OCTETS
        """Bytes of headers and bodies that may still be returned; unlimited if the effort is."""

    def whole(self, most: int | None) -> Steps[list[MessageView]]:
        """Return all messages as they are now, of the ready ones at most so many."""
        queue, snapshots = self._queue, list[Any]()
        counts = {} if queue.limits is None else queue.limits.deliveries.counts()
        holders = at_once(self._holders(set(queue.backing.unacked_ids())))
        for seq_id, due in queue.waiting.items():
            holders[seq_id] = {"state": "held", "due": due[0]}
        lines: list[DueLine] = [*([queue.hold] if queue.hold else ()), *self._vhost.delay_lines()]
        later = [(line, line.pieces(snapshots)) for line in lines if line.count]
        return self._whole(queue.backing.peek(most), counts, holders, later)

    def _whole(
        self,
        peeking: Steps[Look],
        counts: Mapping[int, int],
        known: Mapping[int, dict[str, Any]],
        lines: Iterable[tuple[DueLine, Pieces]],
    ) -> Steps[list[MessageView]]:
        found: list[MessageView] = []
        look = yield from peeking
        for messages, state in ((look.ready, "ready"), (look.unacked, "unacked")):
            for number, peeked in enumerate(messages, 1):
                headers = _count_headers(self._queue, counts.get(peeked.seq_id, 0) or peeked.returns)
                attributes = {"state": state, "counts": headers, **known.get(peeked.seq_id, {})}
                found.append(self._shown(peeked, number if state == "ready" else 0, **attributes))
                if not number % PIECE:
                    yield None
        for line, delayed in lines:
            kind: Literal["held", "delayed"] = "delayed" if isinstance(line, DelayLine) else "held"
            found += yield from _delayed(delayed, partial(_goes_to, self._queue, line), kind)
        return found

    def steps(self) -> Steps[Found]:
        found: list[MessageView] = []
        looks: Mapping[str, Callable[[], Steps[list[MessageView]]]] = {
            "ready": self._ready,
            "unacked": self._unacked,
            "held": self._held,
            "delayed": partial(self._due, "delayed", self._vhost.delay_lines()),
        }
        begin = 0 if self._before is None else STATES.index(self._before.state)
        for state in STATES[begin:]:
            if state in self._wanted.states and self._following is None:
                self._skip = self._wanted.skip
                found += yield from looks[state]()
        following = "" if self._following is None else str(self._following)
        return Found(found, self._searched, following, self._is_complete)

    def _place(self, state: State) -> _Place | None:
        before = self._before
        return before if before is not None and before.state == state else None

    @property
    def _is_spent(self) -> bool:
        effort = self._wanted.effort
        return self._room <= 0 or (effort is not None and self._searched >= effort)

    def _count(self, message: Message) -> None:
        self._room -= len(message.header) + min(message.body_size, self._wanted.octets)

    def _wants(self, facts: MessageFacts) -> bool:
        if not self._matches(facts):
            return False
        if self._skip:
            self._skip -= 1
            return False
        return True

    def _facts(self, peeked: Peeked) -> MessageFacts:
        return facts_of(self._queue, peeked, self._now, self._wall)

    def _ready(self) -> Steps[list[MessageView]]:
        found: list[MessageView] = []
        queue, backwards = self._queue, self._wanted.from_tail
        place = self._place("ready") or _Place("ready", 0, queue.backing.ready_count if backwards else 1)
        after, step = None if place is not self._before else place.position, -1 if backwards else 1
        number, most = place.number, self._wanted.most - place.found
        while most > 0:
            if queue.deleted:
                raise NotFoundError(f"queue '{queue.name}' was deleted")
            portion = yield from queue.backing.portion(self._portion, after, backwards=backwards)
            self._searched += len(portion.messages)
            for peeked in portion.messages:
                if self._wants(self._facts(peeked)):
                    found.append(self._shown(peeked, max(number, 0), state="ready"))
                    self._count(peeked.message)
                    if len(found) == most:
                        return found
                number += step
                yield None  # a condition may take some milliseconds
            if portion.at is None:
                return found
            after = portion.at
            if self._is_spent:
                self._following = _Place("ready", after, number, place.found + len(found))
                return found
            yield None
        return found

    def _unacked(self) -> Steps[list[MessageView]]:
        found: list[Peeked] = []
        backing, backwards = self._queue.backing, self._wanted.from_tail
        left = sorted(set(backing.unacked_ids()) - self._queue.waiting.keys(), reverse=backwards)
        before = 0
        if (place := self._place("unacked")) is not None:
            left = [each for each in left if (each < place.position if backwards else each > place.position)]
            before = place.found
        start, most = 0, self._wanted.most - before
        while start < len(left) and len(found) < most and not self._queue.deleted:
            portion = yield from backing.unacked_portion(left[start : start + self._portion])
            for peeked in portion.messages:
                if self._wants(self._facts(peeked)):
                    found.append(peeked)
                    self._count(peeked.message)
                yield None
            start += portion.at or len(left)
            self._searched += len(portion.messages)
            if self._is_spent and start < len(left):
                self._following = _Place("unacked", left[start - 1], 0, before + len(found))
                break
            yield None
        del found[most:]
        holders = yield from self._holders({each.seq_id for each in found})
        return [self._shown(each, state="unacked", **holders.get(each.seq_id, {})) for each in found]

    def _holders(self, wanted: set[Any]) -> Steps[dict[Any, dict[str, Any]]]:
        """Find the consumers and channels that have unacked messages, by the keys of these."""
        found: dict[Any, dict[str, Any]] = {}
        for channel, name in channels_of(self._broker, self._vhost) if wanted else ():
            for number, tag in enumerate(list(channel.unacked), 1):
                consumer, key = channel.unacked.get(tag, (None, None))
                if key in wanted and consumer is not None and consumer.queue is self._queue:
                    now = self._broker.time_source.now()
                    held = channel.ages.age(tag, now) if channel.ages is not None else None
                    found[key] = {
                        "consumer": getattr(consumer, "tag", ""),
                        "channel": name,
                        "unacked_for": held,
                    }
                    if len(found) == len(wanted):
                        return found
                if not number % 1024:
                    yield None
            yield None
        return found

    def _held(self) -> Steps[list[MessageView]]:
        """Show held messages and those that wait for a retry, each in the order of their times."""
        hold = self._queue.hold
        found = yield from self._due("held", () if hold is None else (hold,))
        waiting = sorted(self._queue.waiting.items(), key=itemgetter(1), reverse=self._wanted.from_tail)
        for seq_id, due in waiting[: EFFORT if self._wanted.effort else None]:
            if len(found) >= self._wanted.most or self._room <= 0:
                break
            portion = yield from self._queue.backing.unacked_portion([seq_id])
            for peeked in portion.messages:
                self._searched += 1
                if self._wants(self._facts(peeked)):
                    self._count(peeked.message)
                    found.append(self._shown(peeked, state="held", due=due[0]))
            yield None
        return found

    def _due(self, state: Literal["held", "delayed"], lines: Iterable[DueLine]) -> Steps[list[MessageView]]:
        found = yield from self._find_due([line for line in lines if line.count])
        views: list[MessageView] = []
        for due, message in _first(found, self._wanted.most, from_tail=self._wanted.from_tail):
            if self._room <= 0:
                self._is_complete = False
                break
            self._count(message)
            views.append(self._view(message, state=state, due=due[0]))
        return views

    def _find_due(self, lines: Iterable[DueLine]) -> Steps[list[tuple[Due, Message]]]:
        """Find the messages that are wanted and the times at which they are due; more than may be returned."""
        found: list[tuple[Due, Message]] = []
        snapshots: list[Any] = []
        count, from_tail = self._wanted.most, self._wanted.from_tail
        most = None if self._wanted.effort is None else self._searched + self._wanted.effort
        for line in lines:
            for_line = 0
            pieces = line.pieces(snapshots)
            while for_line < count or from_tail:
                if most is not None and self._searched >= most:
                    self._is_complete = False
                    break
                if (piece := (yield from next_piece(pieces))) is None:
                    break
                self._searched += len(piece)
                for due, message in piece:
                    facts = MessageFacts(message, now=self._wall, due=due[0])
                    if _goes_to(self._queue, line, message) and self._wants(facts):
                        found.append((due, message))
                        for_line += 1
                    yield None
                if from_tail and len(found) > 2 * count:
                    found = _first(found, count, from_tail=True)
                yield None
            pieces.close()
        return found

    def _shown(self, peeked: Peeked, number: int = 0, **attributes: Any) -> MessageView:
        attributes.setdefault("counts", delivery_counts(self._queue, peeked))
        return self._view(
            peeked.message,
            number=number,
            redelivered=peeked.redelivered,
            expires=peeked.expires or None,
            age=self._facts(peeked).age,
            **attributes,
        )

    def _view(self, message: Message, **attributes: Any) -> MessageView:
        return view_of(message, octets=self._wanted.octets, **attributes)


def _first(found: list[tuple[Due, Message]], count: int, *, from_tail: bool) -> list[tuple[Due, Message]]:
    """Return the first messages by the time at which they are due, or the last ones in reverse."""
    found.sort(key=itemgetter(0), reverse=from_tail)
    return found[:count]

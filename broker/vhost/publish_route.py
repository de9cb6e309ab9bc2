"""Publish routes: targets and checks cached per address and per kind of properties.

A `Route` is looked up by the bytes of the publish frame; it includes the outcome of the permission and existence
checks, so it is valid only until the vhost's topology or permissions change. `PropertyDemands` are looked up by the
bytes of the property list and hold what those properties require of the broker; most require nothing and have none.

Hot path: see docs/performance.md.
"""

from collections.abc import Sequence
from typing import Any

from leveret.broker.amqp.errors import HeadersTooLarge, InvalidExpiration, MalformedProperties
from leveret.broker.amqp.fastpath import split_address
from leveret.broker.amqp.properties import (
    FLAG_REPLY_TO,
    PERSISTENT_MODE,
    REPLY_TO,
    Properties,
    build,
    checked,
    flags,
    list_end,
    parse_expiration,
)
from leveret.broker.amqp.publishes import ASKS_SOMETHING
from leveret.broker.amqp.tables import Field, Table, strings
from leveret.broker.errors import AMQPError, ReplyCode, precondition_failed
from leveret.broker.queue.interfaces import ClientChannel
from leveret.broker.queue.queue import SMALL, Queue
from leveret.broker.vhost.copies import saved_among
from leveret.broker.vhost.firehose import Firehose
from leveret.broker.vhost.tail import ExchangeTap
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.confirm.modes import STANDARD
from leveret.confirm.promise import Promise
from leveret.exchanges.base import Exchange, Tally
from leveret.storage.message import Message, Persistent, Promised

UNKNOWN: Any = object()  # requirements that are not known yet
WIDE = 16  # queues per message from which a scan checks its time slice after each one


class Route:
    """The destination of publishes whose method frames are byte-identical.

    `plain` means that only the queues matter. The exchange needs no headers, and the channel is not transactional. A
    message that is mandatory or to be confirmed has at least one queue, and one step has time for all queues.
    `generation` is the router's when the route was computed. `error` is the error with which the publish fails once its
    content has arrived.

    Messages that need more than their bytes are created by `make`: those to be stored on disk and, if all queues
    confirm on consumer acks (`AwaitedRoute`), every message.

    `taps` get each publish; a route with some is not plain.
    """

    always_makes = False
    may_hold = False
    """True if runs of publishes may be put, though a single one needs more than its bytes."""

    __slots__ = (
        "address",
        "bits",
        "durable",
        "error",
        "exchange",
        "generation",
        "makes_all",
        "plain",
        "queues",
        "routing_key",
        "takes_runs",
        "tally",
        "taps",
        "wide",
    )

    def __init__(
        self,
        address: bytes,
        bits: int,
        exchange: Exchange | None,
        routing_key: str,
        queues: Sequence[Queue],
        *,
        plain: bool,
        generation: int,
        error: AMQPError | None = None,
    ) -> None:
        self.address = address
        self.exchange = exchange
        self.routing_key = routing_key
        self.queues = queues
        self.wide = len(queues) > WIDE  # True if a message goes to so many that it takes noticeable time
        self.takes_runs = plain or self.may_hold
        self.durable = saved_among(queues, persistent=True) if self.takes_runs else ()
        """If it takes runs: the queues that store persistent messages on disk."""
        self.makes_all = self.always_makes or (self.takes_runs and any(queue.saves_all for queue in queues))
        """True if `make` creates every message: all are promised, or some queue stores all of them on disk."""
        self.bits = bits
        self.plain = plain
        self.generation = generation
        self.error = error
        self.taps: tuple[Firehose | ExchangeTap, ...] = ()
        self.tally = Tally() if exchange is None else exchange.tally(len(queues), routing_key)
        """Counts the messages published by this route."""

    @property
    def mandatory(self) -> bool:
        """True if the message is returned when no queue matches."""
        return bool(self.bits & 1)

    @property
    def confirm_mode(self) -> str:
        """The confirm mode of the route: that of a queue which confirms on consumer acks, if there is one."""
        for queue in self.queues:
            if queue.awaits_consumers:
                return queue.settings.confirm_mode
        return STANDARD

    def put(self, channel: ClientChannel, messages: Sequence[Message], largest: int) -> None:
        """Put the next messages of a channel into the inboxes of its queues, count and number them.

        The route is plain; no other place fills inboxes from such a route. The call costs a run of messages nothing
        that can be measured, and a message that comes alone about 900 of some 25,000 instructions. `largest` is the
        size of the largest content, in bytes.
        """
        queues, count = self.queues, len(messages)
        for queue in queues:
            queue.inbox += messages
            if not queue.touched:
                queue.touched = True  # as `touch` does, whose call costs 27 ns a queue
                queue.turn.queues.append(queue)
            if largest > SMALL and largest > queue.largest:
                queue.largest = largest
        if not queues:
            channel.dropped += count
        channel.published += count
        self.tally.published += count
        if channel.confirms is not None:
            channel.number_publishes(self, count)

    def _published(self, channel: ClientChannel, count: int) -> None:
        """Count and number the next messages of a channel; `put` does it in place, as it is called for each run."""
        channel.published += count
        self.tally.published += count
        if channel.confirms is not None:
            channel.number_publishes(self, count)

    def make(self, channel: ClientChannel, contents: Sequence[bytes]) -> Sequence[Message]:
        """Create the next messages of the channel for the queues' inboxes; their confirms are withheld for now."""
        for queue in self.durable:
            queue.inbox_persistent = True
        address, number, confirms, copies = self.address, channel.number, channel.confirms, len(self.durable)
        if confirms is None:
            return [Persistent(address, content, number, None, 0, copies) for content in contents]
        seq_no = confirms.seq_no + 1
        confirms.hold(seq_no, len(contents))
        return [
            Persistent(address, content, number, confirms, confirm, copies)
            for confirm, content in enumerate(contents, seq_no)
        ]

    def make_one(self, channel: ClientChannel, content: bytes) -> Message:
        """Create a single message; see `make`, with which it takes 5.8 % more instructions (promised, 1,000 keys)."""
        durable = self.durable
        for queue in durable:
            queue.inbox_persistent = True
        confirms = channel.confirms
        if confirms is None:
            return Persistent(self.address, content, channel.number, None, 0, len(durable))
        seq_no = confirms.seq_no + 1
        confirms.held.add(seq_no)
        return Persistent(self.address, content, channel.number, confirms, seq_no, len(durable))


class AwaitedRoute(Route):
    """The route of a channel in confirm mode to queues that all confirm on consumer acks."""

    __slots__ = ()
    always_makes = True

    def make(self, channel: ClientChannel, contents: Sequence[bytes]) -> Sequence[Message]:
        """Create messages as any route does; none of them is written to disk."""
        address, number, copies = self.address, channel.number, len(self.queues)
        confirms: ChannelConfirms = channel.confirms  # type: ignore[assignment] # or it would have another route
        seq_no = confirms.seq_no + 1
        confirms.hold(seq_no, len(contents))
        return [
            Promised(address, content, number, Promise(confirms, confirm, copies))
            for confirm, content in enumerate(contents, seq_no)
        ]

    def make_one(self, channel: ClientChannel, content: bytes) -> Message:
        """Create a single message; see `make`."""
        confirms: ChannelConfirms = channel.confirms  # type: ignore[assignment] # or it would have another route
        seq_no = confirms.seq_no + 1
        confirms.held.add(seq_no)
        promise = Promise(confirms, seq_no, len(self.queues))
        return Promised(self.address, content, channel.number, promise)


class PropertyDemands:
    """The requirements of a property list: copies for CC and BCC, checks, a reply address.

    A user id that is the publisher's `user` requires nothing.
    """

    __slots__ = (
        "_invalid",
        "expiration",
        "extra_keys",
        "has_bcc",
        "headers",
        "persistent",
        "plain_route",
        "reply_to",
        "user_id",
    )

    def __init__(self, properties: Properties, user: str | None = None) -> None:
        self.headers: Table = properties.headers or {}
        self.persistent = properties.delivery_mode == PERSISTENT_MODE
        self.user_id = None if properties.user_id == user else properties.user_id
        self.reply_to = properties.reply_to == REPLY_TO
        self.extra_keys: tuple[str, ...] = ()
        self.has_bcc = "BCC" in self.headers
        self._invalid: list[AMQPError] = []
        text = self.expiration = properties.expiration
        if text is not None:
            try:
                self.expiration = str(parse_expiration(text))
            except InvalidExpiration as error:
                self._invalid.append(precondition_failed(f"invalid expiration '{text}': {error}"))
        for name in ("CC", "BCC"):
            field = self.headers.get(name)
            if field is not None:
                self._take_keys(name, field)
        self.plain_route = not (  # True if only a headers exchange uses these properties
            len(self.extra_keys)
            or self.has_bcc
            or len(self._invalid)
            or self.reply_to
            or self.user_id is not None
            or text is not None
        )

    def _take_keys(self, name: str, field: Field) -> None:
        kind, value = field
        if kind != "array" or not isinstance(value, list):
            reason = f'{{unacceptable_type_in_header,"{name}",{kind}}}'
            self._invalid.append(precondition_failed(f"invalid message: {reason}"))
            return
        self.extra_keys += strings(field)

    def validate(self, user: str, *, impersonator: bool) -> None:
        """Raise the first error that RabbitMQ would report: user-id, expiration, then CC and BCC."""
        if self.user_id is not None and self.user_id != user and not impersonator:
            text = f"user_id property set to '{self.user_id}' but authenticated user was '{user}'"
            raise precondition_failed(text)
        if self._invalid:
            raise self._invalid[0]

    def check_extra_keys(self, most: int) -> None:
        """Raise an error if CC and BCC have more keys than `limits.cc_keys`."""
        keys = len(self.extra_keys)
        if keys > most:
            raise precondition_failed(
                f"message has {keys} keys in CC and BCC, more than limits.cc_keys ({most})"
            )

    def keys(self, address: bytes) -> tuple[str, ...]:
        """Return all routing keys of a message: that of its address, then those in CC and BCC."""
        return split_address(address)[1], *self.extra_keys

    def without_bcc(self) -> Table:
        """Return the headers as consumers get them."""
        return {name: field for name, field in self.headers.items() if name != "BCC"}


PERSISTENT = PropertyDemands(Properties(build(0, delivery_mode=PERSISTENT_MODE)))
"""Shared by all messages whose properties require nothing but persistence."""
REQUEST = PropertyDemands(Properties(build(0, reply_to=REPLY_TO)))
PERSISTENT_REQUEST = PropertyDemands(Properties(build(0, reply_to=REPLY_TO, delivery_mode=PERSISTENT_MODE)))
"""Shared by all requests to be answered by direct reply-to that require nothing else."""


def inspect(payload: bytes, user: str | None = None) -> PropertyDemands | None:
    """Check the property list of a content header of a `user`; None if the properties require nothing of the broker.

    Raises AMQPError 541 (as RabbitMQ, whose decoder crashes) for a list that no consumer could decode, 406 for headers
    with too many levels or values.
    """
    try:
        present = flags(payload)
        if present & ASKS_SOMETHING & ~FLAG_REPLY_TO:
            return PropertyDemands(Properties(payload), user)
        properties = checked(payload)
        is_persistent = properties.delivery_mode == PERSISTENT_MODE
        is_request = properties.reply_to == REPLY_TO
    except HeadersTooLarge as error:
        raise precondition_failed(str(error)) from None
    except MalformedProperties:
        raise AMQPError(ReplyCode.INTERNAL_ERROR) from None
    if is_request:
        return PERSISTENT_REQUEST if is_persistent else REQUEST
    return PERSISTENT if is_persistent else None


def inspect_unique(data: bytes, at: int, end: int, word: int) -> PropertyDemands | None:
    """Check a property list in a frame without decoding it; `UNKNOWN` if a decoder has to judge it.

    The list begins at `at`, after its flags `word`, none of which is in `NEEDS_DECODER`, and ends at `end`. The result
    has no headers: it is for a plain route.
    """
    stop, mode = list_end(data, at, word)
    if stop != end:
        return UNKNOWN  # type: ignore[no-any-return]
    return PERSISTENT if mode == PERSISTENT_MODE else None

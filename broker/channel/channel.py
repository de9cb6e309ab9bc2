"""Channels: publish, ack, nack and reject, `basic.get`, confirms, transactions and closing.

Pure: frames are sent through the connection's outbox, errors are raised as `AMQPError`, which the connection turns into
a close method. For plain messages the connection's receive loop updates `unacked`, `published` and `confirms` directly;
everything else goes through the methods here.

Hot path: see docs/performance.md.
"""
# ruff: noqa: C901, PLR0912 - hot: one flat function is several times cheaper than small ones
# ruff: noqa: S101 - asserts state invariants for the type checker; no input is checked by them
# ruff: noqa: TRY301 - errors are raised and handled in the same function

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic
from leveret.broker.amqp.fastpath import (
    SPLIT_LIMIT,
    body_size_of,
    pack_confirm,
    pack_confirms,
    pack_get_ok,
    pack_return,
    reframe,
    reframed,
    split_address,
)
from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table
from leveret.broker.auth.permissions import Decision
from leveret.broker.channel.consumer_timeout import ConsumerTimeouts
from leveret.broker.channel.interfaces import FAILED, ChannelHost, Outcome, Record
from leveret.broker.channel.late_settlement import Receiver
from leveret.broker.channel.settlement import PIECE, Settlements, Suspension
from leveret.broker.channel.transaction import BodyFiles, Transaction, needs_file
from leveret.broker.counters.sampling import ConfirmTimes
from leveret.broker.counters.totals import ChannelCounts
from leveret.broker.errors import AMQPError, NotYet, ReplyCode, access_refused, precondition_failed, resource
from leveret.broker.queue.consumer import Consumer, GetRecipient
from leveret.broker.queue.id_source import MOST_HASHED
from leveret.broker.queue.interfaces import DelayDisk
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.copies import AT_ONCE, Copies, distribute, distribute_all
from leveret.broker.vhost.delay_line import DelayLine
from leveret.broker.vhost.direct_reply_to import REPLY_PREFIX, is_reply_address
from leveret.broker.vhost.exchange_ids import ExchangeIds
from leveret.broker.vhost.once_route import HoldRoute, OnceRoute, RejectRoute
from leveret.broker.vhost.publish_route import AwaitedRoute, PropertyDemands, Route
from leveret.confirm.channel_confirms import ChannelConfirms, ConfirmTimeouts
from leveret.exchanges.base import Envelope, Exchange
from leveret.exchanges.errors import TooManyHopsError
from leveret.storage.large_table import MANY, fitting
from leveret.storage.message import Message, Persistent

_FEW_CONSUMERS = 64
MANY_OPEN = 32  # open publishes of a channel from which on its confirms may wait for others


class Channel:
    """A channel of a connection."""

    __slots__ = (
        "_final_confirm_counts",
        "_keys_checked",
        "_preparing",
        "acked",
        "ages",
        "committing",
        "confirm_ages",
        "confirm_times",
        "confirms",
        "consumers",
        "delivered",
        "delivered_auto",
        "delivery_tag",
        "demands",
        "dropped",
        "frame_max",
        "generated_name",
        "get_empty",
        "global_prefetch",
        "got",
        "got_ack",
        "got_auto",
        "host",
        "last_queue",
        "missing",
        "number",
        "numbered",
        "outbox",
        "packed",
        "parts",
        "prefetch_count",
        "published",
        "redelivered",
        "reply_consumer",
        "returned",
        "route",
        "settlements",
        "tx",
        "unacked",
        "vhost",
    )

    consumer_class: type[Consumer] | None = None  # None: that of each queue
    gets_from_paused = False  # True if `get` takes messages of paused queues, too

    def __init__(self, number: int, host: ChannelHost) -> None:
        self.number = number
        self.host = host
        self.vhost = host.vhost
        self.outbox = host.outbox
        self.frame_max = host.frame_max or 1 << 62
        # consuming
        self.consumers: dict[str, Consumer] = {}
        self.got = 0  # number of unacked messages fetched by `basic.get`
        self.unacked: MutableMapping[int, Record] = {}
        self.delivery_tag = 0
        self.settlements = Settlements()
        self.ages: ConsumerTimeouts | None = None
        self.prefetch_count = 0
        self.global_prefetch = 0
        self.reply_consumer: Consumer | None = None
        # publishing
        self.confirms: ChannelConfirms | None = None
        self.confirm_ages: ConfirmTimeouts | None = None
        self.confirm_times = ConfirmTimes()
        self.numbered: Route | None = None  # route of the last publish of this turn with a sequence number
        self.tx: Transaction | None = None
        self.committing: Transaction | None = None
        """The transaction that is being committed; the connection executes nothing else meanwhile."""
        self.last_queue = ""
        self.generated_name = ""  # name of the queue being declared without one, if its method is repeated
        # the publish whose content is arriving
        self.route: Route | None = None
        self.demands: PropertyDemands | None = None
        self.parts: list[bytes | memoryview] = []
        self._keys_checked = 0  # keys in CC and BCC of the waiting publish whose permission is known
        self._preparing: tuple[bytes, Iterator[None]] | None = None
        """An address whose route takes long to find, and the remaining steps of finding it."""
        self.packed = 0  # number of parts that are joined already, or too large to be worth joining
        self.missing = 0  # octets of the body still missing; -1 while the content header is awaited
        # counters
        self.published = 0
        self.delivered = 0
        self.acked = 0
        self.returned = 0
        self.dropped = 0  # unroutable messages that were not mandatory
        self.got_ack = 0
        self.got_auto = 0
        self.get_empty = 0
        self.delivered_auto = 0  # deliveries with automatic acks to consumers that were cancelled
        self.redelivered = 0  # redeliveries by `basic.get`, and to consumers that were cancelled
        self._final_confirm_counts = (0, 0, 0)  # those at the end: numbers assigned, confirmed, nacked

    def counts(self) -> ChannelCounts:
        """Return the counters of the channel, open or closed; must be called between two turns."""
        confirms, consumers = self.confirms, self.consumers.values()
        if confirms is None:
            numbered, confirmed, nacked = self._final_confirm_counts
        else:
            numbered, confirmed, nacked = _confirm_counts(confirms)
        auto = self.delivered_auto + sum([each.delivered for each in consumers if each.no_ack])
        return ChannelCounts(
            published=self.published,
            numbered=numbered,
            confirmed=confirmed,
            nacked=nacked,
            returned=self.returned,
            dropped=self.dropped,
            delivered_ack=self.delivered - self.got_ack - self.got_auto - auto,
            delivered_auto=auto,
            got_ack=self.got_ack,
            got_auto=self.got_auto,
            get_empty=self.get_empty,
            redelivered=self.redelivered + sum([each.redelivered for each in consumers]),
            acked=self.acked,
        )

    def _add_counters(self, consumer: Consumer) -> None:
        """Add the counters of a consumer that is removed, and tell of it."""
        if consumer is not self.reply_consumer:
            self.vhost.context.tell("consumer_deleted", self.vhost.name, consumer.tag, consumer, self)
            self.record_consumer("consumer_removed", consumer)
        self.redelivered += consumer.redelivered
        if consumer.no_ack:
            self.delivered_auto += consumer.delivered

    def record_consumer(self, kind: str, consumer: Consumer) -> None:
        """Record for the export that a consumer came or went, and whose it was."""
        self.vhost.context.record(
            kind, self.vhost.name, consumer.queue.name, user=self.host.user.name, connection=self.host.name
        )

    def send(self, method: object) -> None:
        """Send a cold method on this channel."""
        self.outbox.send(encode_method(self.number, method))  # type: ignore[arg-type]

    def reply(self, method: object, *, durable: bool) -> None:
        """Send a `*-ok` method; if it is about something durable, wait for the commit."""
        if durable:
            self.reply_when_safe(method)
        else:
            self.send(method)

    def reply_when_safe(self, method: object, *, files: bool = False) -> None:
        """Send a `*-ok` method after the commit of what it is about; `files`: of bodies in files, too."""
        self.host.reply_when_safe(self.number, encode_method(self.number, method), files=files)  # type: ignore[arg-type]

    def reply_when_gone(self, queue: Queue, *methods: object) -> None:
        """Send methods when a deleted queue has ended and, if it was durable, its deletion is committed."""
        frames = b"".join([encode_method(self.number, method) for method in methods])  # type: ignore[arg-type]
        if queue.durable or not queue.finished:
            self.host.reply_when_safe(self.number, frames, after=queue.after_finish)
        else:
            self.outbox.send(frames)

    # -- permissions ------------------------------------------------------------------------------------------------

    def check_permission(self, kind: str, what: str, name: str) -> None:
        """Raise 403 unless the user has a permission (configure, write, read) for the named queue or exchange."""
        permissions = self.host.permissions
        if not permissions.check(kind, name, what):  # type: ignore[arg-type]
            shown = name or "amq.default"
            raise access_refused(
                f"{kind} access to {resource(what, shown, self.vhost.name)} refused for user '{self.host.user.name}'"
                f"{permissions.fault(kind, name, what)}"
            )

    def consume_refusal(
        self, consumer: Consumer, refused: Mapping[str, Decision] | None = None
    ) -> AMQPError | None:
        """Return the 403 that starting this consumer would now raise; `refused`: what backends have refused."""
        if self.consumers.get(consumer.tag) is not consumer or consumer is self.reply_consumer:
            return None
        if refused is not None:
            decision = refused.get(consumer.queue.name)
            if decision is None:
                return None
            what = resource("queue", consumer.queue.name, self.vhost.name)
            text = f"read access to {what} refused for user '{self.host.user.name}'{decision.fault}"
            return access_refused(text)
        try:
            self.check_permission("read", "queue", consumer.queue.name)
        except AMQPError as error:
            return error
        return None

    def check_passive(self, what: str, name: str) -> None:
        """Raise 403 unless the user has any permission for the named queue or exchange.

        RabbitMQ 4.2.7 (server pull request 16272): a passive declaration is refused to users without any permission;
        the text is that of a declaration. `compatibility.passive_declare = open` allows it to all users.
        """
        permissions = self.host.permissions
        if not (
            self.host.compatibility.passive_declare == "open"
            or permissions.check("read", name, what)
            or permissions.check("write", name, what)
        ):
            self.check_permission("configure", what, name)

    def check_topic_permission(self, kind: str, exchange: str, routing_key: str) -> None:
        """Raise 403 unless the user may use the routing key with a topic exchange."""
        topics = self.host.topic_permissions
        if not topics.check(exchange, kind, routing_key):  # type: ignore[arg-type]
            raise access_refused(
                f"{kind} access to topic '{routing_key}' in {resource('exchange', exchange, self.vhost.name)} "
                f"refused for user '{self.host.user.name}'{topics.fault(exchange, kind, routing_key)}"
            )

    # -- publishing -------------------------------------------------------------------------------------------------

    def is_prepared(self, address: bytes) -> bool:
        """Prepare an expensive `find_route` while the step has time; return whether it is prepared."""
        if not address[0]:
            return True  # the default exchange
        if self._preparing is None or self._preparing[0] != address:
            name, routing_key = split_address(address)
            exchange = self.vhost.router.get(name)
            if exchange is None:
                return True
            steps = exchange.prepare(routing_key)
            if steps is None:
                return True
            self._preparing = address, steps
        is_over = self.outbox.turn.slices.is_over
        for _ in self._preparing[1]:
            if is_over():
                return False
        self._preparing = None
        return True

    def find_route(self, address: bytes, bits: int) -> Route:
        """Find the route of a publish. Errors are kept in the route: they are raised when the content is complete."""
        exchange_name, routing_key = split_address(address)
        router = self.vhost.router
        now = router.generation
        try:
            if bits & 2:
                raise AMQPError(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
            self.check_permission("write", "exchange", exchange_name)
            exchange = self.vhost.exchange(exchange_name)
            exchange.lookups += 1
            if exchange.internal:
                name = resource("exchange", exchange_name, self.vhost.name)
                raise access_refused(f"cannot publish to internal {name}")
            if exchange.type == "topic" and self.host.topic_permissions:
                self.check_topic_permission("write", exchange_name, routing_key)
        except AMQPError as error:
            return Route(address, bits, None, routing_key, (), plain=False, generation=now, error=error)
        if router.needs_headers(exchange):
            route = Route(address, bits, exchange, routing_key, (), plain=False, generation=now)
            route.taps = self.vhost.taps.on(exchange)
            return route
        try:
            queues: Sequence[Queue] = router.route_key(exchange, routing_key)  # type: ignore[assignment]
        except TooManyHopsError as hops:
            refusal = _too_many_hops(hops)
            return Route(address, bits, None, routing_key, (), plain=False, generation=now, error=refusal)
        if not queues and not exchange_name and routing_key.startswith(REPLY_PREFIX):
            queues = self.vhost.reply_queues.reached_by(routing_key)
            if self.host.compatibility.mandatory_replies == "routed" and is_reply_address(routing_key):
                bits &= ~1
        # Queues that confirm on consumer ack need other message objects than the rest.
        is_wide = len(queues) > AT_ONCE
        waits = set() if self.confirms is None or is_wide else {queue.awaits_consumers for queue in queues}
        plain = (
            not is_wide
            and self.tx is None
            and bool(queues or (self.confirms is None and not bits & 1))
            and len(waits) < 2  # noqa: PLR2004 - one or none
            and not any(_may_drop(queue, is_mandatory=bool(bits & 1)) for queue in queues)
        )
        taps = self.vhost.taps.on(exchange)
        plain = plain and not taps and self.vhost.intercept is None
        once = self.vhost.once.get(exchange_name)
        if once is not None:  # what a queue may do to a message matters to its id
            takes_once = any(queue.settings.deduplicate is not None for queue in queues)
            plain = plain and bool(queues) and once.sifts and not (takes_once or bits & 1 or True in waits)
        kind: type[Route] = AwaitedRoute if waits == {True} else Route
        if plain:
            kind, plain = _sifting(kind, queues, once)
        route = kind(address, bits, exchange, routing_key, queues, plain=plain, generation=now)
        if isinstance(route, OnceRoute):
            route.ids = once
        route.taps = taps
        return route

    @property
    def unfinished(self) -> int:
        """Bytes kept of unfinished publishes: of an incomplete body, and of a transaction."""
        octets = 0 if self.tx is None else self.tx.octets
        if self.missing > 0 and self.parts:
            octets += body_size_of(bytes(self.parts[0])) - self.missing
        return octets

    def publish(self, route: Route, demands: PropertyDemands | None, content: bytes) -> None:
        """Publish a complete message that the fast path cannot handle."""
        message = Message(route.address, content, self.number)
        limit = self.host.max_message_size
        if len(content) > limit and message.body_size > limit:
            raise precondition_failed(
                f"message size {message.body_size} is larger than configured max size {limit}"
            )
        if route.error is not None:
            raise route.error
        exchange = route.exchange
        assert exchange is not None
        if demands is not None and not demands.plain_route:
            if demands.reply_to and self.reply_consumer is None:
                raise precondition_failed("fast reply consumer does not exist")
            user = self.host.user
            demands.validate(user.name, impersonator=user.may_impersonate)
            if demands.extra_keys and exchange.type == "topic" and self.host.topic_permissions:
                self._check_extra_keys(route, demands, content)
            demands.check_extra_keys(self.host.limits.cc_keys)
        if self.tx is not None:
            self.tx.check_room(self.host.limits.transaction_publishes)
        extra_keys = () if demands is None else demands.extra_keys
        if not extra_keys and (route.plain or route.queues):  # not by headers
            queues = route.queues
        else:
            headers = {} if demands is None else demands.headers
            if self.vhost.router.reads_properties:
                headers = Envelope(headers, Properties(message.header))
            queues = self._route(exchange, (route.routing_key, *extra_keys), headers)
        if demands is not None and demands.headers:
            for queue in queues:
                if queue.limits is not None and queue.limits.hold is not None:
                    list(queue.limits.hold.dues_of((message,)))  # raises 406, before anything is done
        if len(content) > MOST_HASHED:
            for ids in (self.vhost.once.get(exchange.name), *[queue.ids for queue in queues]):
                if ids is not None:
                    ids.source.check(message, ids.where)
        if demands is not None and not demands.plain_route:
            message = self._rewritten(message, demands, queues)
        if self.vhost.intercept is not None:
            message = self.vhost.intercept(message)
        exchange.tally(len(queues), route.routing_key).published += 1
        self.published += 1
        disk = self.vhost.disk
        wait: NotYet | None = None
        if disk is not None and len(content) >= disk.blob_threshold:
            wait = self._awaits_file(disk, route, demands, message, queues)
        if wait is None:
            self._go_on(route, demands, message, queues)
        else:
            self._put_off(wait)

    def _put_off(self, wait: NotYet) -> None:
        raise wait

    def _awaits_file(
        self,
        disk: DelayDisk,
        route: Route,
        demands: PropertyDemands | None,
        message: Message,
        queues: Sequence[Queue],
    ) -> NotYet | None:
        """Return what a publish with an id waits for if its body gets a file, to be in one commit with all copies."""
        # If queues had it before, one could end it, and a commit have that, while others have no record: no id would
        # be right then. A full disk refuses it; without confirms it waits for space.
        awaits, persistent = self.confirms is not None, _is_persistent(demands)
        if self.tx is not None or not needs_file(disk, queues, message, persistent=persistent, awaits=awaits):
            return None
        if self._is_known(route, message, queues, persistent=persistent):
            return None
        once = self.vhost.once.get(route.exchange.name)  # type: ignore[union-attr] # it has one
        owners = [ids for ids in (once, *[queue.ids for queue in queues]) if ids is not None]
        if not any(ids.source.mark(message) for ids in owners):
            return None
        copy = Persistent(message.address, message.content, message.channel_id, None, 0, 0)
        files = BodyFiles(disk, (copy,), self.outbox.turn, waits=not awaits)
        return NotYet(files.when_done, partial(self._filed, files, route, demands, copy, queues))

    def _filed(
        self,
        files: BodyFiles,
        route: Route,
        demands: PropertyDemands | None,
        message: Message,
        queues: Sequence[Queue],
    ) -> None:
        """Go on with a publish whose body is in a file, or refuse it if there is no space for that."""
        if not files.has_no_room:
            self._go_on(route, demands, message, queues)
        elif self.confirms is not None:
            self.number_publishes(route)
            self.confirms.refused(self.confirms.seq_no)

    def _go_on(
        self, route: Route, demands: PropertyDemands | None, message: Message, queues: Sequence[Queue]
    ) -> None:
        """Pass a publish that is counted to its queues."""
        exchange, persistent = route.exchange, _is_persistent(demands)
        assert exchange is not None
        if route.taps and not (
            self.vhost.once and self._is_known(route, message, queues, persistent=persistent)
        ):
            self._tap(route, exchange, demands, message, queues)
        if route.mandatory and not queues:
            exchange.returned += 1
        if self.tx is not None:
            self.tx.publish(queues, message, mandatory=route.mandatory, persistent=persistent)
            return
        confirms = self.confirms
        if confirms is not None:
            if queues:
                self.number_publishes(route)
            else:
                self.numbered = route
        copies = self.enqueue(queues, message, mandatory=route.mandatory, persistent=persistent)
        if copies is None:
            if confirms is not None:
                self.confirm_unroutable(route, confirms)
        elif not copies.is_finished:
            self.host.wait_for_copies(copies)

    def _check_extra_keys(self, route: Route, demands: PropertyDemands, content: bytes) -> None:
        """Check the topic permissions for the keys in CC and BCC. Raises NotYet with the rest of the publish."""
        exchange = route.exchange
        assert exchange is not None
        first, self._keys_checked = self._keys_checked, 0
        for position, key in enumerate(demands.extra_keys[first:], first):
            try:
                self.check_topic_permission("write", exchange.name, key)
            except NotYet as wait:
                self._keys_checked = position
                raise NotYet(
                    wait.subscribe, partial(Channel.publish, self, route, demands, content)
                ) from None

    def _is_known(self, route: Route, message: Message, queues: Sequence[Queue], *, persistent: bool) -> bool:
        """Return whether a message is a repeat for its exchange, which drops it before it goes anywhere."""
        ids = self.vhost.once.get(route.exchange.name)  # type: ignore[union-attr] # it has one
        mark = None if ids is None else ids.source.mark(message)
        if ids is None or mark is None:
            return False
        is_stored = ids.stores(queues, persistent=persistent, awaits=self.confirms is not None)
        return ids.answers(mark, is_stored=is_stored)

    def _tap(
        self,
        route: Route,
        exchange: Exchange,
        demands: PropertyDemands | None,
        message: Message,
        queues: Sequence[Queue],
    ) -> None:
        keys = (route.routing_key, *(() if demands is None else demands.extra_keys))
        for tap in route.taps:
            tap.published(self, exchange, keys, message, queues)

    def confirm_unroutable(self, route: Route, confirms: ChannelConfirms) -> None:
        """Number a publish that has no queue, and confirm it at once."""
        del route
        self.outbox.send(pack_confirm(self.number, confirms.confirm_now(), multiple=False, ack=True))

    def number_publishes(self, route: Route, count: int = 1) -> None:
        """Assign sequence numbers to publishes of a route on a channel in confirm mode, and schedule their confirms."""
        confirms = self.confirms
        assert confirms is not None
        confirms.seq_no += count
        self.numbered = route
        if not confirms.scheduled:
            confirms.schedule()

    def _route(self, exchange: Exchange, routing_keys: tuple[str, ...], headers: Table) -> Sequence[Queue]:
        exchange.lookups += 1
        try:
            return self.vhost.route(exchange, routing_keys, headers)
        except TooManyHopsError as hops:
            raise _too_many_hops(hops) from None

    def _rewritten(self, message: Message, demands: PropertyDemands, queues: Sequence[Queue]) -> Message:
        """Return the message without BCC (kept if only delay lines get it) and with its reply address filled in."""
        is_4 = demands.expiration is not None and self.host.compatibility.queues.message_properties == "4.3"
        header = message.header if demands.has_bcc or demands.reply_to or is_4 else b""
        changed = header
        if demands.has_bcc and not all(isinstance(queue, DelayLine) for queue in queues):
            changed = Properties(changed).replace(headers=demands.without_bcc())
        if demands.reply_to and self.reply_consumer is not None:
            changed = Properties(changed).with_reply_to(self.reply_consumer.queue.name)
        if is_4:
            changed = Properties(changed).replace(expiration=demands.expiration)
        return message if changed == header else message.with_header(changed)

    def enqueue(
        self, queues: Sequence[Queue], message: Message, *, mandatory: bool, persistent: bool
    ) -> Copies | None:
        """Pass a message to its queues, and return its copies; None without a queue.

        A mandatory one is returned then, and also if it is a repeat for all of its queues, up to `AT_ONCE`.
        """
        ids = self.vhost.once.get(split_address(message.address)[0]) if self.vhost.once else None
        mark = None if ids is None else ids.source.mark(message)
        if ids is not None and mark is not None:
            turned_away = self._turn_away(ids, mark, queues, message, persistent=persistent)
            if turned_away is not None:
                if mandatory and turned_away.is_taken:
                    self._return(message, "DUPLICATE")
                return turned_away
        if queues:
            before = _repeated(queues) if mandatory else 0
            copies = distribute(self.outbox.turn, queues, message, self.confirms, persistent=persistent)
            if ids is not None and mark is not None:
                ids.taken(mark, copies, queues, persistent=persistent)
            if mandatory and copies.is_finished and _repeated(queues) - before == len(queues):
                self._return(message, "DUPLICATE")
            return copies
        if mandatory:
            self._return(message, "NO_ROUTE")
        else:
            self.dropped += 1
        return None

    def _turn_away(
        self, ids: ExchangeIds, mark: bytes, queues: Sequence[Queue], message: Message, *, persistent: bool
    ) -> Copies | None:
        """Return the copies of a repeat, which has none, or of what an exchange has no room for; None for others."""
        confirms, copies = self.confirms, Copies(message, (), persistent=False)
        copies.finish()
        if ids.knows(mark):
            if confirms is not None and not queues:
                self.number_publishes(self.numbered)  # type: ignore[arg-type] # `publish` has set it
            if ids.drops(mark, message, queues, confirms, persistent=persistent):
                return copies
        if not queues or ids.has_room():
            return None
        copies.refuse()
        if confirms is not None:
            confirms.refused(confirms.seq_no)
        return copies

    def enqueue_all(self, queues: Sequence[Queue], messages: Sequence[Message], *, persistent: bool) -> None:
        """Pass messages of a transaction to the same queues, which have no limits."""
        distribute_all(queues, messages, persistent=persistent)

    def _return(self, message: Message, text: str) -> None:
        """Return a mandatory message that no queue gets."""
        self.returned += 1
        self.outbox.send(pack_return(self.number, ReplyCode.NO_ROUTE, text, message.address))
        self._send_content(message)

    def _send_content(self, message: Message) -> None:
        frame_max = self.host.frame_max
        if len(message.content) > SPLIT_LIMIT:
            self.outbox.pending += len(message.content)
            self.outbox.frames += reframed(message.content, self.number, frame_max)
            self.outbox.schedule()
            return
        content = reframe(message.content, self.number, frame_max)
        self.outbox.pending += len(content)
        self.outbox.send(content)

    def schedule_confirms(self) -> None:
        """Schedule the confirms to be sent at the end of the turn."""
        self.outbox.turn.channels.append(self)

    def may_wait(self) -> bool:
        """Return whether confirms may wait for others; see `turn.Confirming`."""
        confirms = self.confirms
        if confirms is None or len(confirms.held) < MANY_OPEN:
            return False
        confirms.scheduled = False
        return True

    def flush_confirms(self, since: int = 0) -> None:
        """Send the confirms that are due; `since` as in `turn.Confirming`."""
        confirms = self.confirms
        if confirms is not None:
            new_count = confirms.seq_no - confirms.taken
            if due := confirms.take():
                self.outbox.send(*pack_confirms(self.number, due))
            times = self.confirm_times
            if times.watched:
                times.look(confirms, new_count, self.vhost.context)
            if confirms.seq_no >= times.due:
                mode = self.numbered.confirm_mode  # type: ignore[union-attr]
                times.watch(confirms, new_count, mode, self.vhost.context, since)
            self.numbered = None

    # -- settling ---------------------------------------------------------------------------------------------------

    @property
    def global_room(self) -> int:
        """Number of further messages that the channel-wide prefetch allows; a transaction's count until its commit."""
        settled = 0 if self.tx is None else len(self.tx.settled)
        return self.global_prefetch - (len(self.unacked) + settled - self.got)

    def ack(self, delivery_tag: int, *, multiple: bool) -> None:
        """Handle `basic.ack`, other than a single one on a plain channel."""
        self.settlements.settle(self, delivery_tag, None, multiple=multiple)

    def reject(self, delivery_tag: int, *, multiple: bool, outcome: Outcome) -> None:
        """Handle `basic.nack` and `basic.reject`."""
        self.settlements.settle(self, delivery_tag, outcome, multiple=multiple)

    def recover(self, reply: bytes) -> None:
        """Handle `basic.recover`: requeue all unacked messages, then send the reply."""
        self.host.run_in_slices(self.number, self.settlements.requeue_all(self, outcome=True), reply)

    def wake_consumers(self) -> None:
        """Let every consumer that has room again rejoin its queue's rotation, in a different order each time.

        They share the prefetch of the channel, and the first could take all of it: RabbitMQ shuffles them.
        """
        consumers = self.consumers
        for consumer in consumers.values():
            consumer.wake()
        if len(consumers) > 1:
            tag = next(iter(consumers))
            consumers[tag] = consumers.pop(tag)

    def credit_global(self, consumer: Receiver) -> None:
        """Give credit for one ack under a channel-wide prefetch: to all consumers if it was used up."""
        if self.global_room == 1:
            self.wake_consumers()
        else:
            consumer.wake()

    # -- transactions -----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Handle `tx.commit`. Raises NotYet until all of the transaction is journaled."""
        tx = self._transaction()
        if self.committing is None:
            tx.prepare(self)
            self.committing, self.tx = tx, Transaction()
        is_whole = self.committing.commit(self)
        self.committing = None
        if not is_whole:
            raise precondition_failed("partial tx completion")

    def rollback(self, reply: bytes) -> None:
        """Handle `tx.rollback`: drop the publishes, make settled messages unacked again, then send the reply."""
        self.settlements.run(self, self._transaction().roll_back(self), reply)

    def _transaction(self) -> Transaction:
        if self.tx is None:
            raise precondition_failed("channel is not transactional")
        return self.tx

    # -- consuming --------------------------------------------------------------------------------------------------

    def get(self, queue: Queue, *, no_ack: bool) -> None:
        """Handle `basic.get`: send one message, or get-empty.

        A paused queue answers as if it were empty: who polls is a consumer, too, and an error would end it.
        """
        if queue.is_paused and not self.gets_from_paused:
            queue.used()
            batch = None
        else:
            batch = queue.get(no_ack=no_ack)
        if batch is None:
            self.get_empty += 1
            queue.tally.get_empty += 1
            self.send(Basic.GetEmpty())
            return
        if not batch.messages:
            raise NotYet(queue.after_next_run)
        message = batch.messages[0]
        self.delivery_tag = tag = self.delivery_tag + 1
        if no_ack:
            self.got_auto += 1
            queue.tally.got_auto += 1
        else:
            self.got += 1
            self.got_ack += 1
            queue.tally.got_ack += 1
            self.unacked[tag] = GetRecipient(queue, self), batch.seq_ids[0]
            if len(self.unacked) > MANY:
                self.unacked = fitting(self.unacked)
        self.delivered += 1
        queue.delivered += 1
        if batch.redelivered:
            self.redelivered += 1
            queue.redelivered += 1
        left = queue.backing.ready_count
        self.outbox.send(pack_get_ok(self.number, tag, message.address, left, redelivered=batch.redelivered))
        self._send_content(message)
        firehose = self.vhost.taps.firehose
        if firehose is not None:
            firehose.sent(self, queue, message, redelivered=batch.redelivered)

    def overdue(self, now: float, default: int) -> list[tuple[int, int]]:
        """Return the tags of deliveries that were not acked in time, each with its timeout in ms.

        Must be called about once a second. `now` is seconds of a monotonic clock, `default` the broker's timeout in ms.
        """
        if not self.unacked:
            self.ages = None
            return []
        self.unacked = fitting(self.unacked)
        if self.ages is None:
            self.ages = ConsumerTimeouts(quorum_only=self.host.compatibility.consumer_timeout == "4.3")
        return self.ages.overdue(now, self.unacked, self.delivery_tag, self.consumers.values(), default)

    def cancel_overdue(self, tags: Iterable[int]) -> list[Consumer]:
        """Requeue overdue deliveries, send `basic.cancel` to their consumers, and return these.

        Returns none, and nothing has changed, if there is none that can be notified.
        """
        if not self.host.notifies_cancel or self.ages is None:
            return []
        consumers = self.ages.requeue(tags, self.unacked, self.consumers)
        for consumer in consumers:
            self.send(Basic.Cancel(consumer.tag, True))
        return consumers

    def nack_overdue(self, now: float, timeout: float) -> None:
        """Nack publishes without a verdict for `timeout` seconds; must be called about once a second, before a turn."""
        confirms = self.confirms
        if confirms is None or not confirms.held:
            self.confirm_ages = None
            return
        if self.confirm_ages is None:
            self.confirm_ages = ConfirmTimeouts()
        confirms.give_up(self.confirm_ages.overdue(now, confirms.seq_no, timeout))

    def cancel(self, consumer: Consumer) -> None:
        """Cancel a consumer; its unacked messages stay unacked, and its auto-delete queue may be deleted."""
        del self.consumers[consumer.tag]
        queue = self._remove(consumer)
        if queue is not None:
            self.vhost.consumer_left(queue)

    def _remove(self, consumer: Consumer) -> Queue | None:
        """Remove a consumer from its queue, which is returned unless it was that of direct replies."""
        self._add_counters(consumer)
        queue: Queue = consumer.queue  # type: ignore[assignment]
        if consumer is self.reply_consumer:
            self.reply_consumer = None
            self.vhost.delete_reply_queue(queue)
            return None
        queue.remove_consumer(consumer)
        return queue

    def remove_consumers(self, queue: Queue) -> list[Basic.Cancel]:
        """Remove the consumers of a queue that is about to be deleted; return the `basic.cancel` methods to send."""
        tags = [tag for tag, consumer in self.consumers.items() if consumer.queue is queue]
        for tag in tags:
            self._add_counters(self.consumers.pop(tag))
        return [Basic.Cancel(tag, True) for tag in tags] if self.host.notifies_cancel else []

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Remove a consumer whose queue was deleted; notify the client if it has the capability."""
        if self.consumers.pop(consumer.tag, None) is None:
            return
        self._add_counters(consumer)
        if self.host.notifies_cancel:
            self.send(Basic.Cancel(consumer.tag, True))

    def close(self) -> None:
        """Close the channel in one step; see `closing`."""
        for _ in self.closing():
            pass

    def closing(self) -> Iterator[None]:
        """Close the channel, a piece at a time: remove its consumers, and requeue its unacked messages.

        Confirms and deliveries end first: nothing may follow a `channel.close`. The queues of its consumers deliver
        nothing before all messages are requeued; otherwise younger ones would be delivered first.
        """
        if self.confirms is not None:
            self._final_confirm_counts = _confirm_counts(self.confirms)
            self.confirms.close()
            self.confirms = None
        left = []
        with Suspension() as suspension:
            is_much = len(self.unacked) > PIECE or len(self.consumers) > _FEW_CONSUMERS
            if is_much or self.settlements.steps is not None or self.tx is not None:
                suspension.add(consumer.queue for consumer in self.consumers.values())
            while self.consumers:
                queue = self._remove(self.consumers.pop(next(iter(self.consumers))))
                if queue is not None:
                    left.append(queue)
                if suspension:
                    yield
            yield from self.settlements.finish()  # of those received before the close
            if self.committing is not None:
                yield from self.committing.finish_commit()
                self.committing = None
            if self.tx is not None:
                yield from self.tx.roll_back(self)  # its settled messages are unacked again
            yield from self.settlements.requeue_all(self, FAILED)
        unused = [queue for queue in left if queue.auto_delete and not queue.consumers]
        if unused:
            yield from self.vhost.delete_queues(unused, unused=True)


def _confirm_counts(confirms: ChannelConfirms) -> tuple[int, int, int]:
    return confirms.seq_no, confirms.confirmed_count, confirms.nacked_count


def _too_many_hops(error: TooManyHopsError) -> AMQPError:
    text = (
        "message needs more exchange-to-exchange hops, times its routing keys, than "
        f"limits.exchange_hops ({error.limit})"
    )
    return precondition_failed(text)


def _repeated(queues: Sequence[Queue]) -> int:
    """Return how many repeats some queues have dropped."""
    return sum([queue.tally.repeated for queue in queues])


def _sifting(
    kind: type[Route], queues: Sequence[Queue], once: ExchangeIds | None
) -> tuple[type[Route], bool]:
    """Return the kind of an otherwise plain route whose queues may not take every message, and whether it is plain."""
    knows = once is not None or any(queue.settings.deduplicate is not None for queue in queues)
    rejects = any(queue.settings.rejects for queue in queues)
    holds = any(queue.hold is not None and queue.settings.holds for queue in queues)
    if not (rejects or holds):
        return OnceRoute if knows else kind, True
    if knows or kind is not Route or (rejects and holds):
        return kind, False
    if rejects:
        return RejectRoute, True
    return HoldRoute if len(queues) == 1 else kind, False


def _may_drop(queue: Queue, *, is_mandatory: bool) -> bool:
    """Return whether a queue may drop a repeat in a way that takes more than the fast path."""
    knows = queue.settings.deduplicate is not None
    return knows and (is_mandatory or queue.ids is None or not queue.ids.sifts)


def _is_persistent(demands: PropertyDemands | None) -> bool:
    return demands is not None and demands.persistent

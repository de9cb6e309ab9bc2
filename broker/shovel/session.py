"""One attempt of a shovel: both connections, from their opening to a failure or to the end (driver)."""

import asyncio
import contextlib
import logging
import random
import socket
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Queue, make
from leveret.broker.amqp.tables import Table, encode_table, typed
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import Permissions, TopicPermissions
from leveret.broker.auth.users import LoginRefusedError, User, Users
from leveret.broker.client.client import Client
from leveret.broker.client.errors import ClientError, RefusedError, ReplyError, UnreachableError
from leveret.broker.client.frames import Incoming
from leveret.broker.client.sockets import Contexts
from leveret.broker.client.uri import Endpoint
from leveret.broker.connection.connection import Connection
from leveret.broker.errors import AMQPError
from leveret.broker.network.gate import Gate
from leveret.broker.shovel.definition import AS_LONG, NO_ACK, ON_CONFIRM, ON_PUBLISH, Definition, rewriting
from leveret.broker.shovel.forwarding import Deliveries, Forwarding, Settlements
from leveret.broker.shovel.pace import Pace, Timer
from leveret.broker.vhost.vhost import VHost

log = logging.getLogger("leveret.shovel")

DRAIN_SECONDS = 3.0  # time for the destination to confirm what is under way when a shovel is stopped
HOLD_SECONDS = 1.0  # pause after refusals by the destination: the messages would come again at once
_NOT_FOUND = 404


class Shared(NamedTuple):
    """Objects that all shovels of a broker share."""

    pace: Pace
    contexts: Contexts


class Session:
    """The connections of a shovel. Await `open`, then `run`, and in any case `close`.

    `left` is the number of messages until it ends, None for no limit or not known yet; `level` is that of the log lines
    about brokers that it cannot connect to. `source` and `destination` are the URIs in use, without passwords.
    """

    def __init__(
        self,
        definition: Definition,
        host: AdministeredBroker,
        shared: Shared,
        left: int | None,
        level: int = logging.WARNING,
    ) -> None:
        self._definition = definition
        self._level = level
        self._host = host
        self.left = left
        to = definition.destination
        # A source without acks forgets what it delivers beyond the limit.
        is_limited = definition.source.delete_after is not None
        self._ack_mode = ON_PUBLISH if is_limited and definition.ack_mode == NO_ACK else definition.ack_mode
        self.forwarding = Forwarding(self._ack_mode, to.exchange, to.routing_key)
        self._deliveries = Deliveries(self.forwarding)
        self._pace = shared.pace
        self._contexts = shared.contexts
        self._timer = Timer(self._rested)
        self._is_resting = False
        self._clients: list[Client] = []
        self._own: list[Connection] = []  # the broker's side of the connections to itself
        self._source: Client
        self._target: Client
        self._tag = ""
        self._ended = asyncio.Event()
        self._settled = asyncio.Event()
        self._hold: asyncio.TimerHandle | None = None
        self._refused = 0
        self._is_closing = False
        self.source = self.destination = ""

    # -- opening ----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect both ends and begin to consume; raises ClientError."""
        definition, forwarding = self._definition, self.forwarding
        source, to = definition.source, definition.destination
        # first, because the frames of the source may not be larger than its own
        self._target, self.destination = await self._connect(to.endpoints, Settlements(forwarding))
        self._source, self.source = await self._connect(
            source.endpoints, self._deliveries, self._target.frame_max
        )
        forwarding.rewrite = rewriting(
            definition,
            self._host.cluster_name,
            (self.source, self.destination),
            lambda: self._host.wall_clock() / 1000,
            self._target.frame_max,
        )
        if to.queue is not None:
            await _ensure_queue(self._target, to.queue, to.arguments)
        if self._ack_mode == ON_CONFIRM:
            await self._target.call(make(Confirm.Select, False))
        queue = await self._source_queue()
        if self.left == 0:
            self._ended.set()
            return
        forwarding.most = self.left
        if self._ack_mode != NO_ACK:
            await self._source.call(make(Basic.Qos, 0, source.prefetch, False))
        self._deliveries.is_consuming = True
        self._source.on_ready = self._forward
        self._target.on_ready = self._settle
        self._target.on_blocked = lambda _: self._throttle()
        bits = (False, self._ack_mode == NO_ACK, False, False)  # no_local, no_ack, exclusive, no_wait
        consume = make(Basic.Consume, 0, queue, "", *bits, source.consumer_arguments)
        self._tag = (await self._source.call(consume)).consumer_tag
        for client in self._clients:
            client.failed.add_done_callback(lambda _: self._ended.set())

    async def _connect(
        self, endpoints: Sequence[Endpoint], incoming: Incoming, frame_max: int | None = None
    ) -> tuple[Client, str]:
        """Connect to one of several brokers, in a random order as RabbitMQ does; returns its URI, too."""
        last: ClientError = UnreachableError("there is no URI")
        for endpoint in random.sample(endpoints, len(endpoints)):
            try:
                client = await self._opened(endpoint, incoming, frame_max)
            except ClientError as error:
                last = error
                of = (self._definition.name, self._definition.vhost, endpoint.shown, error)
                log.log(self._level, "shovel '%s' in vhost '%s' failed to connect (URI: %s): %s", *of)
            else:
                self._clients.append(client)
                return client, endpoint.shown
        raise last

    async def _opened(self, endpoint: Endpoint, incoming: Incoming, frame_max: int | None) -> Client:
        side = "destination" if frame_max is None else "source"
        options = replace(endpoint.options, product="Leveret shovel", name=f"Shovel {self._definition.name}")
        if frame_max is not None:
            options = replace(options, frame_max=min(options.frame_max, frame_max))
        if endpoint.address is not None:
            if options.tls is not None and self._definition.setter:
                tls = replace(options.tls, directory=self._host.delegation.certificate_dir)
                options = replace(options, tls=tls)
            return await Client.connect(endpoint.address, incoming, options, self._contexts)
        vhost = self._host.vhosts.get(endpoint.vhost)
        if vhost is None:
            raise RefusedError(f"vhost {endpoint.vhost} not found")
        name = f"shovel '{self._definition.name}' of vhost '{self._definition.vhost}' ({side})"
        setter = self._definition.setter if self._host.delegation.has_setters_rights else ""
        user = local_user(self._host.users, endpoint, setter)
        try:
            sock, connection = await connected(
                self._host.gate, user, vhost, name=name, title=options.name, frame_max=options.frame_max
            )
        except AMQPError as error:
            raise RefusedError(error.reply_text) from None
        self._own.append(connection)
        self._pace.own_reads.add(connection)
        client = await Client.attach(sock, incoming, options)
        client.frame_max = incoming.frame_max = options.frame_max
        return client

    async def _source_queue(self) -> str:
        """Declare and bind what has to be there, and count what is to be moved; returns the name of the queue."""
        source = self._definition.source
        if not source.queue:
            declare = make(Queue.Declare, 0, "", False, False, True, False, False, {})
            queue: str = (await self._source.call(declare)).queue
            await self._source.call(
                make(Queue.Bind, 0, queue, source.exchange, source.routing_key, False, {})
            )
        else:
            queue = source.queue
            await _ensure_queue(self._source, queue, source.arguments)
        if self.left is None and source.delete_after is not None:
            self.left = source.delete_after
            if self.left == AS_LONG:
                passive = make(Queue.Declare, 0, queue, True, False, False, False, False, {})
                self.left = (await self._source.call(passive)).message_count
        return queue

    # -- running ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Move messages until a connection fails, `stop` is called or all messages are moved.

        Raises ClientError: a connection failed, or messages were refused that the limit had counted.
        """
        await self._ended.wait()
        for client, side in zip(self._clients, ("destination", "source"), strict=False):
            if client.failed.done():
                error = client.failed.exception()
                raise UnreachableError(f"{side}: {error}")

    @property
    def is_complete(self) -> bool:
        """True if all messages of a shovel with a limit are moved."""
        return self.left is not None and self.left <= self.forwarding.settled

    @property
    def state(self) -> str:
        """The state of one that runs: running, blocked by the destination's alarm, or slowed down by it (flow)."""
        if self._target.blocked is not None:
            return "blocked"
        return "flow" if not self._target.is_writable or self._hold is not None else "running"

    def _forward(self) -> None:
        forwarding = self.forwarding
        if frames := forwarding.take_publishes():
            self._target.write(frames)
            forwarding.sent(is_open=self._deliveries.is_open)
            self._write_settlements()
            if self._ack_mode != ON_CONFIRM:
                self._check_end()
            self._pause_for_others()
        self._throttle()

    def _pause_for_others(self) -> None:
        if self._is_resting or self._is_closing:
            return
        host = self._host
        reads = host.turn.reads - host.turn.heartbeats
        if rest := self._pace.rest(host.loop.used(), reads, host.loop.monotonic()):
            self._is_resting = True
            self._timer.set(rest)

    def _rested(self) -> None:
        """Go on: with what was settled meanwhile, and after another rest with what the source then delivers."""
        self._is_resting = False
        if self._write_settlements():
            self._pause_for_others()
        self._throttle()

    def _write_settlements(self) -> bool:
        """Write to the source what the destination has settled; returns whether there was anything."""
        settlements = self.forwarding.take_settlements()
        if settlements:
            self._source.write(settlements)
        return bool(settlements)

    def _settle(self) -> None:
        forwarding = self.forwarding
        if not self._is_resting:
            self._write_settlements()
        if forwarding.refused != self._refused:
            self._refused = forwarding.refused
            if self._hold is None and not self._is_closing:
                self._hold = asyncio.get_running_loop().call_later(HOLD_SECONDS, self._resume)
        self._check_end()
        self._throttle()

    def _resume(self) -> None:
        self._hold = None
        self._throttle()

    def _check_end(self) -> None:
        if not self.forwarding.unconfirmed:
            self._settled.set()
            if self.forwarding.is_complete:
                self._ended.set()

    def _throttle(self) -> None:
        """Read the source only while the destination takes messages, and not during a rest."""
        target = self._target
        if not self._source.is_writable:  # who takes no acks gets no more to ack
            self._source.pause_reading()
        elif target.is_writable and target.blocked is None and self._hold is None and not self._is_resting:
            self._source.resume_reading()
        else:
            self._source.pause_reading()

    # -- ending -----------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Let `run` return."""
        self._ended.set()

    async def close(self, *, drains: bool) -> None:
        """Close both connections.

        `drains`: first stop consuming, and wait a moment for the confirms of what is under way: otherwise the source
        would deliver it once more.
        """
        self._is_closing = True
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None
        self._timer.close()
        if self._is_resting:
            self._rested()
        if drains and len(self._clients) > 1 and self._tag:
            with contextlib.suppress(TimeoutError, ClientError):
                async with asyncio.timeout(DRAIN_SECONDS):
                    await self._drain()
        for client in reversed(self._clients):  # the source first: its acks arrive before the connection ends
            await (client.abort() if client.is_paused else client.close())

    async def _drain(self) -> None:
        self._source.resume_reading()
        await self._source.call(make(Basic.Cancel, self._tag, False))
        while self.forwarding.unconfirmed:
            self._settled.clear()
            await self._settled.wait()

    def drop(self) -> None:
        """Close both sockets at once, if they are open."""
        for client in self._clients:
            client.drop()
        for connection in self._own:
            self._pace.own_reads.remove(connection)


async def _ensure_queue(client: Client, name: str, arguments: Table) -> None:
    """Declare a durable queue unless there is one of that name, as RabbitMQ's shovels do."""
    # Nothing may have been done on the client's channel yet: it is opened again if there is none. A `channel_max` of
    # 1 in the URI allows no other.
    try:
        await client.call(make(Queue.Declare, 0, name, True, False, False, False, False, {}))
    except ReplyError as error:
        if error.code != _NOT_FOUND:
            raise
        await client.call(make(Channel.Open, ""))
        await client.call(make(Queue.Declare, 0, name, False, True, False, False, False, arguments))


# -- connections to the broker itself ---------------------------------------------------------------------------------
#
# Such an end is a client like any other: it speaks AMQP, over a pair of connected sockets that no port leads to, so
# that its rights, limits, flow control, statistics and fairness towards other clients are those of a client. Only the
# login is missing. Without a user in its URI it is the user who has set the shovel, and ends when that one's access
# does, like any connection; set by an administrator it may do everything (RabbitMQ: always, as the user `none`).

OPERATOR = User("none", "", ("impersonator",))
"""The user of shovels whose URI has none; it may publish messages of any user, as they were published."""
CAPABILITIES = frozenset(("basic.nack", "connection.blocked", "consumer_cancel_notify", "publisher_confirms"))
MECHANISM = "LOCAL"
LOOPBACK = "127.0.0.1"
BUFFER = 32 * 1024
"""Bytes that the socket to the shovel may hold, and that are delivered in one step of the event loop: what is there is
read in one round of the loop, and other clients would wait for more."""
PUBLISHES = 256 * 1024
"""Bytes that the socket from the shovel may hold: all of one read, which is then published, confirmed and acked at once
instead of in two or three rounds of the loop."""


def local_user(users: Users, endpoint: Endpoint, setter: str) -> User | None:
    """Return the user of a URI without a host; None for one who may do everything.

    A password in the URI is checked; without one the rights of `setter` count, '' for an administrator.

    Raises RefusedError: there is no such user, the password is wrong, or it is missing.
    """
    if endpoint.user is not None and endpoint.password is not None:
        try:
            return users.authenticate(endpoint.user, Password(endpoint.password), LOOPBACK)
        except LoginRefusedError as error:
            raise RefusedError(str(error)) from None
    name = setter if endpoint.user is None else endpoint.user
    if setter and name != setter:
        raise RefusedError(f"user '{setter}', who has set the shovel, needs the password of user '{name}'")
    found = users.get(name) if name else None
    if name and found is None:
        raise RefusedError(f"user '{name}' does not exist")
    return found


async def connected(
    gate: Gate, user: User | None, vhost: VHost, *, name: str, title: str, frame_max: int
) -> tuple[socket.socket, Connection]:
    """Open a connection to the broker itself; returns the shovel's end of it, and the broker's.

    The user None may do everything; `title` is the name that RabbitMQ gives the connection, not unique.

    Raises AMQPError: a limit or a right is against it.
    """
    ours, theirs = socket.socketpair()
    driver = gate.make_driver()
    for each, size in ((ours, BUFFER), (theirs, PUBLISHES)):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
    connecting = asyncio.ensure_future(
        asyncio.get_running_loop().connect_accepted_socket(lambda: driver, ours)
    )
    try:
        # which takes a moment, and would leave a driver without its socket if it were cancelled
        await asyncio.shield(connecting)
    except BaseException:
        theirs.close()  # and so the driver's end sees that its peer is gone
        raise
    try:
        _begin(driver.connection, user, vhost, name=name, title=title, frame_max=frame_max)
    except BaseException:
        driver.abort()
        theirs.close()
        raise
    return theirs, driver.connection


def _begin(
    connection: Connection, user: User | None, vhost: VHost, *, name: str, title: str, frame_max: int
) -> None:
    if user is None:
        connection.is_trusted = True
        connection.permissions = Permissions(".*", ".*", ".*")
        connection.topic_permissions = TopicPermissions({})
    else:
        connection.node.clients.admit(user, vhost.name)
    connection.is_own = True
    connection.name = name
    connection.capabilities = CAPABILITIES
    properties = {"product": "Leveret shovel", "connection_name": title}
    connection.client_properties = encode_table(typed(properties))
    connection.auth_mechanism = MECHANISM
    connection.frame_max = connection.frame_limit = frame_max
    connection.outbox.limit = BUFFER
    connection.channel_max = connection.node.config.channel_max
    connection.opened(OPERATOR if user is None else user, vhost)

"""A run of the load tool: connections, pacing, intervals, and the clean-up afterwards (driver)."""

import asyncio
import secrets
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from leveret.broker.amqp.commands import Basic, Confirm, make
from leveret.broker.client.client import Client, clock
from leveret.broker.client.errors import ClientError
from leveret.broker.client.frames import Incoming
from leveret.broker.client.options import TLS, Options, Product
from leveret.broker.client.uri import Address
from leveret.broker.perf.load import Load, Topology, shares
from leveret.broker.perf.measurement import NANOSECONDS, Interval, Measurement, Result, Tally, percentiles
from leveret.broker.perf.producer import MARK_SIZE, Confirms, Deliveries, Producer, Schedule, template

OPTIONS: Final = Options(product="leveret perf")
DRAIN_SECONDS: Final = 5.0  # time for messages and confirms to arrive after the producers have stopped
QUIET_SECONDS: Final = 0.25
"""Time without a delivery after which no more is expected, if others may publish to or consume from the queues."""
SHORTEST_INTERVAL: Final = 0.1  # least length in seconds of the last interval
CONNECTING: Final = 32  # number of connections that are opened at a time
LEAST_WAIT: Final = 0.0002  # least seconds between two writes of a paced producer: a loop of Python's limit


class Publishing:
    """Writes the messages of a producer as soon as they are due and its connection takes them."""

    def __init__(self, client: Client, producer: Producer) -> None:
        self.producer = producer
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.Handle | None = None
        self._is_running = False
        client.on_ready = self._poke

    def start(self) -> None:
        """Begin to send."""
        self._is_running = True
        self._pump()

    def end(self, now: int) -> None:
        """Send no more than was due by now."""
        if self.producer.schedule is None:
            self.stop()
        else:
            self.producer.schedule.end(now)

    def stop(self) -> None:
        """Send no more."""
        self._is_running = False
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _poke(self) -> None:
        if self._is_running and self._handle is None:
            self._pump()

    def _pump(self) -> None:
        self._handle = None
        client = self._client
        if not self._is_running or not client.is_writable or client.blocked is not None:
            return
        now = clock()
        if octets := self.producer.take(now):
            client.write(octets)
        wait = self.producer.wait(now)
        if wait == 0:
            self._handle = self._loop.call_soon(self._pump)
        elif wait is not None:
            self._handle = self._loop.call_later(max(wait / NANOSECONDS, LEAST_WAIT), self._pump)


class Run:
    """One run of a load that was checked. Await `go`; `interrupt` ends it early.

    `on_begin` is called with the broker's product and version when all connections are open, `on_interval` with each
    interval at its end.
    """

    def __init__(
        self,
        load: Load,
        address: Address,
        on_begin: Callable[[Product], None],
        on_interval: Callable[[Interval], None],
        tls: TLS | None = None,
    ) -> None:
        self.error: ClientError | None = None  # the error that ended the run, if any
        self._load = load
        self._address = address
        self._options = replace(OPTIONS, tls=tls)
        self._on_begin = on_begin
        self._on_interval = on_interval
        self._mark = secrets.token_bytes(MARK_SIZE)
        self._names = load.queue_names(self._mark.hex())
        self._topology = Topology(load, self._names)
        self._tally = Tally()
        self._clients: list[Client] = []
        self._publishing: list[Publishing] = []
        self._measurement: Measurement
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def interrupt(self) -> None:
        """End the measurement now; messages under way are still waited for."""
        if not self._ended.done():
            self._ended.set_result(None)

    async def go(self) -> Result:
        """Set up, measure, clean up, and return the result, with errors; raises ClientError if it could not begin."""
        control = await Client.connect(self._address, Incoming(), self._options)
        try:
            try:
                await self._set_up(control)
                self._on_begin(control.server)
                self._begin()
                await self._measure()
                await self._drain()
            finally:
                control.failed.remove_done_callback(self._fail)
                await self._close()
                await self._topology.delete(control)
        except ClientError as error:
            if not hasattr(self, "_measurement"):
                raise
            self.error = self.error or error
        finally:
            await control.close()
        return self._result(control.server)

    async def _set_up(self, control: Client) -> None:
        load, tally = self._load, self._tally
        await self._topology.declare(control)
        control.failed.add_done_callback(self._fail)
        consumers = [Deliveries(tally, self._mark, load.ack_every) for _ in range(load.consumers)]
        for client, queues in zip(
            await self._connect(consumers), shares(load.consumers, self._names), strict=True
        ):
            if load.prefetch:
                await client.call(make(Basic.Qos, 0, load.prefetch, False))
            for number, queue in enumerate(queues, 1):
                tag = f"perf-{number}"
                consume = make(Basic.Consume, 0, queue, tag, False, load.ack_every == 0, False, False, {})
                await client.call(consume)
        receiving = [Confirms(tally) for _ in range(load.producers)]
        keys = shares(load.producers, load.routing_keys(self._names))
        for client, confirms, own_keys in zip(await self._connect(receiving), receiving, keys, strict=True):
            if load.confirm:
                await client.call(make(Confirm.Select, False))
            confirms.producer = self._producer(client, own_keys)
            self._publishing.append(Publishing(client, confirms.producer))

    def _producer(self, client: Client, keys: Iterable[str]) -> Producer:
        load = self._load
        flags = {"persistent": load.persistent, "mandatory": load.mandatory}
        templates = [
            template(load.exchange, key, self._mark, load.size, client.frame_max, **flags) for key in keys
        ]
        return Producer(templates, self._tally, window=load.confirm)

    async def _connect(self, receiving: Iterable[Incoming]) -> list[Client]:
        """Open a connection for each receiving side; all are closed at the end, those too that others' errors cut."""
        slots = asyncio.Semaphore(CONNECTING)

        async def connect(incoming: Incoming) -> Client:
            async with slots:
                client = await Client.connect(self._address, incoming, self._options)
            self._clients.append(client)
            client.failed.add_done_callback(self._fail)
            client.on_blocked = self._blocked
            return client

        tasks = [asyncio.ensure_future(connect(incoming)) for incoming in receiving]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _fail(self, failed: "asyncio.Future[None]") -> None:
        error = failed.exception()
        if isinstance(error, ClientError):
            self.error = self.error or error
        self.interrupt()

    def _blocked(self, reason: str | None) -> None:
        if not hasattr(self, "_measurement"):
            return
        if reason is None:
            self._measurement.unblock(clock())
        else:
            self._measurement.block(reason, clock())

    def _begin(self) -> None:
        load, now = self._load, clock()
        self._measurement = Measurement(self._tally, now)
        for number, each in enumerate(self._publishing):
            if load.rate:
                # The producers take turns instead of sending at the same moment.
                offset = int(number * NANOSECONDS / (load.rate * load.producers))
                each.producer.schedule = Schedule(load.rate, now + offset, load.seconds)
            each.start()

    async def _measure(self) -> None:
        measurement = self._measurement
        began, number = measurement.began, 0
        end = began + int(self._load.seconds * NANOSECONDS) if self._load.seconds else None
        while True:
            number += 1
            tick = began + number * NANOSECONDS
            until = tick if end is None else min(tick, end)
            await asyncio.wait([self._ended], timeout=max(0.0, (until - clock()) / NANOSECONDS))
            now = clock()
            is_over = self._ended.done() or (end is not None and now >= end)
            if is_over:
                for each in self._publishing:
                    each.end(now)
                measurement.end(now)
            if not is_over or now - measurement.since > SHORTEST_INTERVAL * NANOSECONDS:
                self._on_interval(measurement.interval(now))
            if is_over:
                return
            number = max(number, (now - began) // NANOSECONDS)

    async def _drain(self) -> None:
        """Send what was due in the measured time, and wait for the confirms and deliveries under way."""
        deadline = clock() + int(DRAIN_SECONDS * NANOSECONDS)
        received, quiet_since = self._tally.received, clock()
        while (now := clock()) < deadline and self.error is None and not self._measurement.is_blocked:
            if self._tally.received != received:
                received, quiet_since = self._tally.received, now
            is_quiet = now - quiet_since > QUIET_SECONDS * NANOSECONDS
            missing = self._unreceived()
            is_complete = missing == 0 or (missing is None and is_quiet)
            if is_complete and not self._unsent() and not self._unconfirmed():
                return
            await asyncio.sleep(0.02)

    def _unsent(self) -> int:
        return sum(each.producer.unsent for each in self._publishing)

    def _unconfirmed(self) -> int:
        return sum(each.producer.unconfirmed for each in self._publishing)

    def _unreceived(self) -> int | None:
        """Return the number of messages that did not arrive; None if that cannot be known, 0 without consumers."""
        if not self._load.consumers:
            return 0
        if not self._topology.is_own:
            return None
        tally = self._tally
        return max(0, tally.sent - tally.returned - tally.nacked - tally.own)

    async def _close(self) -> None:
        for each in self._publishing:
            each.stop()
        for client in self._clients:
            client.failed.remove_done_callback(self._fail)
        await asyncio.gather(*[client.close() for client in self._clients])

    def _result(self, server: Product) -> Result:
        measurement, tally = self._measurement, self._tally
        sent, received, confirmed = measurement.flows()
        return Result(
            uri=str(self._address),
            server=server,
            load=self._load,
            seconds=round(measurement.seconds(), 3),
            sent=sent,
            received=received,
            confirmed=confirmed,
            nacked=tally.nacked,
            returned=tally.returned,
            unsent=self._unsent(),
            unconfirmed=self._unconfirmed(),
            unreceived=self._unreceived() if self._load.consumers else None,
            latency_us=percentiles(tally.latency.whole()),
            confirm_latency_us=percentiles(tally.confirm_latency.whole()),
            send_delay_us=percentiles(tally.send_delay),
            blocked_seconds=measurement.blocked_seconds(measurement.ended),
            blocked_reason=measurement.blocked_reason,
            error=None if self.error is None else str(self.error),
            intervals=measurement.intervals,
        )

"""An hour of the telemetry of a fleet, made in some minutes: `make demo-export`.

    make demo-export                                        # build/demo/export
    make demo-export ARGS="--minutes 20 --output /tmp/demo"
    leveret analyze all --input build/demo/export --output build/demo/reports

A real broker in this process serves real clients over TCP; after each step its clock is moved on (docs/adr/0026), and
every few seconds of that clock it exports what it has counted. Queues, consumers, latencies and events are the
broker's; processor time, memory and lag are those of this process on this machine, clients included.

The fleet has eight troubles, which the reports must name: a worker that dies, another whose acks publishers wait for, a
message that no worker can process, a consumer that is too slow, one that rejects messages, a fan-out whose copies
nobody reads, a memory alarm, and a restart of the broker. A burst that is worked off, a queue whose messages expire to
be tried again, and one that holds them until their time are none.
"""

import argparse
import asyncio
import math
import random
import shutil
import struct
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from pamqp import commands

from bench.client import METHOD, Client, ack_frame, publish_frames
from leveret import __version__
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.embedded_server import EmbeddedLoop, EmbeddedServer
from leveret.broker.embedded.faults import Fault
from leveret.broker.embedded.faulty_store import FaultyStore
from leveret.broker.embedded.settable_time import MILLISECOND, SECOND
from leveret.broker.export.writer import Export
from leveret.broker.server.startup import open_data_store

START = datetime(2026, 11, 24, 14, tzinfo=UTC)
AWAY_SECONDS = 20
EXCHANGE = "shop"
FAN_OUT = "notices"
SETTLE_ROUNDS = 3
"""Times that what the broker has sent is passed to the clients, and their acks to the broker, in a step."""
nack_frame = struct.Struct(">BHIHHQBB").pack
REQUEUE = 0b10
POISON = b"poison"


class Service(NamedTuple):
    """A queue of the fleet, with the load on it.

    Args:
        queue: its name, and the routing key of its messages.
        rate: messages published per second.
        workers: connections that consume it.
        size: size of a message in bytes.
        arguments: those of its declaration.
        headers: those of its messages.
    """

    queue: str
    rate: float
    workers: int
    size: int = 400
    arguments: Mapping[str, Any] = {}
    headers: Mapping[str, Any] = {}


DEAD = Service("invoices.pdf", 3, 1, 2000)
POISONED = Service("webhooks.out", 6, 2, 900)
SLOW = Service("images.resize", 4, 2, 3000)
UNREAD = tuple(Service(f"notices.{name}", 0, 0) for name in ("audit", "mobile", "partners"))
PROMISED = Service("ledger.post", 4, 1, 800, {"x-confirm-mode": "consumer-ack"})
RETRY = Service("imports.retry", 0, 0, 700, {"x-message-ttl": 30_000, "x-dead-letter-exchange": EXCHANGE,
                                             "x-dead-letter-routing-key": "imports.parse"})  # fmt: skip
REJECTED = Service("imports.parse", 3, 1, 700, {"x-dead-letter-exchange": EXCHANGE,
                                                "x-dead-letter-routing-key": RETRY.queue})  # fmt: skip
TROUBLED = (DEAD, POISONED, SLOW, *UNREAD, PROMISED, REJECTED)
HOLDING = Service("reminders.send", 1, 1, 300, {"x-allow-hold": True}, {"x-delay": 900_000})
WELL = (
    RETRY,
    HOLDING,
    Service("payments.settle", 5, 2, 600, {"x-confirm-mode": "consumer-ack"}),
    Service("prices.live", 8, 2, 200, {"x-confirm-mode": "consumer-ack-light"}),
    Service("orders.created", 12, 3, 1200),
    Service("payments.authorize", 9, 2, 600),
    Service("analytics.views", 25, 2, 250),
    Service("emails.transactional", 6, 2, 1500),
    Service("orders.paid", 8, 2, 900),
    Service("orders.packed", 6, 1, 500),
    Service("orders.shipped", 6, 1, 500),
    Service("payments.capture", 7, 2, 600),
    Service("payments.refund", 0.4, 1, 600),
    Service("emails.newsletter", 0, 1, 4000),
    Service("sms.out", 2, 1, 200),
    Service("push.out", 5, 2, 300),
    Service("search.index", 10, 2, 800),
    Service("inventory.reserve", 9, 2),
    Service("inventory.release", 1, 1),
    Service("pricing.update", 3, 1),
    Service("reports.daily", 0.05, 1, 5000),
    Service("crm.sync", 2, 1, 700),
    Service("analytics.clicks", 18, 2, 250),
    Service("fraud.check", 9, 3, 700),
    Service("recommendations", 4, 1),
    Service("warehouse.pick", 5, 2),
    Service("delivery.tracking", 7, 2, 300),
    Service("accounting.export", 0.2, 1, 3000),
)
BURST = "emails.newsletter"
"""A queue that gets all its messages at once, twice, and is worked off: no trouble."""
REJECTED_SHARE = 0.2
EVERYBODY = len(TROUBLED) + len(WELL)
LEAST = len(TROUBLED) + 4
"""The troubled ones, and those that are well and not like all others."""


def fleet(size: int) -> tuple[Service, ...]:
    """Return a fleet of so many queues, the troubled ones included."""
    if not LEAST <= size <= EVERYBODY:
        raise ValueError(f"{LEAST} to {EVERYBODY} queues")
    return (*TROUBLED, *WELL[: size - len(TROUBLED)])


class SteppedExport(Export):
    """An export whose rounds are run by whoever moves the time."""

    _is_over = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start; the first round prepares the folders."""
        self._rows.begin()
        del loop
        self._broker.context.note("start", "", __version__)

    async def round(self) -> None:
        """Write what has changed since the last round."""
        await self._look()

    async def end(self) -> None:
        """Finish all files as they are: the demo shows a broker that goes on, with its clients."""
        await self._look()
        await self._finish(list(self._files))
        self._is_over = True

    async def stop(self, reason: str) -> None:
        """Write the final state, and finish all files."""
        if self._is_over:
            self._unlock()
            return
        self._broker.context.note("stop", "", reason)
        await self._look()
        await self._finish(list(self._files))
        self._unlock()


class DemoLoop(EmbeddedLoop):
    """A loop whose measurements follow the time source, too, except for the lag of the event loop."""

    _due = 0

    def monotonic(self) -> int:  # type: ignore[override]
        """Return nanoseconds of the time source."""
        return self.time_source.elapsed

    def _schedule_tick(self) -> None:
        super()._schedule_tick()
        self._due = time.monotonic_ns() + self._tick_due - self.monotonic()

    def tick(self) -> None:
        self._tick_due = self.context.now - max(0, time.monotonic_ns() - self._due)
        super().tick()


class DemoServer(EmbeddedServer):
    """A server whose measurements follow its time source."""

    loop_class = DemoLoop
    export: SteppedExport

    def _make_export(self) -> SteppedExport:
        settings = msgspec.structs.replace(self.config.export, retention=0)
        return SteppedExport(self, settings, self.config.node_name)


class DemoCore(Core):
    """A broker whose clock begins at `start`."""

    def __init__(self, data_dir: Path, config: Mapping[str, object], start: datetime) -> None:
        super().__init__(data_dir, config, 0)
        self.time._wall_origin = round(start.timestamp() * SECOND) - self.time.elapsed

    def _make_server(self) -> EmbeddedServer:
        disk = open_data_store(self.config, FaultyStore)
        return DemoServer(self.config, disk, self.time, self.fault_state, self.recorder)


class Worker(Client):
    """A consumer that settles its messages when it is told to."""

    def __init__(self) -> None:
        super().__init__(on_body=self._take)
        self._tag = 0
        self._held: deque[tuple[int, bool]] = deque()
        self.rejects: Callable[[], bool] | None = None
        """Returns whether the next message is rejected; None if none is."""

    def _take(self, body: bytes) -> None:
        self._tag += 1  # delivery tags of the one channel count from 1
        self._held.append((self._tag, body.startswith(POISON)))

    def settle(self, most: float) -> int:
        """Ack at most so many messages, put back those that cannot be processed; return the number of acks."""
        acked = last = 0
        frames = []
        for tag, is_poison in self._held:
            if is_poison:
                if last:
                    frames.append(ack_frame(METHOD, 1, 13, 60, 80, last, True, 0xCE))
                frames.append(nack_frame(METHOD, 1, 13, 60, 120, tag, REQUEUE, 0xCE))
                last = 0
            elif self.rejects is not None:
                frames.append(
                    nack_frame(METHOD, 1, 13, 60, 120, tag, 0, 0xCE)
                    if self.rejects()
                    else ack_frame(METHOD, 1, 13, 60, 80, tag, False, 0xCE)
                )
                acked += 1
            elif acked < most:
                last = tag
                acked += 1
            else:
                break
        if last:
            frames.append(ack_frame(METHOD, 1, 13, 60, 80, last, True, 0xCE))
        settled = acked + sum(is_poison for _, is_poison in self._held if frames)
        for _ in range(min(settled, len(self._held))):
            self._held.popleft()
        if frames:
            self.transport.write(b"".join(frames))
        return acked


class Demo:
    """A run of the demo.

    Args:
        folder: the directory for the export.
        data_dir: the broker's data.
        minutes: length by the broker's clock.
        queues: number of queues.
        seed: of the load, which differs a little with each.
        step: seconds that the clock is moved on at a time.
        interval: seconds between two rounds of the export.
        start: where the clock begins.
    """

    def __init__(
        self,
        folder: Path,
        data_dir: Path,
        *,
        minutes: float = 60,
        queues: int = EVERYBODY,
        seed: int = 1,
        step: float = 2,
        interval: float = 5,
        start: datetime = START,
    ) -> None:
        self._fleet = fleet(queues)
        self._seconds = minutes * 60
        self._step, self._interval = step, interval
        self._chance = random.Random(seed)
        self._rejecting = random.Random(seed)  # apart: how many messages a step delivers may differ a little
        config = {
            "export.dir": str(folder),
            "export.interval": f"{interval:g}s",
            "node_name": "rabbit@shop-1",
            "storage.sync": False,  # thousands of flushes would take longer than all the rest
        }
        self._core = DemoCore(data_dir, config, start)
        self._publishers: list[Client] = []
        self._workers: dict[str, list[Worker]] = {}
        self._dead: set[str] = set()
        self._alarm: Fault | None = None
        self._due = dict.fromkeys([each.queue for each in self._fleet], 0.0)
        self._done = dict.fromkeys([each.queue for each in self._fleet], 0.0)
        self.published = 0

    async def run(self, say: Any = None) -> None:
        """Run it from beginning to end.

        Args:
            say: called with the minutes done so far, about every five; may be None.
        """
        # Connecting takes none of the demo's time, as it takes longer on a machine that does other things.
        self._core.clock.freeze()
        await self._core.start()
        try:
            await self._declare()
            await self._connect()
            self._core.clock.resume()
            began = self._core.time.elapsed
            plan = [
                (0.15, self._send_poison),
                (0.3, partial(self._kill_worker, DEAD)),
                (0.34, self._raise_alarm),
                (0.37, self._clear_alarm),
                (0.45, partial(self._kill_worker, PROMISED)),
                (0.75, self._restart),
            ]
            passed, exported = 0.0, 0.0
            while passed < self._seconds:
                while plan and plan[0][0] * self._seconds <= passed:
                    passed += await plan.pop(0)[1]() or 0
                await self._load(passed)
                passed += self._step
                left = began + passed * SECOND - self._core.time.elapsed
                if left >= MILLISECOND:
                    await self._core.clock.advance(seconds=left / SECOND)
                if passed - exported >= self._interval:
                    exported = passed
                    await self._core.server.export.round()
                    if say is not None and not passed % 300:
                        say(passed / 60)
            await self._core.server.export.end()
        finally:
            await self._core.stop()
            for client in self._clients():
                client.close()

    # -- clients ----------------------------------------------------------------------------------------------------

    def _clients(self) -> list[Client]:
        return [*self._publishers, *(each for workers in self._workers.values() for each in workers)]

    async def _declare(self) -> None:
        client = await Client.connect(self._core.address[1])
        await client.call(commands.Exchange.Declare(exchange=EXCHANGE, exchange_type="topic", durable=True))
        await client.call(commands.Exchange.Declare(exchange=FAN_OUT, exchange_type="fanout", durable=True))
        for each in self._fleet:
            await client.call(
                commands.Queue.Declare(queue=each.queue, durable=True, arguments=dict(each.arguments))
            )
            exchange = FAN_OUT if each in UNREAD else EXCHANGE
            await client.call(
                commands.Queue.Bind(queue=each.queue, exchange=exchange, routing_key=each.queue)
            )
        client.close()

    async def _connect(self) -> None:
        """Connect all publishers, and all workers that are alive."""
        port = self._core.address[1]
        self._publishers = [await Client.connect(port) for _ in range(4)]
        for publisher in self._publishers:
            await publisher.call(commands.Confirm.Select())
        self._workers = {}
        for each in self._fleet:
            if each.queue not in self._dead:
                self._workers[each.queue] = [await self._worker(port, each) for _ in range(each.workers)]

    async def _worker(self, port: int, service: Service) -> Worker:
        worker = await Worker.connect(port)
        await worker.consume(service.queue, no_ack=False, prefetch=10 if service is SLOW else 200)
        if service is REJECTED:
            worker.rejects = lambda: self._rejecting.random() < REJECTED_SHARE
        return worker

    # -- load -------------------------------------------------------------------------------------------------------

    async def _load(self, passed: float) -> None:
        """Publish and consume what belongs to one step that begins after so many seconds."""
        if self._alarm is None:
            await self._publish(passed)
        for turn in range(SETTLE_ROUNDS):
            await self._core.server.settle()
            for each in self._fleet:
                for worker in self._workers.get(each.queue, ()):
                    # A message that is put back comes again at once; an attempt takes a step.
                    if turn == 0 or each is not POISONED:
                        worker.settle(self._allowed(each) if each is SLOW else math.inf)
        await self._core.server.settle()

    async def _publish(self, passed: float) -> None:
        for number, each in enumerate(self._fleet):
            count = self._count(each, passed)
            if count:
                frames = self._frames(each, count)
                await self._publishers[number % len(self._publishers)].publish(frames, count)
                self.published += count
        notices = self._whole(FAN_OUT, 0.6 * self._step)
        if notices:
            body = self._chance.randbytes(300)
            frames = publish_frames("", body, exchange=FAN_OUT, persistent=True) * notices
            await self._publishers[0].publish(frames, notices)
            self.published += notices

    def _count(self, service: Service, passed: float) -> int:
        """Return how many messages come in this step."""
        if service.queue == BURST:
            bursts = (round(0.2 * self._seconds), round(0.6 * self._seconds))
            return 2000 if any(0 <= passed - at < self._step for at in bursts) else 0
        rate = service.rate
        if service is SLOW and passed >= 0.4 * self._seconds:
            rate *= 2.25  # a campaign: more pictures than the workers can do
        wave = 1 + 0.25 * math.sin(2 * math.pi * (passed / 2400 + len(service.queue) / 7))
        noise = self._chance.uniform(0.7, 1.3)
        return self._whole(service.queue, rate * wave * noise * self._step)

    def _whole(self, name: str, amount: float) -> int:
        """Return the whole messages of an amount; the rest is kept for later."""
        due = self._due.get(name, 0.0) + amount
        self._due[name] = due % 1
        return int(due)

    def _allowed(self, service: Service) -> int:
        """Return how many messages one of the slow workers can do in a part of a step."""
        amount = self._done[service.queue] + 3.2 * self._step / SETTLE_ROUNDS
        self._done[service.queue] = amount % 1
        return int(amount)

    def _frames(self, service: Service, count: int) -> bytes:
        body = self._chance.randbytes(service.size)
        frames = publish_frames(
            service.queue, body, exchange=EXCHANGE, persistent=True, headers=service.headers
        )
        return frames * count

    # -- troubles ---------------------------------------------------------------------------------------------------

    async def _send_poison(self) -> None:
        frames = publish_frames(POISONED.queue, POISON, exchange=EXCHANGE, persistent=True)
        await self._publishers[0].publish(frames, 1)

    async def _kill_worker(self, service: Service) -> None:
        self._dead.add(service.queue)
        for worker in self._workers.pop(service.queue):
            worker.close()

    async def _raise_alarm(self) -> None:
        """Have the broker believe that its memory is short: it reads no more of what publishers send, who wait."""
        self._alarm = self._core.faults.block("memory")

    async def _clear_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.end()
            self._alarm = None

    async def _restart(self) -> float:
        """Restart the broker as a deployment does; all clients come back. Return the seconds in between."""
        clock = self._core.time
        back = clock.elapsed + AWAY_SECONDS * SECOND
        await self._core.stop()
        clock.attach(asyncio.get_running_loop())
        clock.begin_moving()
        clock.move_to(max(back, clock.elapsed))
        clock.end_moving()
        for client in self._clients():
            client.close()
        await self._core.start()
        await self._connect()
        clock.run()
        return AWAY_SECONDS


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--output", type=Path, default=Path("build/demo/export"), help="replaced if it exists"
    )
    parser.add_argument("--minutes", type=float, default=60, help="by the broker's clock")
    parser.add_argument("--queues", type=int, default=EVERYBODY)
    parser.add_argument("--seed", type=int, default=1, help="of the load")
    options = parser.parse_args(arguments)
    begun = time.monotonic()

    def say(minutes: float) -> None:
        print(f"{time.monotonic() - begun:6.1f} s: {minutes:.0f} minutes", file=sys.stderr)

    print(f"making {options.minutes:g} minutes of a fleet of {options.queues} queues ...", file=sys.stderr)
    if options.output.exists():
        shutil.rmtree(options.output)
    with tempfile.TemporaryDirectory() as folder:
        demo = Demo(
            options.output, Path(folder), minutes=options.minutes, queues=options.queues, seed=options.seed
        )
        asyncio.run(demo.run(say))
    print(f"{demo.published:,} messages in {time.monotonic() - begun:.0f} s: {options.output}")


if __name__ == "__main__":
    main()

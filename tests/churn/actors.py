"""Actors of the churn: they make and delete queues, exchanges, bindings, channels, consumers and connections.

Each actor does one small thing again and again until it is stopped, checks what it sees itself, and reports to
the ledger what an honest broker cannot do:

    O1   what was confirmed, and nobody took, is there
    O3   and in order
    O6   a queue goes after its `x-expires`, not before
    O9   counts are right; what was deleted is gone, with everything in it
    O10  replies come, connections stay
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from churn.governed import AdminClient
from crash.ledger import Ledger
from crash.link import Link, LostError, property_octets, publish_frames
from pamqp import commands

VHOST_LIMITS = "vhost-limits", "limits"
GONE_WITHIN = 5.0
"""Seconds in which a queue goes that has no reason to stay; other work may be in its way."""
STEADY = 20.0
"""Seconds for any other reply or condition."""
WHOLE = 90.0
"""Seconds for an actor's whole act."""


class Inbox:
    """Takes in what comes on a channel."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes, bool]] = []
        """Delivery tags, bodies, redelivered."""
        self.open: set[int] = set()
        """Numbers of publishes without a verdict."""
        self.nacked = 0
        self.on_delivery: Callable[[int, bytes, bool], object] | None = None

    def delivery(self, tag: int, body: bytes, *, redelivered: bool) -> None:
        self.got.append((tag, body, redelivered))
        if self.on_delivery is not None:
            self.on_delivery(tag, body, redelivered)

    def verdict(self, number: int, *, multiple: bool, ack: bool) -> None:
        confirmed = {each for each in self.open if each <= number} if multiple else {number}
        self.open -= confirmed
        self.nacked += 0 if ack else len(confirmed)

    def came_back(self, body: bytes) -> None:
        """Ignore a return."""

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body, _ in self.got]


class Actor:
    """An actor of the churn.

    Args:
        ledger: takes the observations.
        port: the broker's.
        rng: what decides.
        number: goes into the names of what it makes.
        home: the folder that the broker runs in.

    """

    pause: ClassVar[float] = 0.05
    """Seconds between two acts, about."""

    def __init__(self, ledger: Ledger, port: int, rng: random.Random, number: int, home: Path) -> None:
        del home
        self.ledger, self.port, self.rng, self.number = ledger, port, rng, number
        self.link: Link
        self.times = 0
        self.going = True

    async def run(self) -> None:
        """Repeat the act until `going` is false."""
        try:
            self.link = await Link.connect(self.port)
            while self.going:
                await asyncio.wait_for(self.once(), WHOLE)
                self.times += 1
                await asyncio.sleep(self.rng.uniform(0, 2 * self.pause))
            await self.link.close()
        except (LostError, OSError, AssertionError, TimeoutError) as error:
            self.wrong("O10", f"ended by {error!r}")

    async def once(self) -> None:
        """Do the actor's act once."""
        raise NotImplementedError

    def wrong(self, oracle: str, text: str) -> None:
        self.ledger.broke(oracle, f"{type(self).__name__}, time {self.times}: {text}")

    def name(self, what: str) -> str:
        """A name that was not used before."""
        return f"churn.{what}.{self.number}.{self.times}"

    async def publish(
        self, inbox: Inbox, bodies: list[bytes], key: str, exchange: str = "", **properties: Any
    ) -> None:
        """Publish on channel 1 of the actor's connection, which is in confirm mode, and wait for the confirms."""
        inbox.open, inbox.nacked = set(range(1, len(bodies) + 1)), 0
        await self.link.open(1, inbox)
        await self.link.call(commands.Confirm.Select())
        octets = property_octets(**properties)
        self.link.transport.write(
            b"".join([publish_frames(key, body, exchange=exchange, properties=octets) for body in bodies])
        )
        if not await self.until(lambda: not inbox.open, "confirms"):
            self.wrong("O4", f"{len(inbox.open)} of {len(bodies)} for {key}, from {min(inbox.open)} on")
        await self.link.call(commands.Channel.Close(200, "", 0, 0))

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = STEADY) -> bool:
        """Wait for a condition; reports to the ledger if it does not come true in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                self.wrong("O10", f"no {what} within {seconds} s")
                return False
            await asyncio.sleep(0.005)
        return True

    async def count(self, queue: str, channel: int = 900) -> int | None:
        """Return the number of ready messages of a queue; None if there is no such queue."""
        await self.link.open(channel)
        try:
            reply = await self.link.call(commands.Queue.Declare(queue=queue, passive=True), channel)
        except LostError:
            if self.link.lost.done():
                raise
            return None
        await self.link.call(commands.Channel.Close(200, "", 0, 0), channel)
        return int(reply.message_count)

    async def goes(self, queue: str, why: str) -> None:
        """Wait until a queue is gone."""
        deadline = time.monotonic() + GONE_WITHIN
        while await self.count(queue) is not None:
            if time.monotonic() > deadline:
                self.wrong("O9", f"{queue} is still there {GONE_WITHIN} s after {why}")
                return
            await asyncio.sleep(0.01)

    async def goes_unasked(self, queue: str, after: float) -> None:
        """Asking resets the time, so ask seldom, and ever less often."""
        longer = 0.1
        while await self.count(queue) is not None:
            if longer > GONE_WITHIN:
                self.wrong("O9", f"{queue} does not expire")
                return
            await asyncio.sleep(after + longer)
            longer *= 2


class Declaring(Actor):
    """Declares, binds, publishes, gets everything back in order, unbinds, deletes."""

    ARGUMENTS: ClassVar[tuple[dict[str, Any], ...]] = (
        {},
        {"x-max-priority": 3},
        {"x-max-length": 1000},
        {"x-message-ttl": 60_000},
        {"x-queue-mode": "lazy"},
        {"x-single-active-consumer": True},
        {"x-expires": 60_000, "x-dead-letter-exchange": ""},
        {"x-max-length-bytes": 10_000_000, "x-overflow": "reject-publish"},
    )

    async def once(self) -> None:
        """Declare, use and delete one queue and one exchange."""
        rng, link = self.rng, self.link
        queue, exchange, inbox = self.name("declared"), self.name("exchange"), Inbox()
        durable = rng.random() < 0.5
        await link.open(2, inbox)
        await link.call(
            commands.Queue.Declare(queue=queue, durable=durable, arguments=rng.choice(self.ARGUMENTS)), 2
        )
        kind = rng.choice(("direct", "fanout", "topic", "headers"))
        await link.call(
            commands.Exchange.Declare(exchange=exchange, exchange_type=kind, durable=rng.random() < 0.5), 2
        )
        await link.call(commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=queue), 2)
        bodies = [b"%d of %s" % (number, queue.encode()) for number in range(rng.randint(1, 40))]
        await self.publish(inbox, bodies, queue, exchange, persistent=rng.random() < 0.5)
        if inbox.nacked:
            self.wrong("O4", f"{inbox.nacked} of {len(bodies)} were refused")
        taken = rng.randint(0, len(bodies))
        for _ in range(taken):
            await link.call(commands.Basic.Get(queue=queue, no_ack=True), 2)
        if bodies[:taken] != inbox.bodies:
            self.wrong("O3", f"{taken} gets brought {inbox.bodies}")
        if rng.random() < 0.5:
            await link.call(commands.Queue.Unbind(queue=queue, exchange=exchange, routing_key=queue), 2)
        if rng.random() < 0.3:
            purged = (await link.call(commands.Queue.Purge(queue=queue), 2)).message_count
            if purged != len(bodies) - taken:
                self.wrong("O9", f"{purged} purged of {len(bodies) - taken}")
            taken = len(bodies)
        await link.call(commands.Exchange.Delete(exchange=exchange), 2)
        left = (await link.call(commands.Queue.Delete(queue=queue), 2)).message_count
        if left != len(bodies) - taken:
            self.wrong("O9", f"{left} were deleted with the queue, not {len(bodies) - taken}")
        await link.call(commands.Channel.Close(200, "", 0, 0), 2)


class Expiring(Actor):
    """Declares queues that expire, uses some of them, and sees them go, not before their time."""

    async def once(self) -> None:
        """Declare a few queues that expire."""
        queues = {self.name(f"expires-{number}"): self.rng.randint(50, 400) for number in range(4)}
        for queue, after in queues.items():
            await self.link.open(2)
            await self.link.call(
                commands.Queue.Declare(queue=queue, durable=True, arguments={"x-expires": after}), 2
            )
            await self.link.call(commands.Channel.Close(200, "", 0, 0), 2)
        queue, first = next(iter(queues.items()))
        used = time.monotonic()
        if await self.count(queue) is not None:  # asking is use
            await self.publish(Inbox(), [b"x"] * 10, queue)
            count = await self.count(queue)
            if count is None and time.monotonic() - used < first / 1000 - 0.01:
                self.wrong("O6", f"{queue} is gone before its {first} ms are over")
        await asyncio.sleep(max(queues.values()) / 1000)
        for queue, after in queues.items():
            await self.goes_unasked(queue, after / 1000)


class Leaving(Actor):
    """Exclusive queues go with their connection, queues that delete themselves with their last consumer."""

    async def once(self) -> None:
        """Use both kinds of queue; end by closing or by aborting."""
        rng = self.rng
        other = await Link.connect(self.port)
        exclusive, automatic = self.name("exclusive"), self.name("auto-delete")
        await other.open(1, Inbox())
        await other.call(commands.Queue.Declare(queue=exclusive, exclusive=True))
        await other.call(commands.Queue.Declare(queue=automatic, auto_delete=True))
        await other.call(commands.Basic.Consume(queue=automatic, consumer_tag="it"))
        await self.publish(Inbox(), [b"x" * rng.randint(0, 5000)] * 20, automatic)
        other.transport.write(b"".join([publish_frames(exclusive, b"mine") for _ in range(20)]))
        how = rng.random()
        if how < 0.3:
            other.cut()
            await other.gone()
        elif how < 0.6:
            await other.close()
        else:
            await other.call(commands.Basic.Cancel(consumer_tag="it"))
            await self.goes(automatic, "its consumer was cancelled")
            await other.close()
        await self.goes(exclusive, "its connection")
        await self.goes(automatic, "its consumer")


class Channels(Actor):
    """Opens channels and consumers, with and without priority, and closes them, some by errors."""

    async def once(self) -> None:
        """Open, use and close twenty channels."""
        link = self.link
        queue = self.name("channels")
        await link.open(1)
        await link.call(commands.Queue.Declare(queue=queue, exclusive=True))
        numbers = range(10, 30)
        for number in numbers:
            await link.open(number, Inbox())
            await link.call(
                commands.Basic.Consume(
                    queue=queue,
                    consumer_tag=f"c{number}",
                    arguments={"x-priority": number % 3} if number % 2 else {},
                ),
                number,
            )
        link.transport.write(b"".join([publish_frames(queue, b"x") for _ in range(100)]))
        for number in numbers:
            if number % 5 == 0:
                with contextlib.suppress(LostError):
                    await link.call(commands.Queue.Declare(queue="no such queue", passive=True), number)
                if link.lost.done():
                    raise LostError(link.lost.result())
            else:
                await link.call(commands.Channel.Close(200, "", 0, 0), number)
        count = await self.count(queue)
        if count != 100:
            self.wrong("O9", f"{count} of 100 are back after all consumers left")
        await link.call(commands.Queue.Delete(queue=queue))
        await link.call(commands.Channel.Close(200, "", 0, 0))


class Storming(Actor):
    """Thousands of messages that expire, at once or one by one, with dead letters or without."""

    pause: ClassVar[float] = 0.5

    async def once(self) -> None:
        """Raise one storm of expiring messages: all are gone, or where dead letters go, soon after the last is due."""
        rng, link = self.rng, self.link
        queue, dead, count = self.name("storm"), self.name("dead"), rng.choice((200, 1000, 3000))
        letters = rng.random() < 0.5
        arguments: dict[str, Any] = {"x-message-ttl": rng.choice((0, 50, 300))}
        if letters:
            arguments |= {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        await link.open(2)
        durable = rng.random() < 0.6
        await link.call(commands.Queue.Declare(queue=dead, durable=durable), 2)
        await link.call(commands.Queue.Declare(queue=queue, durable=durable, arguments=arguments), 2)
        await self.publish(
            Inbox(),
            [b"%d" % number * 20 for number in range(count)],
            queue,
            expiration=rng.choice((None, 100)),
        )
        deadline, found = time.monotonic() + GONE_WITHIN, None
        wanted = count if letters else 0
        while (left := await self.count(queue)) or (found := await self.count(dead)) != wanted:
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.02)
        if left or found != wanted:
            self.wrong("O1", f"of {count} messages {left} have not expired and {found} are dead letters")
        await link.call(commands.Queue.Delete(queue=queue), 2)
        await link.call(commands.Queue.Delete(queue=dead), 2)
        await link.call(commands.Channel.Close(200, "", 0, 0), 2)


class Delaying(Actor):
    """Declares delayed exchanges, leaves messages in them that are not due for long, deletes them."""

    pause: ClassVar[float] = 0.3

    async def once(self) -> None:
        """Use one delayed exchange: due messages come in time and in order; the others go with it."""
        link, rng = self.link, self.rng
        exchange, queue = self.name("delayed"), self.name("due")
        await link.open(2)
        await link.call(
            commands.Exchange.Declare(
                exchange=exchange,
                exchange_type="x-delayed-message",
                durable=rng.random() < 0.7,
                arguments={"x-delayed-type": rng.choice(("direct", "topic", "fanout"))},
            ),
            2,
        )
        await link.call(commands.Queue.Declare(queue=queue, durable=rng.random() < 0.7), 2)
        await link.call(commands.Queue.Bind(queue=queue, exchange=exchange, routing_key=queue), 2)
        await self.publish(Inbox(), [b"later"] * rng.choice((10, 500)), queue, exchange, delay=600_000)
        await self.publish(Inbox(), [b"soon"] * 20, queue, exchange, delay=100)
        await asyncio.sleep(0.1)
        deadline = time.monotonic() + GONE_WITHIN
        while (due := await self.count(queue)) != 20 and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        if due != 20:
            self.wrong("O1", f"{due} of 20 delayed messages came within {GONE_WITHIN} s")
        await link.call(commands.Exchange.Delete(exchange=exchange), 2)
        await link.call(commands.Queue.Delete(queue=queue), 2)
        await link.call(commands.Channel.Close(200, "", 0, 0), 2)


class Alone(Actor):
    """A queue with a single active consumer: three want to be it, and the active one dies again and again."""

    pause: ClassVar[float] = 0.2
    COUNT: ClassVar[int] = 300

    async def once(self) -> None:
        """All messages come, in order, to one consumer at a time."""
        queue = self.name("alone")
        await self.link.open(2)
        await self.link.call(
            commands.Queue.Declare(queue=queue, durable=True, arguments={"x-single-active-consumer": True}), 2
        )
        bodies = [b"%06d" % number for number in range(self.COUNT)]
        await self.publish(Inbox(), bodies, queue)
        seen: list[bytes] = []
        links = [await Link.connect(self.port) for _ in range(3)]
        inboxes = [Inbox() for _ in links]
        for link, inbox in zip(links, inboxes, strict=True):
            await link.open(1, inbox)
            await link.call(commands.Basic.Qos(prefetch_count=20))
            inbox.on_delivery = self._acking(link, seen)
            await link.call(commands.Basic.Consume(queue=queue, consumer_tag="it"))
        for at, link in enumerate(links[:2], 1):
            await self.until(lambda at=at: len(seen) >= at * 60, "deliveries to the active consumer")  # type: ignore[misc]
            if inboxes[at].got:
                self.wrong("O3", "two consumers are active")
            link.cut()
            await link.gone()
        done = await self.until(lambda: len(set(seen)) >= self.COUNT, "deliveries to the last consumer")
        if done and (sorted(set(seen)) != bodies or inboxes[2].bodies != sorted(inboxes[2].bodies)):
            self.wrong("O3", "the last consumer got them out of order")
        await links[2].close()
        await self.link.call(commands.Queue.Delete(queue=queue), 2)
        await self.link.call(commands.Channel.Close(200, "", 0, 0), 2)

    @staticmethod
    def _acking(link: Link, seen: list[bytes]) -> Callable[[int, bytes, bool], object]:
        def ack(tag: int, body: bytes, _redelivered: bool) -> None:
            seen.append(body)
            if not link.lost.done() and not link.transport.is_closing():
                link.settle(1, tag)

        return ack


class Governing(Actor):
    """Sets and clears policies and limits, adds and deletes vhosts and users, lists and exports."""

    pause: ClassVar[float] = 0.1

    def __init__(self, ledger: Ledger, port: int, rng: random.Random, number: int, home: Path) -> None:
        super().__init__(ledger, port, rng, number, home)
        self.admin = AdminClient(home)

    async def run(self) -> None:
        """Run as the others do, with a connection to the administrators' socket."""
        await self.admin.open()
        await super().run()
        await self.admin.close()

    async def once(self) -> None:
        """Set one policy, and do one of the other acts."""
        await self._policy()
        await self.rng.choice((self._tenant, self._limits, self._look))()

    async def _policy(self) -> None:
        """Set a policy that is in effect at once on an existing queue, and without effect when it is gone."""
        queue, dead, inbox = self.name("governed"), self.name("governed.dead"), Inbox()
        for name in (queue, dead):
            await self._declare(name)
        await self.publish(inbox, [b"x"] * 20, queue)
        operator = self.rng.random() < 0.3
        length = {"max-length": 5} if operator else {"max-length": 5, "dead-letter-exchange": "", **_to(dead)}
        await self._set(queue, length, operator=operator)
        await self.counts("shortened", {queue: 5, dead: 0 if operator else 15})
        await self._set(queue, {"message-ttl": 30}, operator=operator)
        await self.publish(inbox, [b"x"] * 10, queue)
        await self.admin.call("policies of the vhost", "clear", queue, operator=operator)
        await self.publish(inbox, [b"x"] * 3, queue)
        count = await self.count(queue)
        if (
            count is None or not 8 <= count <= 18
        ):  # what was there before stays, and perhaps those ten behind it
            self.wrong("O9", f"{count} messages are ready where 8 to 18 should be")
        await self._set(queue, {"expires": 100}, operator=operator)
        await self.goes_unasked(queue, 0.1)
        await self.admin.call("policies of the vhost", "clear", queue, operator=operator)
        await self.link.open(2)
        await self.link.call(commands.Queue.Delete(queue=dead), 2)
        await self.link.call(commands.Channel.Close(200, "", 0, 0), 2)

    async def _declare(self, queue: str) -> None:
        await self.link.open(2)
        await self.link.call(commands.Queue.Declare(queue=queue, durable=self.rng.random() < 0.6), 2)
        await self.link.call(commands.Channel.Close(200, "", 0, 0), 2)

    async def _set(self, queue: str, definition: dict[str, Any], *, operator: bool) -> None:
        pattern = f"^{queue.replace('.', '[.]')}$"
        term = {"pattern": pattern, "definition": definition, "priority": 1, "apply-to": "queues"}
        await self.admin.call("policies of the vhost", "set_term", queue, term, operator=operator)

    async def counts(self, what: str, wanted: dict[str, int]) -> None:
        """Report to the ledger if queues do not come to have so many messages."""
        deadline = time.monotonic() + GONE_WITHIN
        while (found := {queue: await self.count(queue) for queue in wanted}) != wanted:
            if time.monotonic() > deadline:
                self.wrong("O9", f"{what}: {found} instead of {wanted}")
                return
            await asyncio.sleep(0.01)

    async def _tenant(self) -> None:
        """A vhost with a user of its own, a queue and limits."""
        name, admin = self.name("tenant"), self.admin
        await admin.call("vhosts", "put", name, description="churn")
        await admin.call("users", "put", name, tags=["management"], password=name)
        await admin.call("users", "set_permissions", name, name, configure=".*", write=".*", read=".*")
        await admin.call("users", "set_topic_permissions", name, name, "amq.topic", write="^a", read="^b")
        await admin.call("policies", "set_parameter", name, *VHOST_LIMITS, {"max-queues": 10})
        await admin.call("topology", "declare_queue", name, "q", durable=True)
        await admin.call("topology", "bind", name, "amq.topic", "q", routing_key="a.#")
        await self._revoked(name)
        await admin.call("vhosts", "delete", name)

    async def _revoked(self, name: str) -> None:
        """A connection of the tenant's: its consumer goes with the right to read, and itself with the user."""
        link = await Link.connect(self.port, name, name)
        await link.open(1)
        await link.call(commands.Basic.Consume(queue="q"), 1)
        await self.admin.call("users", "set_permissions", name, name, configure="", write=".*", read="")
        if left := await self.admin.call("listings", "consumers", name):
            self.wrong("O9", f"consumers without the right to read: {left}")
        await self.admin.call("users", "delete", name)
        await self.until(link.lost.done, "end of a deleted user's connection")

    async def _limits(self) -> None:
        """Set limits of users and vhosts."""
        limits = {"max-connections": 10_000, "max-queues": 100_000}
        await self.admin.call("policies", "set_parameter", "/", *VHOST_LIMITS, limits)
        await self.admin.call("users", "set_limits", "guest", {"max-connections": 10_000})
        await self.admin.call("users", "clear_limits", "guest")
        await self.admin.call("policies", "set_parameter", "/", *VHOST_LIMITS, {})

    async def _look(self) -> None:
        for listing in ("connections", "channels", "consumers", "queues"):
            if not await self.admin.call("listings", listing) and listing in {"connections", "queues"}:
                self.wrong("O9", f"there are no {listing}")
        await self.admin.call("definitions", "export_file")


def _to(queue: str) -> dict[str, str]:
    return {"dead-letter-routing-key": queue}


ACTORS: tuple[type[Actor], ...] = (
    Declaring,
    Declaring,
    Expiring,
    Leaving,
    Channels,
    Storming,
    Delaying,
    Alone,
    Governing,
)

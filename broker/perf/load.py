"""The load to create: options, which queues each producer and consumer uses, and the objects that it needs."""

from collections.abc import Sequence

import msgspec

from leveret.broker.amqp.commands import Exchange, Frame, Queue, make
from leveret.broker.client.client import Client
from leveret.broker.client.errors import ReplyError

STAMP_SIZE = 12  # least size of a body, in bytes: the mark of the run, and when the message was due
AUTOMATIC_NAME = "leveret-perf"
NOT_FOUND = 404


class LoadError(ValueError):
    """Options that contradict each other."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run, as the help of `leveret perf` explains them; each worker has a connection of its own.

    Without acks (`ack_every` 0) the broker does not expect any. 0 stands for no confirms, no limit of the prefetch
    count, a rate as high as possible, and no end; None for the names of the run's own, and for those of the queues.
    """

    producers: int = 1
    consumers: int = 1
    size: int = STAMP_SIZE
    persistent: bool = False
    mandatory: bool = False
    confirm: int = 0
    prefetch: int = 0
    ack_every: int = 1
    queues: int = 1
    queue: str | None = None
    exchange: str = ""
    exchange_type: str = "direct"
    routing_key: str | None = None
    rate: float = 0.0
    seconds: float = 10.0

    def check(self) -> None:
        """Raise LoadError if the options contradict each other."""
        if not self.producers and not self.consumers:
            raise LoadError("there must be at least one producer or consumer")
        if self.routing_key is not None and not self.exchange:
            raise LoadError(
                "--routing-key needs --exchange: the default exchange routes by the names of queues"
            )
        if not self.queues and (self.consumers or not self.exchange):
            raise LoadError("without queues there must be an --exchange and no consumers")
        if 0 < self.prefetch < self.ack_every:
            raise LoadError(
                "--multi-ack-every must not be greater than --qos: the broker would wait for the acks"
            )

    def queue_names(self, run: str) -> list[str]:
        """Return the names of the queues; `run` identifies the run in names of its own."""
        if self.queue is not None and self.queues == 1:
            return [self.queue]
        start = f"{AUTOMATIC_NAME}-{run}" if self.queue is None else self.queue
        return [f"{start}-{number}" for number in range(1, self.queues + 1)]

    def routing_keys(self, names: Sequence[str]) -> list[str]:
        """Return the routing keys that reach queues with these names."""
        if self.routing_key is not None:
            return [self.routing_key]
        return list(names) or [""]


def shares(workers: int, items: Sequence[str]) -> list[list[str]]:
    """Divide items among workers, none of them idle; with fewer items than workers several get the same."""
    if workers >= len(items):
        return [[items[worker % len(items)]] for worker in range(workers)]
    return [list(items[worker::workers]) for worker in range(workers)]


class Topology:
    """The exchange, queues and bindings of a run: declared if they do not exist, and then deleted at its end."""

    def __init__(self, load: Load, names: Sequence[str]) -> None:
        self._load = load
        self._names = names
        self._made_queues: list[str] = []
        self._made_exchange = False

    @property
    def is_own(self) -> bool:
        """True if no other client can publish to or consume from the queues, as far as the tool knows."""
        return not self._load.exchange and len(self._made_queues) == len(self._names)

    async def declare(self, client: Client) -> None:
        """Declare what does not exist yet. Raises ReplyError, and what the connection raises."""
        load = self._load
        passive = make(Exchange.Declare, 0, load.exchange, "", True, False, False, False, False, {})
        if load.exchange and not await _exists(client, passive):
            made = make(Exchange.Declare, 0, load.exchange, load.exchange_type, *[False] * 5, {})
            await client.call(made)
            self._made_exchange = True
        automatic = load.queue is None and load.consumers > 0
        for name in self._names:
            if load.queue is not None and await _exists(
                client, make(Queue.Declare, 0, name, True, False, False, False, False, {})
            ):
                continue
            # Auto-delete removes the queues of a run that is killed.
            await client.call(make(Queue.Declare, 0, name, False, True, False, automatic, False, {}))
            self._made_queues.append(name)
        if load.exchange:
            for name in self._names:
                key = name if load.routing_key is None else load.routing_key
                await client.call(make(Queue.Bind, 0, name, load.exchange, key, False, {}))

    async def delete(self, client: Client) -> None:
        """Delete what was declared; what was already deleted does not matter."""
        for name in self._made_queues:
            await client.call(make(Queue.Delete, 0, name, False, False, False))
        if self._made_exchange:
            await client.call(make(Exchange.Delete, 0, self._load.exchange, False, False))


async def _exists(client: Client, passive: Frame) -> bool:
    """Return whether a passive declaration succeeds, which is tried on a channel of its own: failing closes it."""
    channel = await client.open_channel()
    try:
        await client.call(passive, channel)
    except ReplyError as error:
        if error.code == NOT_FOUND:
            return False
        raise
    return True

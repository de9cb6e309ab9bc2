"""The exchange, queues and bindings of a run: declared if they do not exist, and then deleted at its end."""

from collections.abc import Sequence
from typing import Any, Protocol

from leveret.broker.amqp.commands import Exchange, Frame, Queue, make
from leveret.broker.client.errors import ReplyError
from leveret.broker.perf.load import Load

NOT_FOUND = 404


class Caller(Protocol):
    """A connection that can call methods."""

    async def open_channel(self) -> int:
        """Open another channel and return its number."""

    async def call(self, method: Frame, channel: int = 1) -> Any:
        """Send a method and return the reply; raises ReplyError if the broker closes the channel."""


class Topology:
    """The objects of a run.

    Args:
        load: the options.
        names: the names of the queues.

    Attributes:
        is_own: True if nobody else can publish to or consume from the queues, as far as the tool knows.

    """

    def __init__(self, load: Load, names: Sequence[str]) -> None:
        self._load = load
        self._names = names
        self._made_queues: list[str] = []
        self._made_exchange = False

    @property
    def is_own(self) -> bool:
        """True if the run made all its queues and publishes to them by the default exchange."""
        return not self._load.exchange and len(self._made_queues) == len(self._names)

    async def declare(self, client: Caller) -> None:
        """Declare what does not exist yet. Raises ReplyError, and what the connection raises."""
        load = self._load
        if load.exchange and not await _exists(
            client, make(Exchange.Declare, 0, load.exchange, "", True, False, False, False, False, {})
        ):
            await client.call(
                make(
                    Exchange.Declare,
                    0,
                    load.exchange,
                    load.exchange_type,
                    False,
                    False,
                    False,
                    False,
                    False,
                    {},
                )
            )
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

    async def delete(self, client: Caller) -> None:
        """Delete what was declared; what was already deleted does not matter."""
        for name in self._made_queues:
            await client.call(make(Queue.Delete, 0, name, False, False, False))
        if self._made_exchange:
            await client.call(make(Exchange.Delete, 0, self._load.exchange, False, False))


async def _exists(client: Caller, passive: Frame) -> bool:
    """Return whether a passive declaration succeeds, which is tried on a channel of its own: failing closes it."""
    channel = await client.open_channel()
    try:
        await client.call(passive, channel)
    except ReplyError as error:
        if error.code == NOT_FOUND:
            return False
        raise
    return True

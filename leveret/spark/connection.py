"""A connection of a source or sink, used by code that is not asynchronous (driver: an event loop of its own).

The event loop runs only while a method of a session does: Spark's code takes its time between two batches. So there are
no heartbeats, and each wait has an end.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, Self, TypeVar

from leveret.broker.amqp.commands import Basic, Confirm, Frame, Queue, make
from leveret.broker.amqp.fastpath import pack_confirm
from leveret.broker.amqp.tables import Table
from leveret.broker.client.client import Client
from leveret.broker.client.errors import ClientError, RefusedError, ReplyError, UnreachableError
from leveret.broker.client.frames import FIELDS_AT
from leveret.broker.shovel.definition import ON_CONFIRM
from leveret.broker.shovel.forwarding import Deliveries, Forwarding, Settlements
from leveret.spark.messages import Content, Delivered
from leveret.spark.options import Broker

T = TypeVar("T")

FINAL: Final = frozenset({402, 403, 404, 405, 406, 530, 540})  # reply codes for what no other attempt changes
PAUSE: Final = 0.5  # seconds between two attempts
QUIET: Final = 0.05  # seconds without a delivery after which a batch that has some is complete
GATHERING: Final = 0.1  # seconds after which it is complete although more messages come


def is_final(error: ClientError) -> bool:
    """Return whether another attempt would have the same reply."""
    return isinstance(error, RefusedError) or (isinstance(error, ReplyError) and error.code in FINAL)


def lasting(work: Callable[[], T], seconds: float) -> T:
    """Return what `work` returns; repeat it for some time as long as the broker cannot be reached.

    Raises ClientError.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return work()
        except ClientError as error:
            if is_final(error) or time.monotonic() > end:
                raise
        time.sleep(PAUSE)


class Inbox(Forwarding):
    """Collects deliveries instead of forwarding them."""

    def __init__(self) -> None:
        super().__init__(ON_CONFIRM, None, None)
        self.addresses: list[bytes] = []
        self.contents: list[Content] = []
        self._is_begun = False

    def begin(self, tag: int, address: bytes) -> bool:
        """Begin a message."""
        self.published = tag
        self.addresses.append(address)
        self._is_begun = True
        return True

    def add(self, frames: bytes) -> None:
        """Take frames of the content of the message that was begun."""
        contents = self.contents
        if self._is_begun:
            self._is_begun = False
            contents.append(frames)
        else:
            if isinstance(before := contents[-1], bytes):
                contents[-1] = before = [before]
            before.append(frames)

    def take(self, count: int) -> Delivered:
        """Return the first messages, which are complete."""
        taken = Delivered(self.addresses[:count], self.contents[:count])
        del self.addresses[:count], self.contents[:count]
        return taken


class Session:
    """A connection and its event loop. Raises ClientError from all methods but `close`."""

    _client: Client | None = None

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._loop = asyncio.new_event_loop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and the loop."""
        if not self._loop.is_closed():
            self._drop()
            self._loop.close()

    def _drop(self) -> None:
        if self._client is not None:
            self._run(self._client.close())
            self._client = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def _open(self, incoming: Deliveries | Settlements) -> None:
        self._client = self._run(Client.connect(self._broker.address, incoming, self._broker.options))

    @property
    def client(self) -> Client:
        """The client; raises UnreachableError if the connection was closed."""
        if self._client is None:
            raise UnreachableError("the connection was closed")
        return self._client

    @property
    def is_closed(self) -> bool:
        """True once the connection has failed."""
        return self._client is None or self._client.failed.done()

    def call(self, method: Frame) -> Any:
        """Send a method and return the reply."""
        return self._run(self.client.call(method))

    async def _awaited(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Wait until something is true of what has arrived; returns False if it is not in time."""
        done, failed = asyncio.Event(), self.client.failed
        self.client.on_ready = done.set
        end = self._loop.time() + seconds
        while not is_done():
            if failed.done():
                await failed
            if (left := end - self._loop.time()) <= 0:
                return False
            done.clear()
            arrival = asyncio.ensure_future(done.wait())
            await asyncio.wait((arrival, failed), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            arrival.cancel()
        return True


class Consumer(Session):
    """Consumes from a stream or queue.

    Args:
        broker: to connect to.
        queue: name of the stream or queue.
        prefetch: maximum number of deliveries that are not acknowledged.
        arguments: of the consumer.

    Attributes:
        present: number of messages in the queue, as the broker reports it before the first delivery.
        taken: number of messages taken so far, which is the delivery tag of the last one.
    """

    def __init__(self, broker: Broker, queue: str, prefetch: int, arguments: Table) -> None:
        super().__init__(broker)
        self._queue = queue
        self._inbox = Inbox()
        self._deliveries = Deliveries(self._inbox)
        self.taken = 0
        try:
            self._open(self._deliveries)
            self.present = self.count()
            self.call(make(Basic.Qos, 0, prefetch, False))
            self._deliveries.is_consuming = True
            self.call(make(Basic.Consume, 0, queue, "", False, False, False, False, arguments))
        except BaseException:
            self.close()
            raise

    def count(self) -> int:
        """Return the number of messages that the broker reports for the queue."""
        declare = make(Queue.Declare, 0, self._queue, True, False, False, False, False, {})
        return int(self.call(declare).message_count)

    @property
    def _complete(self) -> int:
        return len(self._inbox.addresses) - self._deliveries.is_open

    def take(self, most: int, seconds: float) -> Delivered:
        """Return the next messages: at most so many, and none if none has arrived in time."""
        if self._run(self._awaited(lambda: self._complete > 0, seconds)):
            last, end = -1, time.monotonic() + GATHERING
            while last < self._complete < most and time.monotonic() < end:
                last = self._complete
                self._run(self._awaited(lambda: self._complete >= most, QUIET))
        taken = self._inbox.take(min(most, self._complete))
        self.taken += len(taken.addresses)
        return taken

    def ack(self, tag: int) -> None:
        """Acknowledge all messages up to one, the first having number 1; of a stream that asks for more."""
        self.client.write(pack_confirm(1, tag, multiple=True, ack=True))


class Returns(Settlements):
    """The receiving side of a publisher: confirms, and messages that no queue takes."""

    def __init__(self, forwarding: Forwarding) -> None:
        super().__init__(forwarding)
        self.reason = ""  # reason of the last return, '' for none; repeats that a queue drops do not count

    def handle(self, index: int, data: bytes, at: int, now: int) -> bool:
        """Note a returned message, or a confirm."""
        if index != Basic.Return.index:
            return super().handle(index, data, at, now)
        size = data[at + FIELDS_AT + 2]
        text = data[at + FIELDS_AT + 3 : at + FIELDS_AT + 3 + size].decode("utf-8", "replace")
        if text != REPEATED:
            self.reason = text
        return True


REPEATED: Final = "DUPLICATE"  # text of the return of a message whose id the queue knows


class NotTakenError(Exception):
    """Raised when the broker does not take a message; the text says why."""


class Publisher(Session):
    """Publishes with confirms; what was not confirmed when a connection fails is published on the next one."""

    def _connected(self) -> Client:
        if self._client is None:
            self._forwarding = Forwarding(ON_CONFIRM, None, None)
            self._returns = Returns(self._forwarding)
            self._open(self._returns)
            self.call(make(Confirm.Select, False))
        return self.client

    @property
    def frame_max(self) -> int:
        """Maximum size of a frame, in bytes."""
        return lasting(self._connected, self._broker.timeout).frame_max

    def publish(self, frames: bytes, count: int) -> None:
        """Publish messages and wait for their confirms; raises NotTakenError if one is refused or returned."""
        lasting(partial(self._publish, frames, count), self._broker.timeout)

    def _publish(self, frames: bytes, count: int) -> None:
        try:
            client, forwarding = self._connected(), self._forwarding
            forwarding.published += count
            client.write(frames)
            is_done = self._run(self._awaited(lambda: not forwarding.unconfirmed, self._broker.timeout))
            forwarding.take_settlements()
            if not is_done:
                reason = f": it blocks publishers ({client.blocked})" if client.blocked else ""
                raise UnreachableError(f"no confirms in {self._broker.timeout:g} s{reason}")
        except ClientError:
            self._drop()
            raise
        if forwarding.refused:
            raise NotTakenError(f"the broker refused {forwarding.refused} of {count} messages")
        if self._returns.reason:
            raise NotTakenError(f"the broker returned a message: {self._returns.reason}")

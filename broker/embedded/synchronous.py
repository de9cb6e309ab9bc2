"""The synchronous API: `Broker` and its views, made from the asynchronous ones when this is imported.

Their types are in `synchronous.pyi`, which `tests/broker/embedded/test_synchronous_stub.py` writes.
"""

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.async_broker import AsyncBroker
from leveret.broker.embedded.clock import Clock
from leveret.broker.embedded.proxy import Proxy, TailProxy, ThreadProxy, made_from
from leveret.broker.embedded.tails import AsyncTail
from leveret.broker.embedded.vhost import AsyncQueueView, AsyncVHost


@made_from(Clock)
class ThreadClock(Proxy[Clock]):
    """The clock of a broker in a thread of its own: `Broker.clock`; as `Clock`, for callers without an event loop.

    Its methods raise ClosedBrokerError.
    """


@made_from(AsyncTail)
class Tail(TailProxy):
    """Messages as they are published, from `with` on: `for`, or `next`; see `AsyncTail`."""


@made_from(
    AsyncQueueView, properties={"depth", "unacked", "consumers", "details"}, names={"messages": "peek"}
)
class QueueView(Proxy[AsyncQueueView]):
    """One queue, existing or not. Its methods raise RefusedError if there is no such queue."""

    @property
    def messages(self) -> list[MessageView]:
        """The messages: the ready ones in the order of delivery, then the unacked ones, then the delayed ones.

        Nothing is consumed, and no message is marked as redelivered by that. All of them were there at the same moment.
        """
        return self.peek()


@made_from(AsyncVHost, properties={"connections", "definitions"}, views={"queue": QueueView, "tail": Tail})
class VHost(Proxy[AsyncVHost]):
    """One virtual host of a broker in a thread of its own."""


@made_from(AsyncBroker, views={"clock": ThreadClock, "vhost_view": VHost})
class Broker(ThreadProxy, VHost):
    """A broker in a thread of its own; `with`, or `start` and `stop`.

    What it has of `VHost` concerns the first virtual host of the configuration, which is `/` by default. It can be used
    from any thread, and in a coroutine too, whose event loop a call then blocks for a moment (`AsyncBroker` does not).
    A forked process cannot use it.
    """

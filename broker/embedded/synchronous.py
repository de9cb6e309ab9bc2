"""The synchronous API: `Broker` and its views, made from the asynchronous ones when this is imported.

Their types are in `synchronous.pyi`, which `tests/broker/embedded/test_synchronous_stub.py` writes.
"""

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.clock import Clock
from leveret.broker.embedded.proxy import Proxy, TailProxy, ThreadProxy, made_from
from leveret.broker.embedded.tails import AsyncTail
from leveret.broker.embedded.vhost import AsyncBroker, AsyncQueueView, AsyncVHost


@made_from(Clock)
class ThreadClock(Proxy[Clock]):
    """The clock of a broker in a thread of its own: `Broker.clock`; as `Clock`, for callers without an event loop.

    Its methods raise ClosedBrokerError.
    """


@made_from(AsyncTail)
class Tail(TailProxy):
    """The messages that are published after `with`: iterate over them, or call `next`; see `AsyncTail`."""


@made_from(
    AsyncQueueView, properties={"depth", "unacked", "consumers", "details"}, names={"messages": "peek"}
)
class QueueView(Proxy[AsyncQueueView]):
    """One queue, existing or not. Its methods raise RefusedError if there is no such queue."""

    @property
    def messages(self) -> list[MessageView]:
        """The messages: the ready ones in the order of delivery, then the unacked ones, then the delayed ones.

        The call consumes nothing and marks no message as redelivered. The list is a snapshot of one moment.
        """
        return self.peek()


@made_from(AsyncVHost, properties={"connections", "definitions"}, views={"queue": QueueView, "tail": Tail})
class VHost(Proxy[AsyncVHost]):
    """One virtual host of a broker in a thread of its own."""


@made_from(AsyncBroker, views={"clock": ThreadClock, "vhost_view": VHost})
class Broker(ThreadProxy, VHost):
    """A broker in a thread of its own; `with`, or `start` and `stop`.

    The methods of `VHost` apply to the first virtual host of the configuration, by default `/`. Any thread can use the
    broker, but a forked process cannot. In a coroutine a call blocks the event loop briefly; `AsyncBroker` does not.
    """

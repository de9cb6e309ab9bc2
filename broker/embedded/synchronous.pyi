# Written by tests/broker/embedded/test_synchronous_stub.py; edit the asynchronous classes instead.
# ruff: noqa: A002, PYI021 - a field of AMQP is called `type`; editors show the docstrings
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.clock import Clock
from leveret.broker.embedded.faults import Faults
from leveret.broker.embedded.proxy import Proxy, TailProxy, ThreadProxy
from leveret.broker.embedded.vhost import AsyncQueueView, AsyncVHost

class ThreadClock(Proxy[Clock]):
    """The clock of a broker in a thread of its own: `Broker.clock`; as `Clock`, for callers without an event loop.

    Its methods raise ClosedBrokerError.
    """
    @property
    def now(self) -> datetime:
        """The time of the broker, with time zone UTC."""
    @property
    def is_frozen(self) -> bool:
        """True between `freeze` and `resume`."""
    def freeze(self) -> None:
        """Stop the clock: nothing expires and nothing times out before `advance` or `resume`."""
    def resume(self) -> None:
        """Let the clock run from its current time."""
    def advance(
        self,
        by: timedelta | float | None = None,
        *,
        seconds: float = 0,
        minutes: float = 0,
        hours: float = 0,
        days: float = 0,
        heartbeats: bool = False,
    ) -> None:
        """Advance the clock by the sum of the arguments, and carry out everything that falls due, in order.

        When it returns, expired messages are dead-lettered and delivered, timeouts have closed their channels, and all
        resulting frames were passed to the sockets of the clients.

        Args:
            by: a timedelta, or seconds.
            seconds: seconds to add, and accordingly the following.
            minutes: minutes.
            hours: hours.
            days: days.
            heartbeats: true to disconnect clients that send no heartbeats meanwhile. Their own time does not advance.

        Raises:
            ValueError: the clock would go back.
            ClosedBrokerError: the broker is not running.
        """

class Tail(TailProxy):
    """The messages that are published after `with`: iterate over them, or call `next`; see `AsyncTail`."""
    @property
    def lost(self) -> int:
        """Number of missed messages, because 10,000 messages or 16 MiB were waiting."""
    def __enter__(self) -> Self:
        """Begin. Raises RefusedError if there is no such exchange, or the condition is invalid."""
    def __exit__(self, *_: object) -> None: ...
    def next(self, timeout: float) -> MessageView | None:
        """Return the next message; None if none is published for so many seconds, or the tail has ended.

        For a `Broker` it is at most 50 s.
        """
    @property
    def is_ended(self) -> bool:
        """True if no more messages will come: the broker has stopped."""

class QueueView(Proxy[AsyncQueueView]):
    """One queue, existing or not. Its methods raise RefusedError if there is no such queue."""
    @property
    def messages(self) -> list[MessageView]:
        """The messages: the ready ones in the order of delivery, then the unacked ones, then the delayed ones.

        The call consumes nothing and marks no message as redelivered. The list is a snapshot of one moment.
        """
    @property
    def name(self) -> str:
        """Name of the queue."""
    def peek(self, most: int | None = None, *, where: str = "", from_tail: bool = False) -> list[MessageView]:
        """Return the messages: the ready ones in the order of delivery, then the unacked ones, then the delayed ones.

        The call consumes nothing and marks no message as redelivered. The list is a snapshot of one moment,
        unless there is a condition (`where`) or another order (`from_tail`).

        Args:
            most: number of ready messages; None for all. With a condition, or from the tail, at most so many of each
                state, from 1 to 1000, and 1000 for None.
            where: a condition that they meet, such as `headers.kind == "retry" and size > 1KiB`. A queue of any length
                is searched, in pieces, which are not of one moment.
            from_tail: True to begin with the newest.

        Raises:
            RefusedError: there is no such queue, or the condition is invalid.
        """
    @property
    def depth(self) -> int:
        """The number of ready messages."""
    @property
    def unacked(self) -> int:
        """The number of messages that were delivered and not settled yet."""
    @property
    def consumers(self) -> list[dict[str, Any]]:
        """The consumers, under RabbitMQ's names."""
    @property
    def details(self) -> dict[str, Any]:
        """Type, arguments, counters and state, under RabbitMQ's names."""
    def purge(self) -> int:
        """Drop the ready messages; return how many."""
    def delete(self) -> int:
        """Delete the queue; return the number of its ready messages."""
    def pause(self) -> None:
        """Pause the deliveries to consumers until `resume`; a durable queue stays paused when the broker restarts.

        Consumers keep the messages that they have. A `basic.get` of a client returns nothing. Publishes, acks,
        expiry, limits and dead letters continue. No effect on a paused queue; `details` has the state `paused`.
        """
    def resume(self) -> None:
        """Resume the deliveries after `pause`; no effect on a queue that is not paused."""
    def move(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Move ready messages to a queue, or to `exchange:NAME` or `exchange:NAME/KEY`, in the order of the queue.

        Args:
            destination: the destination.
            where: condition that messages must meet (docs/filters.md); '' for all.
            limit: maximum number of messages; None for no limit.

        Returns:
            The result: among others `matched`, `done`, and `causes`, the numbers of messages that stay by cause.

        Raises:
            RefusedError: the destination does not exist or is the queue itself, or the condition is invalid.
        """
    def copy(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Copy ready messages, and leave them in the queue; see `move`."""
    def discard(self, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Drop ready messages without dead letters; see `move`."""
    def replay(
        self,
        destination: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        where: str = "",
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Copy messages that consumers have acked and the queue retains (`x-retain-for`), with `x-leveret-replayed`.

        Args:
            destination: as for `move`; the queue itself is possible.
            since: only those acked at this time or later; None for all. Without a time zone it is local.
            until: only those acked before this time; None for no such limit.
            where: as for `move`.
            limit: as for `move`.
        """
    def retry(
        self,
        destination: str = "",
        *,
        where: str = "",
        limit: int | None = None,
        first: bool = False,
        reason: str = "",
        max_retries: int = 5,
    ) -> dict[str, Any]:
        """Move dead letters back to the queues in which they died, and count that in `x-leveret-retries`; see `move`.

        Args:
            destination: another destination for all of them.
            where: as for `move`.
            limit: as for `move`.
            first: True for the queue of the first death instead of the newest.
            reason: only those whose newest death has this reason; '' for any.
            max_retries: number of retries after which a message stays.
        """

class VHost(Proxy[AsyncVHost]):
    """One virtual host of a broker in a thread of its own."""
    @property
    def vhost(self) -> str:
        """Name of the virtual host."""
    @property
    def url(self) -> str:
        """URL for clients, such as `amqp://guest:guest@127.0.0.1:54321/%2F`. Raises ClosedBrokerError."""
    @property
    def port(self) -> int:
        """The port of the first listener. Raises ClosedBrokerError."""
    def queue(self, name: str) -> QueueView:
        """Return a view of a queue, which need not exist yet."""
    def queues(self) -> list[str]:
        """Return the names of the queues."""
    def delayed(self, exchange: str) -> list[MessageView]:
        """Return the messages that an exchange of type `x-delayed-message` keeps, in the order of their due times."""
    def tail(self, exchange: str, pattern: str = "#", *, where: str = "") -> Tail:
        """Return an iterator (`with`, `for`) over the messages that reach an exchange from now on.

        It needs no binding, and publishers do not wait for it. It includes unroutable messages, dead letters and
        messages from other exchanges. The exchange must exist.

        Args:
            exchange: name of the exchange; '' for the default exchange.
            pattern: what routing keys must match, as in a binding to a topic exchange.
            where: a condition that messages must meet (docs/filters.md); '' for all.
        """
    def record(self, exchange: str) -> None:
        """Record the messages of an exchange from now on; the exchange need not exist yet."""
    def published(self, exchange: str) -> list[MessageView]:
        """Return the messages that reached a recorded exchange, from publishers and other exchanges, in order.

        They include unroutable messages and dead letters. A broker records the latest 100,000 messages
        with at most 64 MiB of bodies. Raises NotRecordedError.
        """
    def forget_published(self) -> None:
        """Delete the record of the virtual host, and end the recording that `record` has begun."""
    @property
    def connections(self) -> list[dict[str, Any]]:
        """The connections to the virtual host, under RabbitMQ's names."""
    @property
    def definitions(self) -> dict[str, Any]:
        """The definitions of the whole broker, in RabbitMQ's format."""
    def import_definitions(self, definitions: Mapping[str, Any]) -> None:
        """Create what definitions in RabbitMQ's format contain, entirely or not at all. Raises RefusedError."""
    def declare(
        self,
        queue: str | None = None,
        *,
        exchange: str | None = None,
        type: str | None = None,
        routing_key: str = "",
        durable: bool = True,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        """Declare a queue, an exchange, or both with a binding between them.

        Args:
            queue: name of the queue; None to declare an exchange only.
            exchange: name of the exchange; None to declare a queue only.
            type: type of the exchange. Without it an exchange that exists is used as it is, and another one is
                declared as a direct exchange.
            routing_key: the key of the binding.
            durable: whether the declared objects survive a restart.
            auto_delete: whether the queue (without one, the exchange) is deleted when it is no longer used.
            arguments: arguments of the queue; without one, those of the exchange.

        Raises:
            RefusedError: it exists with other properties, or the broker refuses the arguments.
        """
    def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes | str,
        *,
        properties: Mapping[str, Any] | None = None,
        headers: Mapping[str, Any] | None = None,
        mandatory: bool = False,
        confirm: bool = True,
    ) -> None:
        """Publish a message, and wait for its confirm.

        Args:
            exchange: name of the exchange; '' for the default one, which routes to the queue named by the routing key.
            routing_key: the routing key.
            body: the body; text is encoded as UTF-8.
            properties: properties by their AMQP names, for example `{"delivery_mode": 2}`.
            headers: the headers as plain values.
            mandatory: whether a message that reaches no queue is an error.
            confirm: whether to wait for the confirm. In the confirm modes `consumer-ack` that may take long.

        Raises:
            UnroutableError: it is mandatory, and has reached no queue.
            NackedError: a queue has refused it.
            RefusedError: there is no such exchange, or the properties are invalid.
        """
    def purge(self, queue: str) -> int:
        """Drop the ready messages of a queue; return how many. Raises RefusedError if there is no such queue."""
    def close_connections(self, reason: str = "closed by the application") -> int:
        """Close the connections to the virtual host with 320 CONNECTION_FORCED and a reason; return how many."""
    def assert_published(
        self,
        exchange: str,
        body: bytes | str | None = None,
        routing_key: str | None = None,
        headers: Mapping[str, Any] | None = None,
        times: int | None = None,
    ) -> None:
        """Check that matching messages were published to a recorded exchange.

        Args:
            exchange: name of the exchange; '' for the default exchange.
            body: the body, text as UTF-8; None for any.
            routing_key: the routing key; None for any.
            headers: headers that a message must have, among others; None for any.
            times: number of matching messages; None for at least one.

        Raises:
            AssertionError: there are fewer or more; the text has the latest messages.
            NotRecordedError: the exchange is not recorded, or the record has forgotten messages that may matter.
        """
    def assert_acked(self, queue: str, n: int) -> None:
        """Check that consumers have acknowledged `n` messages of a queue since it was declared.

        Raises:
            AssertionError: it is another number.
            RefusedError: there is no such queue.
        """
    def assert_no_unroutable(self) -> None:
        """Check that every recorded message has reached a queue.

        Raises:
            AssertionError: some have not; the text has the latest of them.
            NotRecordedError: nothing is recorded, or the record has forgotten messages.
        """
    def wait_until_idle(self, timeout: float = 5) -> None:
        """Wait until the broker is idle.

        Idle means: received bytes are processed, commits are complete, no timer is due, no message is unacked, and
        no queue with consumers has messages. Publishes that a client has not sent yet do not count.

        Args:
            timeout: seconds, in real time, greater than 0; at most 50 for a `Broker`.

        Raises:
            NotIdleError: the broker was not idle in time; the text names the queues.
        """

class Broker(ThreadProxy, VHost):
    """A broker in a thread of its own; `with`, or `start` and `stop`.

    The methods of `VHost` apply to the first virtual host of the configuration, by default `/`. Any thread can use the
    broker, but a forked process cannot. In a coroutine a call blocks the event loop briefly; `AsyncBroker` does not.

    Args:
        data_dir: directory of the durable data, created if needed; None keeps everything in memory.
        config: keys of the configuration file and their values, as text or as bool, number or path.
        port: port on 127.0.0.1; 0 chooses a free one. The key `listeners.tcp.*` configures other addresses.
        record: whether every publish is recorded (`published`).
        management: whether the management API is served on a free port of 127.0.0.1 (`management_url`).

    Raises:
        ConfigurationError: a key or value of `config` is wrong.
    """
    def __init__(
        self,
        *,
        data_dir: str | Path | None = None,
        config: Mapping[str, object] | None = None,
        port: int = 0,
        record: bool = False,
        management: bool = False,
    ) -> None: ...
    @property
    def clock(self) -> ThreadClock:
        """The clock of the broker, which can be stopped and advanced."""
    @property
    def faults(self) -> Faults:
        """Faults on demand."""
    def start(self) -> Self:
        """Start; clients can connect when this returns.

        After `stop` or `kill` the broker starts again at the same port, with its data directory.

        Raises:
            PortInUseError: the port is taken.
            DataDirectoryError: another broker uses the directory, or it cannot be read.
            ClosedBrokerError: it is running already.
        """
    def stop(self) -> None:
        """Disconnect the clients, write durable data to disk and close. No effect if it is not running."""
    def kill(self) -> None:
        """End as if the process were killed: clients are disconnected, nothing more is sent or written.

        Confirmed messages are in the data directory; unconfirmed ones may be. `start` starts the broker again.
        """
    def restart(self) -> None:
        """Kill the broker if it is running, and start it again with the same URL and the remaining data.

        Raises what `start` raises.
        """
    @property
    def management_url(self) -> str:
        """The URL of the management API with a login, for `management=True`. Raises ClosedBrokerError."""
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def vhost_view(self, name: str) -> VHost:
        """Return a view of another virtual host, which must exist when it is used."""

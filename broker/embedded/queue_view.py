"""View of a queue of a broker in a thread of its own. Every call is forwarded to its event loop."""

from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, Protocol, TypeVar

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.transfer_operations import TransferOperations
from leveret.broker.transfer.retry import MOST_RETRIES

T = TypeVar("T")


class Call(Protocol):
    """Runs a coroutine in the loop of the broker, and returns its result."""

    def __call__(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Raises CallTimeoutError, ClosedBrokerError, and what the coroutine raises."""


class QueueView:
    """One queue, existing or not. Its methods raise RefusedError if there is no such queue.

    Attributes:
        name: its name.

    """

    def __init__(self, operations: TransferOperations, call: Call, name: str) -> None:
        self._operations = operations
        self._call = call
        self.name = name

    def __repr__(self) -> str:
        return f"<queue {self.name!r} in vhost {self._operations.vhost!r}>"

    @property
    def messages(self) -> list[MessageView]:
        """The messages: the ready ones in the order of delivery, then the unacked ones, then the delayed ones.

        Nothing is consumed, and no message is marked as redelivered by that. All of them were there at the same moment.
        """
        return self.peek()

    def peek(self, most: int | None = None, *, where: str = "", from_tail: bool = False) -> list[MessageView]:
        """Return messages as `messages` does, but at most `most` ready ones.

        Args:
            most: the number; None for all. With a condition, or from the tail, at most so many of each state, from 1 to
                1000, and 1000 for None.
            where: a condition that they meet, such as `headers.kind == "retry" and size > 1KiB`. A queue of any length
                is searched, in pieces, which are not of one moment.
            from_tail: True to begin with the newest.

        Raises:
            RefusedError: there is no such queue, or the condition is invalid.

        """
        return self._call(lambda: self._operations.messages(self.name, most, where, from_tail=from_tail))

    @property
    def depth(self) -> int:
        """Number of ready messages."""
        return int(self._call(lambda: self._operations.queue(self.name))["messages_ready"])

    @property
    def unacked(self) -> int:
        """Number of messages that were delivered and not settled yet."""
        return int(self._call(lambda: self._operations.queue(self.name))["messages_unacknowledged"])

    @property
    def consumers(self) -> list[dict[str, Any]]:
        """The consumers, under RabbitMQ's names."""
        return self._call(lambda: self._operations.consumers(self.name))

    @property
    def details(self) -> dict[str, Any]:
        """Type, arguments, counters and state, under RabbitMQ's names."""
        return self._call(lambda: self._operations.queue(self.name))

    def purge(self) -> int:
        """Drop the ready messages; return how many."""
        return self._call(lambda: self._operations.purge(self.name))

    def delete(self) -> int:
        """Delete the queue; return the number of its ready messages."""
        return self._call(lambda: self._operations.delete_queue(self.name))

    def pause(self) -> None:
        """Pause the deliveries to consumers until `resume`; a durable queue stays paused when the broker restarts.

        What consumers have already stays theirs. A `basic.get` of a client finds nothing meanwhile. Publishes, acks,
        expiry, limits and dead letters go on. No effect on a paused queue; `details` has the state `paused`.
        """
        self._call(lambda: self._operations.set_paused(self.name, paused=True))

    def resume(self) -> None:
        """Resume the deliveries after `pause`; no effect on a queue that is not paused."""
        self._call(lambda: self._operations.set_paused(self.name, paused=False))

    def move(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Move ready messages to a queue, or to `exchange:NAME` or `exchange:NAME/KEY`, in the order of the queue.

        Args:
            destination: the destination.
            where: condition that messages must meet (docs/filters.md); '' for all.
            limit: maximum number of messages; None for no limit.

        Returns:
            The result: among others `matched`, `done`, and `causes`, the numbers of messages that stay by cause.

        Raises:
            RefusedError: the destination does not exist or is the queue itself, or the condition is none.

        """
        return self._call(lambda: self._operations.move(self.name, destination, where=where, limit=limit))

    def copy(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Copy ready messages, and leave them in the queue; see `move`."""
        return self._call(
            lambda: self._operations.move(self.name, destination, is_copy=True, where=where, limit=limit)
        )

    def discard(self, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Drop ready messages without dead letters; see `move`."""
        return self._call(lambda: self._operations.discard(self.name, where=where, limit=limit))

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
        return self._call(
            lambda: self._operations.replay(
                self.name, destination, since=since, until=until, where=where, limit=limit
            )
        )

    def retry(
        self,
        destination: str = "",
        *,
        where: str = "",
        limit: int | None = None,
        first: bool = False,
        reason: str = "",
        max_retries: int = MOST_RETRIES,
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
        return self._call(
            lambda: self._operations.retry(
                self.name,
                destination,
                where=where,
                limit=limit,
                first=first,
                reason=reason,
                max_retries=max_retries,
            )
        )

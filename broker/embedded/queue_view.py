"""`AsyncQueueView`: a queue of a broker in the event loop of the application."""

from datetime import datetime
from typing import TYPE_CHECKING, Any

from leveret.broker.administration.messages import MessageView
from leveret.broker.embedded.core import Core
from leveret.broker.embedded.view import View
from leveret.broker.transfer.retry import MOST_RETRIES

if TYPE_CHECKING:
    from leveret.broker.administration.transfers import Chosen


class AsyncQueueView(View):
    """One queue, existing or not. Its methods raise RefusedError if there is no such queue."""

    def __init__(self, core: Core, vhost: str, name: str) -> None:
        super().__init__(core, vhost)
        self._name = name

    def __repr__(self) -> str:
        return f"<queue {self._name!r} in vhost {self._vhost!r}>"

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._name

    async def messages(
        self, most: int | None = None, *, where: str = "", from_tail: bool = False
    ) -> list[MessageView]:
        """Return the messages: the ready ones in the order of delivery, then the unacked ones, then the delayed ones.

        Nothing is consumed, and no message is marked as redelivered by that. All of them were there at the same moment,
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
        vhost, name = self._vhost, self._name
        if not where and not from_tail:
            return await self._look(lambda each: each.messages.peek_queue(None, vhost, name, most))
        from leveret.broker.administration.messages import MOST_MESSAGES, MOST_OCTETS, Wanted  # noqa: PLC0415

        wanted = Wanted(MOST_MESSAGES if most is None else most, from_tail, where, MOST_OCTETS)
        return (await self._look(lambda each: each.messages.peek(None, vhost, name, wanted))).messages

    async def depth(self) -> int:
        """Return the number of ready messages."""
        return int((await self.details())["messages_ready"])

    async def unacked(self) -> int:
        """Return the number of messages that were delivered and not settled yet."""
        return int((await self.details())["messages_unacknowledged"])

    async def consumers(self) -> list[dict[str, Any]]:
        """Return the consumers, under RabbitMQ's names."""
        from leveret.broker.management.client_fields import consumer_rows  # noqa: PLC0415 - loaded when it is used first

        return self._see(lambda _: consumer_rows(self._core.server, self._vhost, self._name))

    async def details(self) -> dict[str, Any]:
        """Return type, arguments, counters and state, under RabbitMQ's names."""
        from leveret.broker.management.client_fields import queue_row  # noqa: PLC0415 - loaded when it is used first

        return self._see(lambda _: queue_row(self._core.server, self._vhost, self._name))

    async def purge(self) -> int:
        """Drop the ready messages; return how many."""
        return await self._do(lambda each: each.topology.purge_queue(None, self._vhost, self._name))

    async def delete(self) -> int:
        """Delete the queue; return the number of its ready messages."""
        return await self._do(lambda each: each.topology.delete_queue(None, self._vhost, self._name))

    async def pause(self) -> None:
        """Pause the deliveries to consumers until `resume`; a durable queue stays paused when the broker restarts.

        What consumers have already stays theirs. A `basic.get` of a client finds nothing meanwhile. Publishes, acks,
        expiry, limits and dead letters go on. No effect on a paused queue; `details` has the state `paused`.
        """
        await self._do(lambda each: each.topology.set_queue_paused(None, self._vhost, self._name, True))

    async def resume(self) -> None:
        """Resume the deliveries after `pause`; no effect on a queue that is not paused."""
        await self._do(lambda each: each.topology.set_queue_paused(None, self._vhost, self._name, False))

    async def move(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
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
        return await self._move(destination, _chosen(where, limit), is_copy=False)

    async def copy(self, destination: str, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Copy ready messages, and leave them in the queue; see `move`."""
        return await self._move(destination, _chosen(where, limit), is_copy=True)

    async def _move(self, destination: str, chosen: "Chosen", *, is_copy: bool) -> dict[str, Any]:
        vhost, name = self._vhost, self._name
        return await self._transfer(
            lambda each: each.start_move(None, vhost, name, destination, is_copy=is_copy, chosen=chosen)
        )

    async def discard(self, *, where: str = "", limit: int | None = None) -> dict[str, Any]:
        """Drop ready messages without dead letters; see `move`."""
        chosen = _chosen(where, limit)
        return await self._transfer(lambda each: each.start_discard(None, self._vhost, self._name, chosen))

    async def replay(
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
        vhost, name, chosen = self._vhost, self._name, _chosen(where, limit)
        begin = 0 if since is None else _milliseconds(since)
        end = None if until is None else _milliseconds(until)
        return await self._transfer(
            lambda each: each.start_replay(
                None, vhost, name, destination, since=begin, until=end, chosen=chosen
            )
        )

    async def retry(
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
        chosen = _chosen(where, limit)
        return await self._transfer(
            lambda each: each.start_retry(
                None,
                self._vhost,
                self._name,
                destination=destination,
                first=first,
                reason=reason,
                most_retries=max_retries,
                chosen=chosen,
            )
        )


def _chosen(where: str, limit: int | None) -> "Chosen":
    from leveret.broker.administration.transfers import Chosen  # noqa: PLC0415

    return Chosen(where, limit)


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)

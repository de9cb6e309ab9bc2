"""Transfers of messages by both brokers, as coroutines of the loop of the core (driver)."""

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from leveret.broker.embedded.operations import Operations

if TYPE_CHECKING:
    from leveret.broker.administration.transfers import Chosen, Transfers


class TransferOperations(Operations):
    """All operations in one virtual host, transfers among them; the arguments are those of `Operations`."""

    async def move(
        self, queue: str, destination: str, *, is_copy: bool = False, where: str, limit: int | None
    ) -> dict[str, Any]:
        """Move or copy messages; see `QueueView.move`."""
        chosen = _chosen(where, limit)
        return await self._transfer(
            lambda each: each.start_move(None, self.vhost, queue, destination, is_copy=is_copy, chosen=chosen)
        )

    async def discard(self, queue: str, *, where: str, limit: int | None) -> dict[str, Any]:
        """Discard messages; see `QueueView.discard`."""
        chosen = _chosen(where, limit)
        return await self._transfer(lambda each: each.start_discard(None, self.vhost, queue, chosen))

    async def retry(
        self,
        queue: str,
        destination: str,
        *,
        where: str,
        limit: int | None,
        first: bool,
        reason: str,
        max_retries: int,
    ) -> dict[str, Any]:
        """Retry dead letters; see `QueueView.retry`."""
        chosen = _chosen(where, limit)
        return await self._transfer(
            lambda each: each.start_retry(
                None,
                self.vhost,
                queue,
                destination=destination,
                first=first,
                reason=reason,
                most_retries=max_retries,
                chosen=chosen,
            )
        )

    async def replay(
        self,
        queue: str,
        destination: str,
        *,
        since: datetime | None,
        until: datetime | None,
        where: str,
        limit: int | None,
    ) -> dict[str, Any]:
        """Replay acked messages; see `QueueView.replay`."""
        begin = 0 if since is None else round(since.timestamp() * 1000)
        end = None if until is None else round(until.timestamp() * 1000)
        chosen = _chosen(where, limit)
        return await self._transfer(
            lambda each: each.start_replay(
                None, self.vhost, queue, destination, since=begin, until=end, chosen=chosen
            )
        )

    async def _transfer(self, start: Callable[["Transfers"], int]) -> dict[str, Any]:
        """Transfer messages, and wait until that is on disk; returns the result (`administration.transfers.shown`)."""
        server = self.core.server
        number = self.see(lambda server: start(server.administration.transfers))
        ended = asyncio.get_running_loop().create_future()

        def end() -> None:
            if not ended.done():
                ended.set_result(None)

        transfers = server.administration.transfers
        transfers.when_ended(number, end)
        try:
            await server.result_of(ended)
        except asyncio.CancelledError:
            transfers.cancel(None, number)
            raise
        await server.stored()
        return transfers.transfer(None, number)


def _chosen(where: str, limit: int | None) -> "Chosen":
    from leveret.broker.administration.transfers import Chosen  # noqa: PLC0415

    return Chosen(where, limit)

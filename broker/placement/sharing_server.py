"""The server of a node that leads one of several logs which share their users (driver)."""

import asyncio
from collections.abc import Callable
from typing import Any

from leveret.broker.config.config import Config
from leveret.broker.metadata.recorder import MetadataJournal
from leveret.broker.placement.messages import AnyMessage
from leveret.broker.placement.node_rows import PublishedRows, SettledChanges
from leveret.broker.placement.shared_users import SharedUsers, without_users
from leveret.broker.queue.queue import Queue
from leveret.broker.server.replicated_server import ReplicatedServer


class SharingServer(ReplicatedServer):
    """A broker that publishes its users, or has those of another log: see `broker.placement.shared_users`."""

    shared: SharedUsers
    published: PublishedRows | None = None  # what is to be published; None in a node of another log

    def __init__(self, config: Config, disk: Any, *arguments: Any) -> None:
        self.shared = arguments[-1].shared  # of the cluster
        super().__init__(config if self.shared.is_owner else without_users(config), disk, *arguments)

    def create(self, rows: list[tuple[bytes, bytes]]) -> list[Queue]:
        """Create what the log has, with the users that count."""
        if not self.shared.is_owner:
            queues: list[Queue] = self.shared.load(self, rows, super().create)
            return queues
        self._settled.restore(rows)
        self.published = PublishedRows(self._settled.rows)
        self.shared.watch(self)
        return super().create(rows)

    def _make_journal(self) -> tuple[MetadataJournal, Callable[[], int]]:
        journal, next_id = super()._make_journal()
        if not self.shared.is_owner:
            return journal, next_id
        self.loop.attach(asyncio.get_running_loop())
        self._settled = SettledChanges(journal, self._tell, self.loop.call_soon)
        return self._settled, next_id  # type: ignore[return-value]

    def _tell(self, message: AnyMessage) -> None:
        if self.published is not None:
            self.published.take(message)

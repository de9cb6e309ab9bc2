"""The objects around a channel: its connection, and the channel itself as its settlements and transactions see it."""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Final, Protocol

from leveret.broker.auth.permissions import Asked, Permissions, TopicPermissions
from leveret.broker.auth.users import User
from leveret.broker.channel.late_settlement import Receiver
from leveret.broker.channel.settings import Compatibility, Limits
from leveret.broker.errors import Subscribe
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.vhost.copies import Copies
from leveret.broker.vhost.vhost import VHost
from leveret.storage.message import Message

Record = tuple[Receiver, int]
"""An unacked delivery: its consumer or `GetRecipient` (which knows the queue), and its seq_id in the queue."""
Outcome = int | None
"""The settlement of a delivery: None for acked, false for discarded, true for given back (nack, recover), `FAILED`."""
FAILED: Final = 2  # A delivery that was rejected with requeue, or lost by its consumer


class ChannelHost(Protocol):
    """The connection of a channel (`broker.connection.connection.Connection`), or what stands for it."""

    name: str
    vhost: VHost
    user: User
    permissions: Permissions | Asked
    topic_permissions: TopicPermissions | Asked
    outbox: Outbox
    frame_max: int
    max_message_size: int
    notifies_cancel: bool
    limits: Limits
    compatibility: Compatibility
    exclusive_queues: dict[str, Queue]

    def forget_routes(self) -> None:
        """Drop the cached routes, because the channel's mode has changed."""

    def reply_when_safe(
        self, number: int, reply: bytes, *, files: bool = False, after: Subscribe | None = None
    ) -> None:
        """Send frames of a channel when everything journaled so far is committed, and execute nothing before.

        `files`: bodies that are being written to separate files, too. `after`: registers a callback for something to
        wait for before that; everything journaled by then is committed, too.
        """

    def run_in_slices(self, number: int, steps: Iterator[None], reply: bytes = b"") -> None:
        """Execute the steps of a method of a channel, and nothing else before they are done; then send the reply."""

    def wait_for_copies(self, copies: Copies) -> None:
        """Execute nothing before a message has reached all its queues."""


class SettlingChannel(Protocol):
    """A channel (`broker.channel.channel.Channel`), as its settlements and transactions see it."""

    number: int
    host: ChannelHost
    vhost: VHost
    outbox: Outbox
    unacked: MutableMapping[int, Record]
    delivery_tag: int
    acked: int
    global_prefetch: int

    @property
    def settlements(self) -> Any:
        """Its `broker.channel.settlement.Settlements`."""

    @property
    def tx(self) -> Any:
        """Its `broker.channel.transaction.Transaction`, if it is transactional."""

    def wake_consumers(self) -> None:
        """Let every consumer that has room again rejoin its queue's rotation."""

    def enqueue(
        self, queues: Sequence[Queue], message: Message, *, mandatory: bool, persistent: bool
    ) -> Copies | None:
        """Pass a message to its queues, or return it to the publisher; returns its copies if it has queues."""

    def enqueue_all(self, queues: Sequence[Queue], messages: Sequence[Message], *, persistent: bool) -> None:
        """Pass messages to the same queues, which have no limits."""

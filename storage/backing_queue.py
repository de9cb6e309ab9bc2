"""The verbs a queue speaks to whatever keeps its messages.

The seam between protocol logic (`broker.queue`) and storage: the in-memory backing queue
(`storage.memory`) is the only implementation so far, one that pages to disk will be another. The verbs are those of
RabbitMQ's `rabbit_backing_queue` behaviour; those that the hot path uses take and give runs of messages, so that a turn
costs one call per queue and not one per message.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from storage.message import Message


class Batch(NamedTuple):
    """A run of fetched messages in queue order.

    `seq_ids` are their positions in the queue (ascending) and the keys by which they are later acked or requeued;
    `redelivered` holds for the whole run.
    """

    seq_ids: Sequence[int]
    messages: list[Message]
    redelivered: bool


class BackingQueue(Protocol):
    """Keeps the ready and the unacked messages of one queue, in order."""

    ready_count: int
    """Messages that `fetch` could return now."""

    @property
    def unacked_count(self) -> int:
        """Messages fetched with `ack_required` and neither acked nor requeued yet."""

    def publish(self, messages: Collection[Message]) -> None:
        """Append messages at the tail, in order."""

    def publish_delivered(self, messages: list[Message], *, ack_required: bool) -> Sequence[int]:
        """Record messages that go straight to a consumer because the queue is empty.

        The caller owes: `ready_count` is 0. Returns their seq_ids.
        """

    def fetch(self, count: int, *, ack_required: bool) -> Batch:
        """Take at most `count` messages (>= 1) from the head; fewer where the run's `redelivered` changes.

        With `ack_required` they stay known under their seq_ids until acked or requeued. The caller owes:
        `ready_count` is not 0.
        """

    def ack(self, seq_ids: Collection[int]) -> None:
        """Forget fetched messages for good."""

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back to their original positions, marked redelivered."""

    def purge(self) -> int:
        """Drop every ready message; returns how many. Unacked messages stay."""

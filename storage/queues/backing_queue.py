"""The verbs a queue speaks to whatever keeps its messages.

The seam between protocol logic (`broker.queue.queue`) and storage. `storage.queues.variable_queue` pages to disk and
keeps what is persistent; `storage.queues.memory_queue` lives and dies with the process. The verbs are those of
RabbitMQ's `rabbit_backing_queue` behaviour; those that the hot path uses take and give runs of messages, so that a
turn costs one call per queue and not one per message.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from leveret.storage.message import Message


def never() -> None:
    """Take the place of `on_loaded` where nobody wants to know."""


class Fetched(NamedTuple):
    """A run of fetched messages in queue order.

    `seq_ids` are their positions in the queue (ascending) and the keys by which they are later acked or requeued;
    `redelivered` holds for the whole run.
    """

    seq_ids: Sequence[int]
    messages: list[Message]
    redelivered: bool


class BackingQueue(Protocol):
    """Keeps the ready and the unacked messages of one queue, in order."""

    @property
    def ready_count(self) -> int:
        """Messages that `fetch` could return now."""

    @property
    def unacked_count(self) -> int:
        """Messages fetched with `ack_required` and neither acked nor requeued yet."""

    on_loaded: Callable[[], object]
    """Called when messages that `fetch` could not return have been read; the queue sets it."""

    @property
    def damaged(self) -> int:
        """How often something could not be read from disk any more: whatever it was is not ready, and will never be."""

    @property
    def lost_octets(self) -> int:
        """Octets of the bodies of messages that were ready and could not be read any more."""

    @property
    def loading(self) -> bool:
        """Whether messages are being read from disk."""

    def publish(
        self,
        messages: Collection[Message],
        *,
        persistent: bool = False,
        small: bool = False,
        expires: int = 0,
    ) -> Sequence[int]:
        """Append messages at the tail, in order; returns their seq_ids.

        `expires`: when all of them do (epoch ms), 0 for never.

        `small` promises that these and all that are ready have a content of 4 KiB at most.

        `persistent` says that some of them are persistent and the queue is durable: these are `Persistent`, and
        whoever published them is told through them when they are safe.
        """

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> Sequence[int]:
        """Record messages that go straight to a consumer because the queue is empty.

        The caller owes: `ready_count` is 0. Returns their seq_ids.
        """

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Take at most `count` messages (>= 1) from the head; fewer where the run's `redelivered` changes.

        None at all if the next one is being read from disk: `on_loaded` is called when it is here.

        With `ack_required` they stay known under their seq_ids until acked or requeued. The caller owes:
        `ready_count` is not 0.
        """

    def ack(self, seq_ids: Collection[int], *, moved: bool = False) -> None:
        """Forget fetched messages for good.

        `moved`: they live on as others published in this turn, so that the disk must learn of both in one commit.
        """

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back to their original positions, marked redelivered."""

    @property
    def head_is_new(self) -> bool:
        """Whether the next message is in memory and was never delivered; False says nothing."""

    @property
    def expiring(self) -> bool:
        """Some message that came, or was found on disk, expires."""

    def head_expires(self) -> int | None:
        """When the next message expires (epoch ms), 0 for never; None if it is being read, or there is none."""

    def head_run(self, now: int, limit: int) -> tuple[int, bool]:
        """How many messages from the head on, at most `limit` (>= 1), have all expired by `now` or all not; and which.

        It may be fewer than there are: ask again when these are gone. 0 while the head is being read, or if there is
        none.
        """

    def drop(self, count: int) -> int:
        """Drop at most `count` messages (>= 1) from the head without reading their bodies; returns how many.

        Fewer, perhaps none, where the next one's position is being read from disk.
        """

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Unacked messages with their bodies, and the seq_ids of those that are being read.

        `on_loaded` is called for the latter. Those in neither were damaged, and are gone.
        """

    def ready_octets(self) -> Iterator[int]:
        """Octets of the bodies of all messages that are ready now, in summands, whatever becomes of them meanwhile.

        Each message of which more than the place is in memory is looked at, a thousand for each summand.
        """

    def count_returns(self, *, counted: bool) -> None:
        """Have it known how often messages had come back that are read from disk (`take_returns`), or no longer."""

    def note_returns(self, counts: Mapping[int, int]) -> None:
        """Unacked messages are about to come back, so often by now: those that survive a restart will know it.

        It is written with the next commit; nothing waits for that. Only where it is counted (`count_returns`).
        """

    def take_returns(self, seq_ids: Collection[int]) -> dict[int, int]:
        """How often messages that have just been fetched had come back before the start: those that had.

        Each is told once.
        """

    def set_lazy(self, *, lazy: bool) -> None:
        """Keep as little as possible in memory (`x-queue-mode=lazy`), or no longer."""

    def purge(self) -> int:
        """Drop every ready message; returns how many. Unacked messages stay."""

    def delete(self) -> None:
        """The queue goes, with its unacked messages. Only `ack` and `purge` may be called afterwards."""

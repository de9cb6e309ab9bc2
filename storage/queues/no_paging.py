"""Operations of backing queues that page nothing to disk, and read no message back for a delivery: they do nothing."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Fetched


class NoPaging:
    """Operations of a `BackingQueue` without an effect."""

    __slots__ = ()

    def follow(self, predecessor: Any) -> None:
        """Do nothing: a deleted queue leaves nothing to be removed."""

    def before_commit(self, callback: Callable[[], object]) -> bool:
        """Return false: nothing waits for a commit."""
        del callback
        return False

    def awaited(self, seq_ids: Collection[int]) -> Iterable[Message]:
        """Return none: nothing that leaves is being written."""
        del seq_ids
        return ()

    def came_before(self, seq_id: int) -> None:
        """Return None: no times are kept."""

    def count_returns(self, *, counted: bool) -> None:
        """Do nothing: no message is read from disk."""

    def note_returns(self, counts: Mapping[int, int]) -> None:
        """Do nothing: no message survives a restart as one that came back."""

    def take_returns(self, seq_ids: Collection[int]) -> dict[int, int]:
        """Return no counts: none survives a restart."""
        del seq_ids
        return {}

    def set_lazy(self, *, lazy: bool) -> None:
        """Do nothing: no message leaves memory, or all do."""


class AppendOnly(NoPaging):
    """Operations of a `BackingQueue` from which nothing is taken: a stream has its messages until it deletes them."""

    __slots__ = ()

    head_is_new = False
    lost_octets = 0

    def octets_of(self, seq_ids: Iterable[int]) -> int:
        """Return 0: no message is unacked for its log."""
        del seq_ids
        return 0

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Return none: no message is unacked for its log."""
        del seq_ids
        return [], []

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Take nothing: readers take chunks."""
        del count, ack_required
        return Fetched((), [], redelivered=False)

    def drop(self, count: int) -> int:
        """Drop nothing."""
        del count
        return 0

    def ack(self, seq_ids: Collection[int], *, moved: bool = False, dropped: bool = False) -> None:
        """Do nothing: no ack deletes a message."""

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Do nothing: the messages are in their places."""

    def purge(self) -> int:
        """Do nothing: only retention deletes messages."""
        return 0

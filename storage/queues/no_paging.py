"""Operations of backing queues that page nothing to disk, and read no message back for a delivery: they do nothing."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from leveret.storage.message import Message


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

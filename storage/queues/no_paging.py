"""Operations of backing queues that page nothing to disk, and read no message back for a delivery: they do nothing."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Fetched


def _nothing(*_args: Any, **_options: Any) -> Any:
    """Do nothing."""


def _none(*_args: Any, **_options: Any) -> tuple[()]:
    return ()


def _zero(*_args: Any, **_options: Any) -> int:
    return 0


class NoPaging:
    """Operations of a `BackingQueue` without an effect.

    A deleted queue leaves nothing to be removed, and nothing that leaves is being written. No times are kept. No
    message survives a restart, so none has a delivery count from before one. None leaves memory, or all do.
    """

    __slots__ = ()

    follow = came_before = count_returns = note_returns = set_lazy = _nothing
    awaited = _none

    def before_commit(self, callback: Callable[[], object]) -> bool:
        """Return false: nothing waits for a commit."""
        del callback
        return False

    def take_returns(self, seq_ids: object) -> dict[int, int]:
        """Return no counts: none survives a restart."""
        del seq_ids
        return {}


class AppendOnly(NoPaging):
    """Operations of a `BackingQueue` from which nothing is taken: a stream has its messages until it deletes them."""

    __slots__ = ()

    next_seq: int
    head_is_new = False
    lost_octets = 0
    ack = requeue = _nothing  # the messages are in their places
    unstored = _nothing  # entries that found no space stay in the tail, and are written later
    _unacked_tables = _none
    octets_of = drop = purge = _zero  # no message is unacked for its log, and only retention deletes any

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Return none: no message is unacked for its log."""
        del seq_ids
        return [], []

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> Sequence[int]:
        """Append messages: none goes straight to a consumer."""
        del ack_required, persistent
        return self.publish(messages, expires=expires)

    def publish(self, messages: Collection[Message], *, expires: int = 0) -> Sequence[int]:
        """Append messages, with the time of the append (epoch ms); return their offsets."""
        raise NotImplementedError

    def _end(self) -> int:
        return self.next_seq

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Take nothing: readers take chunks."""
        del count, ack_required
        return Fetched((), [], redelivered=False)

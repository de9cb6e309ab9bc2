"""Retained messages: the acked messages of a queue that are kept for a replay, as a stream that the queue writes.

Theory. The stream has neither consumers nor bindings, no vhost lists it, and it is deleted with the queue. A message
has the time of its ack, so a changed retention time applies to all of them, and a replay knows when each was acked.
Whole segments leave, about an eighth of what is retained; here also the last one, once all of it has expired. A replay
leaves out what has expired before that.

A client that acks each message alone acks a dozen of them in a turn. They wait for others, so that they are few
records, until there are enough for one, a caller needs counts or contents (`settle`), or the next commit begins, which
has the ends of their originals.

Nothing puts messages into it but `broker.queue.retention`.
"""

from collections.abc import Sequence
from typing import Any

from leveret.broker.queue.settings import QueueSettings
from leveret.broker.queue.stream_queue import LEAST_MS, StreamQueue
from leveret.broker.scheduling.wall_timers import Timer
from leveret.storage.journal.runs import ALONE_OCTETS, PACKED_OCTETS
from leveret.storage.message import Message


class RetainedQueue(StreamQueue):
    """The retained messages of a queue, oldest ack first; the arguments are those of `StreamQueue`."""

    __slots__ = ("_acked_at", "_is_awaited", "_octets", "_timer")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.log.is_beside = True
        self._octets = 0  # bytes of contents that wait for others
        self._acked_at = 0  # time (epoch ms) of the last ack of one of them
        self._is_awaited = False  # True if their wait ends with the next commit
        self._timer: Timer | None = None

    def retain(self, settings: QueueSettings) -> None:
        """Apply the settings of the queue that the messages come from."""
        own = QueueSettings(max_octets=settings.retain_octets, max_age=settings.retain_for)
        if own != self.settings:
            self.configure(own)

    def keep(self, messages: Sequence[Message]) -> None:
        """Append messages with the next commit at the latest; their originals must be removed in the same turn."""
        self.inbox += messages
        self.inbox_persistent = True
        self._acked_at = super()._now()
        sizes = [len(each.content) for each in messages]
        self._octets += sum(sizes)
        if not self._is_awaited:
            self._is_awaited = self.log.before_commit(self._commit_begins)
        if self._octets >= PACKED_OCTETS or max(sizes) >= ALONE_OCTETS or not self._is_awaited:
            self.touch()

    def _commit_begins(self) -> None:
        self._is_awaited = False
        if self.inbox and not self.deleted:
            self.turn.run_one(self)

    def run(self) -> bool:
        """Append what waits."""
        self._octets = 0
        more = super().run()
        if self._timer is None:
            self._retain()
        return more

    def _now(self) -> int:
        return self._acked_at if self.inbox else super()._now()

    def _retain(self) -> None:
        super()._retain()
        if self._parent is None:
            return
        timers = self._parent.context.timers
        timers.cancel(self._timer)
        self._timer = None
        rows = self.log.segments
        if rows and self.settings.max_age is not None and not self.deleted:
            due = rows[1].time if len(rows) > 1 else rows[0].time + self.log.segment_ms
            # what is not on disk yet stays until then
            when = max(int(due) + self.settings.max_age, self._now() + LEAST_MS)
            self._timer = timers.at(when, self._retain)

    def delete(self, *, discards: bool = True) -> Any:
        """Delete the messages; see `Queue.delete`."""
        found = super().delete(discards=discards)
        self._retain()
        return found

"""The very large bodies of a transaction, which are in files of their own before anything of it takes effect."""

from collections.abc import Callable, Sequence

from leveret.broker.errors import NotYet, no_disk_space
from leveret.broker.queue.queue import Queue
from leveret.broker.vhost.copies import saved_among
from leveret.broker.vhost.delayed_delivery import DelayDisk, DelayLine
from leveret.storage.message import Message, Persistent

NO_EFFECT = "nothing of the transaction took effect"
Publishes = list[tuple[Sequence[Queue], Message, bool, bool]]
"""Queues, message, mandatory, persistent."""


class BodyFiles:
    """The files of a transaction.

    Args:
        disk: writes them.
        publishes: those of the transaction; very large messages are replaced by `Persistent` ones.

    """

    __slots__ = ("_disk", "_has_no_room", "_is_dropped", "_messages", "_unwritten", "_when_written")

    def __init__(self, disk: DelayDisk, publishes: Publishes) -> None:
        self._disk = disk
        self._messages: list[Persistent] = []
        self._has_no_room = self._is_dropped = False
        self._when_written: Callable[[], object] | None = None
        for at, (queues, message, mandatory, persistent) in enumerate(publishes):
            if len(message.content) >= disk.blob_threshold and needs_file(queues, persistent=persistent):
                copy = Persistent(message.address, message.content, message.channel_id, None, 0, 0)
                publishes[at] = queues, copy, mandatory, persistent
                self._messages.append(copy)
        self._unwritten = len(self._messages)
        for message in self._messages:
            disk.journal.write_file(message, self._written)

    def check(self) -> None:
        """Do nothing if all are written. Raises NotYet before that, 506 if there is no space for one."""
        if self._has_no_room:
            raise no_disk_space(NO_EFFECT)
        if self._unwritten:
            raise NotYet(self._await)

    def _await(self, callback: Callable[[], object]) -> None:
        self._when_written = callback

    def _written(self, is_written: bool) -> bool:
        """Take note of a file, or that there is no space for it; returns whether it is needed."""
        if self._has_no_room or self._is_dropped:
            return False
        self._unwritten -= is_written
        self._has_no_room = not is_written
        callback = self._when_written
        if callback is not None and not (is_written and self._unwritten):
            self._when_written = None
            callback()
        return is_written

    def drop(self) -> None:
        """Remove the files of messages that no queue has, or will write."""
        self._is_dropped = True
        for message in self._messages:
            is_needed = message.open_copies or message.in_table
            if not is_needed and self._disk.journal.has_file(message):
                self._disk.journal.drop_file(message)


def needs_file(queues: Sequence[Queue], *, persistent: bool) -> bool:
    """Return whether queues store a message whose body is large in a file of its own; a delay line does not."""
    stored = saved_among([queue for queue in queues if not queue.deleted], persistent=persistent)
    return any(not isinstance(queue, DelayLine) for queue in stored)

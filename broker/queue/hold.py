"""The messages that a queue holds: no consumer gets them before their time.

Theory. A queue with `x-allow-hold` or `x-hold-until-header` reads the time of a message from its headers
(`broker.queue.due_time`) as it is published to it. A message with a time to come does not enter the order of the queue:
it becomes a row of the queue's line (`broker.queue.due_line`), whose id on disk follows from the queue's. At its time
the commit that deletes the row appends it to the queue. From then on it is like one that has just come: its time to
live begins. A body that the queue will store apart from its record is apart from its row, too, and is written once.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial

from leveret.broker.amqp.properties import Properties, is_persistent
from leveret.broker.errors import precondition_failed, resource
from leveret.broker.queue.arguments import STREAM
from leveret.broker.queue.due_line import DueLine, message_of
from leveret.broker.queue.due_time import (
    InvalidDueTimeError,
    Sources,
    due_times,
    sources_of,
    with_passed_delay,
    with_time,
)
from leveret.broker.queue.interfaces import OwningQueue, ParentVHost
from leveret.broker.queue.settings import NO_SETTINGS, QueueSettings
from leveret.storage.delayed import Due
from leveret.storage.message import Message, Moved, Stored, moving


class Hold(DueLine):
    """The held messages of one queue; those of a queue that is not durable are in memory only."""

    def __init__(self, queue: OwningQueue, parent: ParentVHost) -> None:
        super().__init__(queue.turn, parent.context, parent.disk if queue.qid else None)
        self._queue = queue
        self._where = resource("queue", queue.name, queue.vhost)
        self._holds_promises = parent.holds_promises
        self._settings = NO_SETTINGS
        self._sources: Sources = {}
        self.is_busy = False  # True while an operation of an operator runs; another must not begin
        self.number = queue.qid
        if self._disk is not None and queue.type != STREAM:  # whose records have their bodies
            self._apart_from = self._disk.journal.embed_below
        self.durable = queue.durable

    def __repr__(self) -> str:
        return f"<held messages of queue {self._queue.name!r}>"

    def configure(self, settings: QueueSettings) -> None:
        """Apply changed settings; held messages stay held."""
        self._settings = settings
        self._sources = sources_of(settings.hold_until_header, own=settings.allow_hold)

    # -- in ---------------------------------------------------------------------------------------------------------

    def dues_of(self, messages: Iterable[Message]) -> Iterator[int]:
        """Yield until when (epoch ms) publishes are to be held, 0 for not at all; raises 406 at a malformed time."""
        try:
            yield from due_times(messages, self._context.clock(), self._sources)
        except InvalidDueTimeError as error:
            raise precondition_failed(f"{error}, in a message for {self._where}") from None

    def due_of(self, message: Message) -> int:
        """Return the time (epoch ms) until which a message is to be held; 0 for not at all.

        One whose header is malformed, and that no client publishes now, is not held.
        """
        try:
            return next(due_times((message,), self._context.clock(), self._sources))
        except InvalidDueTimeError as error:
            self._warn(self._where, f"a message is not held: {error}")
            return 0

    def put(self, message: Message, due: int) -> bool:
        """Hold a message until a time (epoch ms); false if the queue holds as many as it may, or must not hold it."""
        if message.promise is not None and not self._holds_promises:
            self._warn(
                self._where,
                "a message is refused, as its publisher would wait for a consumer until it is due",
            )
            return False
        return not self.is_full() and self.accept(message, due)

    def is_full(self, more: int = 0) -> bool:
        """Return whether the queue could hold no further message after so many more."""
        most = self._settings.max_held
        return most is not None and self.count + more >= most

    def touch(self) -> None:
        """Schedule a run; what is held counts for the length of the queue, which may have to drop others."""
        self._queue.touch()
        super().touch()

    def _put_apart(self, address: bytes, content: bytes) -> tuple[bytes, int]:
        """Store the body of a message apart from its row if it would be stored apart from its record."""
        disk = self._disk
        if disk is None or len(content) >= disk.blob_threshold or not self._is_stored(content):
            return content, 0
        content = with_passed_delay(Message(address, content, 0)).content
        return content, disk.journal.put_body(content)

    def _is_stored(self, content: bytes) -> bool:
        """Return whether the queue will have a message on disk."""
        queue = self._queue
        return queue.durable and (queue.saves_all or is_persistent(content))

    # -- out --------------------------------------------------------------------------------------------------------

    def _give_back(self, due: Due, row: bytes) -> bool:
        """Append a message to the queue; False if its row has to stay until its body is in a file."""
        queue, disk, message = self._queue, self._disk, message_of(self.number, due, row)
        queue.used()
        is_stored = self._is_stored(message.content)
        if isinstance(message, Stored):
            message.drop = self._drop
            if not is_stored:
                self._drop(message.msg_id)
                message = Message(message.address, message.content, message.channel_id)
        else:
            message = with_passed_delay(message)
        if is_stored and not isinstance(message, Stored):
            threshold = disk.blob_threshold if disk is not None else 1 << 62
            message = moving(message, threshold, partial(self._moved, self.number, due))
        queue.admit(message)
        return not isinstance(message, Moved)

    def _drop(self, msg_id: int) -> None:
        if self._disk is not None:
            self._disk.journal.delete_body(msg_id)

    # -- acting -----------------------------------------------------------------------------------------------------

    def cancel(self, messages: Mapping[Due, Message]) -> Collection[Due]:
        """Hold messages no longer; returns the keys of those that were still held."""
        found = self.window.discard(messages)
        for due in found:
            self._delete(due)
            if isinstance(message := messages[due], Stored):
                self._drop(message.msg_id)
        if self._queue.ids is not None:
            self._queue.ids.dropped([(-1, messages[due]) for due in found])
        self._written()
        return found

    def move(self, messages: Mapping[Due, Message], to: int) -> Collection[Due]:
        """Change the time of held messages (epoch ms); one that has passed releases them. Returns as `cancel`.

        The header with the time is changed, too.
        """
        found, now = self.window.discard(messages), self._context.clock()
        for due in sorted(found):
            self._delete(due)
            old = messages[due]
            message = self._with_time(old, to)
            msg_id = old.msg_id if isinstance(old, Stored) else 0
            if msg_id and message is not old:
                self._drop(msg_id)
                msg_id = 0
            self._keep(to, now, message.address, message.content, msg_id)
        self._written()
        return found

    def take(self, messages: Collection[tuple[int, Message]]) -> None:
        """Hold messages until their times (epoch ms), which another queue holds, or no longer from this commit on."""
        now = self._context.clock()
        for when, message in messages:
            self._keep(when, now, message.address, message.content)
        if self._queue.ids is not None:
            self._queue.ids.adopt([message for _, message in messages])
        self._written()

    def _with_time(self, message: Message, to: int) -> Message:
        properties = Properties(message.header)
        headers = properties.headers or {}
        told = with_time(headers, to, self._sources)
        return message if told is headers else message.with_header(properties.replace(headers=told))

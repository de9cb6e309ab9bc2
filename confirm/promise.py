"""Promises to publishers: confirm a publish when every copy of its message is accepted, nack it if one is refused.

A sequence number of a channel in confirm mode may depend on several conditions: on consumers of each queue that the
message was routed to, on copies that must be on disk, on dead letters that replace a copy. Each of them counts as a
copy here, and knows the promise, but not the others. The first refused copy decides, and the others are then ignored.

Hot path: see docs/performance.md.
"""

from collections.abc import Callable

from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.storage.message import Awaited, Message, Persistent, Publisher


class Promise:
    """The pending confirm of one publish; it is a `Publisher` itself, for copies that must be on disk.

    The publisher is notified once of the outcome, by the sequence number. For each of the copies, at least 1,
    `accepted` must be called exactly once, or `refused`, after which both may be called any number of times.
    """

    __slots__ = ("open", "publisher", "seq_no")

    def __init__(self, publisher: Publisher, seq_no: int, copies: int) -> None:
        self.publisher: Publisher | None = publisher  # None once it was notified
        self.seq_no = seq_no
        self.open = copies
        """Number of copies without a verdict; a dead letter is added before the verdict of the copy it replaces."""

    def accepted(self, seq_no: int = 0) -> None:
        """Accept one copy; if it was the last, confirm the publish. `seq_no` is ignored: the promise has its own."""
        del seq_no
        self.open = left = self.open - 1
        if not left and self.publisher is not None:
            self.publisher.accepted(self.seq_no)
            self.publisher = None

    def refused(self, seq_no: int = 0) -> None:
        """Refuse one copy: nack the publish. `seq_no` is ignored: the promise has its own."""
        del seq_no
        if self.publisher is not None:
            self.publisher.refused(self.seq_no)
            self.publisher = None


class Withheld:
    """The confirms of publishes whose messages may end before something else is safe that they wait for."""

    __slots__ = ("_publisher", "_seq_nos", "accepted")

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._seq_nos: list[int] = []
        self.accepted: Callable[[int], None] = self._seq_nos.append  # hot: a method takes three times as long
        """Confirm a publish, now or once all is safe."""

    def refused(self, seq_no: int) -> None:
        """Nack a publish."""
        self._publisher.refused(seq_no)

    def settle(self, is_safe: bool) -> None:
        """Confirm, or nack, all that waited; those that come later wait for nothing."""
        self.accepted = self._publisher.accepted
        seq_nos, self._seq_nos = self._seq_nos, []
        if is_safe and isinstance(self._publisher, ChannelConfirms):
            self._publisher.accepted_all(seq_nos)
            return
        tell = self._publisher.accepted if is_safe else self._publisher.refused
        for seq_no in seq_nos:
            tell(seq_no)


def is_awaited(message: Message) -> bool:
    """Return whether a publisher waits for a message: whether `joined` would have a promise, or could make one."""
    return message.promise is not None or (isinstance(message, Persistent) and message.publisher is not None)


def joined(original: Message) -> Promise | None:
    """Return the promise that waits for a message; a copy that replaces it, or its transaction, joins it."""
    waiting: object = original.promise
    if isinstance(original, Persistent) and original.publisher is not None:
        if not isinstance(original.publisher, Promise):
            original.publisher = Promise(original.publisher, original.seq_no, 1)
        waiting = original.publisher
    if not isinstance(waiting, Promise):
        return None
    waiting.open += 1
    return waiting


def not_kept(message: Message, *, is_durable: bool) -> Awaited | None:
    """Return who waits for a message that its queue does not keep: it counts no copy for that queue any more.

    `is_durable`: whether the queue is; otherwise the copies are those of others.
    """
    if not isinstance(message, Persistent):
        return message.promise
    if not is_durable:
        return None
    waiting = joined(message)
    message.copies -= 1
    message.accepted()
    return waiting

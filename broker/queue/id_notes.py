"""The publishers who wait for ids: those of messages with new ones, and of repeats."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from leveret.confirm.promise import Promise, Withheld
from leveret.storage.message import Awaited, Message, Publisher

if TYPE_CHECKING:
    from leveret.storage.journal.journal import Journal


class Verdict:
    """The verdict of consumers on a message, of which publishers hear once the id is safe: its own, and its repeats'.

    `publisher` is None if that waits for no consumer, or was notified. Then repeats hear when the last of the `count`
    messages with this id has left the queue. `heard` is called with what the consumers have answered.
    """

    __slots__ = ("_heard", "count", "is_saved", "mark", "publisher", "waiting")

    def __init__(self, heard: "Callable[[Verdict, int, bool], object]", mark: bytes, count: int) -> None:
        self._heard = heard
        self.mark = mark
        self.count = count
        self.is_saved = False  # True if a stop writes the message
        self.publisher: Publisher | None = None
        self.waiting: list[Awaited] = []

    def accepted(self, seq_no: int) -> None:
        """Confirm the message, and its repeats."""
        self._heard(self, seq_no, True)

    def refused(self, seq_no: int) -> None:
        """Nack them."""
        self._heard(self, seq_no, False)

    def take(self, seq_no: int) -> list[Awaited]:
        """Return the publishers that wait, the message's own first, and let them wait no more."""
        waiting, self.waiting = self.waiting, []
        if self.publisher is not None:
            waiting.insert(0, Promise(self.publisher, seq_no, 1))
            self.publisher = None
        return waiting


def withhold(messages: Sequence[Message], journal: "Journal") -> None:
    """Have the confirms of stored messages wait for the next commit, as their ids may outlast them."""
    withheld: list[Withheld] = []
    last: object = None
    for message in messages:
        publisher = message.publisher  # type: ignore[attr-defined] # it is stored
        if publisher is not None:
            if publisher is not last:
                withheld.append(Withheld(publisher))
                last = publisher
            message.publisher = withheld[-1]  # type: ignore[attr-defined] # likewise
    for each in withheld:
        journal.awaits_ids = True
        journal.when_safe(each.settle)


def told(waiting: Sequence[Awaited] | None, is_safe: bool) -> None:
    """Notify publishers."""
    for promise in waiting or ():
        if is_safe:
            promise.accepted()
        else:
            promise.refused()

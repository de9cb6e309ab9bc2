"""The ids that a turn has taken, noted in the commit of their messages, and the publishers who wait for that.

What consumers confirm stays with `broker.queue.deduplication`, which calls `note` once in each run of the queue.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from leveret.broker.queue.id_places import IdPlaces
from leveret.broker.queue.interfaces import DelayDisk
from leveret.confirm.promise import Promise, Withheld, not_kept
from leveret.storage.message import Awaited, Message, Persistent, Publisher


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


class IdNotes:
    """Ids and repeats of one queue that its next run notes in `ids`; `durable` as of the queue."""

    def __init__(self, ids: IdPlaces, disk: DelayDisk | None, *, durable: bool) -> None:
        self._ids = ids
        self._disk = disk
        self._durable = durable
        self._fresh: list[tuple[bytes, Message, int, Awaited | None]] = []
        """Ids with message, value, and who waits."""
        self._runs: list[tuple[Sequence[bytes], int, bool, Sequence[Withheld]]] = []
        """Runs of ids likewise, with value, whether they are stored, and their confirms that wait for that."""
        self._repeats: list[tuple[bytes, Message]] = []
        self._filing = 0
        """Number of ids that wait for the files of bodies."""

    @property
    def awaits_files(self) -> bool:
        """True if ids of messages that may be in the queue wait, or are about to, for the files of bodies."""
        return bool(self._fresh) or self._filing > 0

    @property
    def has_any(self) -> bool:
        """True if the next run has something to note."""
        return bool(self._fresh or self._runs or self._repeats)

    def add(self, mark: bytes, message: Message, value: int, waiting: Awaited | None) -> None:
        """Note an id that was taken, and notify who waits."""
        self._fresh.append((mark, message, value, waiting))

    def add_all(
        self, marks: Sequence[bytes], value: int, messages: Sequence[Message], *, is_timed: bool
    ) -> None:
        """Note ids that were taken with a value, of messages all of which are stored, or none.

        With `is_timed` ids outlast messages that end before they are written: their confirms wait for the ids.
        """
        is_stored = self.stores(messages[0])
        withheld: list[Withheld] = []
        last: object = None
        for message in messages if is_stored and is_timed else ():
            publisher = message.publisher  # type: ignore[attr-defined] # it is stored
            if publisher is not None:
                if publisher is not last:
                    withheld.append(Withheld(publisher))
                    last = publisher
                message.publisher = withheld[-1]  # type: ignore[attr-defined] # likewise
        self._runs.append((marks, value, is_stored, withheld))

    def add_repeat(self, mark: bytes, message: Message) -> None:
        """Notify the publisher of a repeat when that of the first message is."""
        self._repeats.append((mark, message))

    def stores(self, message: Message) -> bool:
        """Return whether the queue stores a message that it takes."""
        return self._disk is not None and message.persistent

    def note(self, unanswered: Mapping[bytes, Verdict]) -> None:
        """Note all in the next commit; publishers of repeats join those of messages without a verdict."""
        if self._runs:
            self._note_runs()
        if not self._fresh and not self._repeats:
            return
        fresh, self._fresh = self._fresh, []
        repeats, self._repeats = self._repeats, []
        waiting: list[Awaited] = []
        for mark, message, value, promise in fresh:
            if self._disk is None or not isinstance(message, Persistent):
                continue
            told = () if promise is None else (promise,)
            if message.in_blob and not self._disk.journal.has_file(message):
                self._disk.journal.write_file(message, partial(self._filed, mark, value, told))
                self._filing += 1
                continue
            self._ids.note(mark, value)
            waiting += told
        self.tell(waiting)
        waiting = []
        for mark, message in repeats:
            if (promise := not_kept(message, is_durable=self._durable)) is not None:
                verdict = unanswered.get(mark)
                (waiting if verdict is None else verdict.waiting).append(promise)
        self.tell(waiting, also_files=True)

    def _note_runs(self) -> None:
        runs, self._runs = self._runs, []
        for marks, until, is_stored, withheld in runs:
            if is_stored:
                self._ids.note_all(marks, until)
            if withheld and self._disk is not None:
                self._disk.journal.awaits_ids = True
                for each in withheld:
                    self._disk.journal.when_safe(each.settle)

    def _filed(self, mark: bytes, value: int, waiting: Sequence[Awaited], is_written: bool) -> bool:
        """Note the id of a message whose body is in a file now; the file is not needed for that."""
        if is_written:
            self._filing -= 1
            self._ids.note(mark, value)
            self.tell(waiting)
        return False

    def tell(self, waiting: Sequence[Awaited], *, also_files: bool = False) -> None:
        """Notify publishers when all that was noted is safe."""
        if not waiting:
            return
        if self._disk is None:
            told(waiting, True)
        elif also_files:
            self._disk.journal.when_all_safe(partial(told, waiting))
        else:
            self._disk.journal.when_safe(partial(told, waiting))

    def forget(self) -> None:
        """Note no id, and notify who waits all the same."""
        self._fresh = [(b"", message, value, promise) for _, message, value, promise in self._fresh]
        self._runs = [((), value, is_stored, withheld) for _, value, is_stored, withheld in self._runs]

    def give_up(self) -> None:
        """Forget the ids, after an internal error."""
        for mark, message, _, promise in self._fresh:
            self._ids.untake(mark, is_stored=self.stores(message))
            if promise is not None:  # its message is there after all, or was refused
                promise.accepted()
        for marks, _, is_stored, withheld in self._runs:
            for mark in marks:
                self._ids.untake(mark, is_stored=is_stored)
            for each in withheld:
                each.settle(True)
        for _, message in self._repeats:
            if (promise := not_kept(message, is_durable=self._durable)) is not None:
                promise.refused()
        self._fresh.clear()
        self._runs.clear()
        self._repeats.clear()


def told(waiting: Sequence[Awaited] | None, is_safe: bool) -> None:
    """Notify publishers."""
    for promise in waiting or ():
        if is_safe:
            promise.accepted()
        else:
            promise.refused()

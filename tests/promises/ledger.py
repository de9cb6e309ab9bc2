"""Ledger of publishers' verdicts and consumers' acts, judged by what an honest broker could have sent.

Every message has a *copy* for each queue it was routed to. A copy is *awaited* if its queue was in a consumer-ack mode
when it was published, by a channel in confirm mode. What is seen is judged at once:

    verdict   one for each number; a return comes before its ack
    ack       each awaited copy has a consumer's ack or reject, or becomes a dead letter; others are on disk if they have
              to be
    nack      some queue may have refused it, or may have discarded an awaited copy that no consumer had settled, or the
              timeout is over
    late      no number is open when nothing is missing for its verdict, or for longer than the timeout
    delivery  only what was published, whole, to where it was routed, in order, `redelivered` exactly when it was seen
              before, and not again once it is gone

Pure: no broker, no clock.
"""

from collections import Counter
from collections.abc import Iterable
from struct import Struct

MANY = 50
"""Violations whose text is kept."""
_HEAD = Struct(">IQ")


class Book:
    """One queue, from its declaration to its end.

    Args:
        name: its name, which no other queue has or had.
        durable: keeps persistent messages on disk.
        saves_all: keeps all of them there.
        drops: it may discard a message by itself.
        dies: what it discards, or a consumer rejects, becomes a dead letter.
        refuses: it may refuse a publish.
        ordered: messages come in the order in which they were published.
        mode: its confirm mode; the owner keeps it up to date.

    """

    def __init__(
        self,
        name: str,
        *,
        durable: bool = True,
        saves_all: bool = False,
        drops: bool = False,
        dies: bool = False,
        refuses: bool = False,
        ordered: bool = True,
        mode: str = "standard",
    ) -> None:
        self.name = name
        self.durable, self.saves_all = durable, saves_all
        self.drops, self.dies, self.refuses, self.ordered = drops, dies, refuses, ordered
        self.mode = mode
        self.deleted = False
        self.live: dict[Copy, None] = {}
        """Copies that may still be in it, or with a consumer."""


class Copy:
    __slots__ = (
        "awaited",
        "book",
        "delivered",
        "discarded",
        "gone",
        "held",
        "light",
        "message",
        "rejected",
        "yes",
    )

    def __init__(self, message: "Published", book: Book, *, awaited: bool, light: bool) -> None:
        self.message, self.book = message, book
        self.awaited, self.light = awaited, light
        self.delivered = 0
        self.held = False
        self.yes = self.rejected = self.discarded = self.gone = False

    def __repr__(self) -> str:
        return f"{self.message} in {self.book.name}"


class Published:
    """A message and what its publisher knows."""

    __slots__ = (
        "born",
        "channel",
        "commit",
        "copies",
        "expires",
        "mandatory",
        "persistent",
        "returned",
        "seq",
        "verdict",
    )

    def __init__(
        self, channel: "Channel", seq: int, commit: int, born: float, *, persistent: bool, mandatory: bool
    ) -> None:
        self.channel, self.seq = channel, seq
        self.commit, self.born = commit, born
        self.persistent, self.mandatory = persistent, mandatory
        self.expires = self.returned = False
        self.verdict = ""
        self.copies: dict[str, Copy] = {}

    def __repr__(self) -> str:
        return f"{self.channel.number}/{self.seq}"


class Channel:
    def __init__(self, number: int, *, confirms: bool) -> None:
        self.number = number
        self.confirms = confirms
        self.seq = 0
        self.messages: dict[int, Published] = {}
        self.open: dict[int, Published] = {}
        """Numbers without a verdict, in order."""


def make_body(channel: Channel, seq: int, size: int) -> bytes:
    """A body that says which message it is."""
    return _HEAD.pack(channel.number, seq) + bytes([seq % 251]) * size


class Ledger:
    """The ledger of all publishes and observations.

    Args:
        timeout: seconds after which an open number may be nacked.
        slack: seconds after that until it has to be.

    """

    def __init__(self, timeout: float = float("inf"), slack: float = 0.0) -> None:
        self._timeout, self._slack = timeout, slack
        self.now = 0.0
        """Time in seconds; the owner keeps it up to date."""
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.channels: dict[int, Channel] = {}
        self.commits = 0
        """Number of commits so far."""
        self._owed: list[Copy] = []
        self._dead: set[tuple[int, int, str]] = set()
        self._order: dict[tuple[str, object, int], int] = {}

    def violate(self, oracle: str, text: object) -> None:
        """Something an honest broker cannot do."""
        self.counts["violations"] += 1
        if len(self.violations) < MANY:
            self.violations.append(f"{oracle}: {text}")

    # -- publishers ---------------------------------------------------------------------------------------------------

    def open_channel(self, *, confirms: bool) -> Channel:
        """A publisher's channel is new."""
        channel = Channel(len(self.channels) + 1, confirms=confirms)
        self.channels[channel.number] = channel
        return channel

    def published(
        self, channel: Channel, books: list[Book], *, persistent: bool, mandatory: bool, expires: bool
    ) -> Published:
        """A message is about to be sent to these queues; the caller owes `sent` or `withdrawn` for its copies."""
        channel.seq += 1
        message = Published(
            channel, channel.seq, self.commits, self.now, persistent=persistent, mandatory=mandatory
        )
        message.expires = expires
        for book in books:
            awaited = channel.confirms and book.mode != "standard"
            light = awaited and book.mode == "consumer-ack-light"
            message.copies[book.name] = Copy(message, book, awaited=awaited, light=light)
        channel.messages[message.seq] = message
        if channel.confirms:
            channel.open[message.seq] = message
        self.counts["published"] += 1
        return message

    def sent(self, copies: Iterable[Copy]) -> None:
        """Copies come into being: at once, or with their transaction."""
        for copy in copies:
            copy.book.live[copy] = None
            self.counts["copies"] += 1

    def verdict(self, channel: Channel, number: int, *, multiple: bool, ack: bool) -> None:
        if number not in channel.open:
            self.violate("verdict", f"{channel.number}/{number}, which is not open")
        if multiple:
            numbers = []
            for seq in channel.open:
                if seq > number:
                    break
                numbers.append(seq)
        else:
            numbers = [number] if number in channel.open else []
        for seq in numbers:
            message = channel.open.pop(seq)
            message.verdict = "ack" if ack else "nack"
            self.counts[message.verdict] += 1
            if ack:
                self._check_ack(message)
            else:
                self._check_nack(message)

    def _check_ack(self, message: Published) -> None:
        if message.mandatory and not message.copies and not message.returned:
            self.violate("verdict", f"{message} was to be returned before its ack")
        for copy in message.copies.values():
            book = copy.book
            if copy.awaited:
                self.counts["awaited acks"] += 1
                if book.dies and (copy.rejected or not copy.yes):
                    self._owed.append(copy)
                elif not copy.yes:
                    self.violate("ack", f"{copy}: no consumer has acked it")
            elif (book.saves_all or (message.persistent and book.durable)) and message.commit == self.commits:
                may_be_gone = book.drops or book.dies or message.expires
                if not (copy.yes or copy.gone or may_be_gone or book.deleted):
                    self.violate("ack", f"{copy}: there was no commit")

    def _check_nack(self, message: Published) -> None:
        if not any(
            copy.book.refuses
            or (copy.awaited and not copy.yes and (copy.discarded or copy.book.drops or message.expires))
            for copy in message.copies.values()
        ):
            if self.now - message.born >= self._timeout:
                self.counts["overdue"] += 1
            else:
                self.violate("nack", f"{message}: every copy is safe or was consumed")

    def withdrawn(self, copies: Iterable[Copy]) -> None:
        """These copies never come into being: their transaction ends otherwise, or their queue is gone."""
        for copy in copies:
            self._leave(copy)
            del copy.message.copies[copy.book.name]

    def returned(self, channel: Channel, body: bytes) -> None:
        """A mandatory message came back."""
        message = self._read(body)
        if message is None:
            return
        if message.channel is not channel or message.copies or not message.mandatory:
            self.violate("verdict", f"{message} came back")
        else:
            message.returned = True

    def closed(self, channel: Channel) -> None:
        """Note that a publisher's channel is gone, and needs no verdicts."""
        for message in channel.open.values():
            message.verdict = "unheard"
            self.counts["unheard"] += 1
        channel.open.clear()

    # -- consumers ----------------------------------------------------------------------------------------------------

    def _read(self, body: bytes) -> Published | None:
        number, seq = _HEAD.unpack_from(body)
        message = self.channels[number].messages.get(seq) if number in self.channels else None
        if message is None or body != make_body(message.channel, seq, len(body) - _HEAD.size):
            self.violate("delivery", f"{number}/{seq} was never published so")
            return None
        return message

    def delivered(self, book: Book, consumer: object, body: bytes, *, redelivered: bool) -> Copy | None:
        """Judge a delivery; returns None for a message that was never published there."""
        message = self._read(body)
        if message is None:
            return None
        copy = message.copies.get(book.name)
        if copy is None:
            self.violate("delivery", f"{message} in {book.name}, where it was not routed to")
            return None
        if copy.gone or copy.held:
            self.violate("delivery", f"{copy} again")
        elif not book.deleted:
            copy.discarded = False  # a purge that has waited for a read comes too late for it
        if redelivered is not (copy.delivered > 0):
            self.violate("delivery", f"{copy} for the {copy.delivered + 1}. time, redelivered={redelivered}")
        if not copy.delivered and book.ordered:
            place = book.name, consumer, message.channel.number
            if self._order.get(place, 0) >= message.seq:
                self.violate("delivery", f"{copy} behind {self._order[place]}")
            self._order[place] = message.seq
        copy.delivered += 1
        copy.held = True
        self.counts["deliveries"] += 1
        return copy

    def settled(self, copy: Copy, *, rejected: bool = False) -> None:
        """A consumer is about to ack a copy, or to reject it for good; or it was handed over for good."""
        if not copy.book.deleted or copy.light:  # else it came too late
            copy.yes = True
            copy.rejected = rejected
        self._leave(copy)

    def given_back(self, copy: Copy) -> None:
        copy.held = False
        self.counts["given back"] += 1
        if copy.light or copy.book.deleted:
            copy.discarded = True
            self._leave(copy)

    @staticmethod
    def _leave(copy: Copy) -> None:
        copy.held = False
        copy.gone = True
        copy.book.live.pop(copy, None)

    # -- queues -------------------------------------------------------------------------------------------------------

    @staticmethod
    def purging(book: Book) -> None:
        """Note that the ready copies are about to be discarded, but for those that are delivered meanwhile."""
        for copy in book.live:
            copy.discarded = copy.discarded or not copy.held

    @staticmethod
    def changed(book: Book, mode: str) -> None:
        """The queue has another mode: where nothing is light any more, what is ready is not either."""
        book.mode = mode
        if mode != "consumer-ack-light":
            for copy in book.live:
                copy.light = copy.light and copy.held

    def purged(self, book: Book) -> None:
        for copy in [copy for copy in book.live if not copy.held]:
            copy.discarded = True
            self._leave(copy)

    def deleted(self, book: Book) -> None:
        self.deleting(book)
        self.purged(book)

    def deleting(self, book: Book) -> None:
        """Note that the queue is about to go; it may deliver meanwhile."""
        self.purging(book)
        book.deleted = True
        for copy in book.live:
            copy.discarded = copy.discarded or not copy.light

    def dead(self, queue: str, body: bytes) -> None:
        """A dead letter came, whose first queue that was."""
        message = self._read(body)
        if message is None:
            return
        copy = message.copies.get(queue)
        if copy is None or not copy.book.dies:
            self.violate("delivery", f"{message} as a dead letter of {queue}")
            return
        key = message.channel.number, message.seq, queue
        if key in self._dead:
            self.violate("delivery", f"{copy} as a dead letter again")
        self._dead.add(key)
        copy.book.live.pop(copy, None)
        self.counts["dead letters"] += 1

    # -- at quiet times -----------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Judge, after a turn and a commit with nothing in between, whether an open number waits for nothing."""
        longest = self._timeout + self._slack
        for channel in self.channels.values():
            for message in channel.open.values():
                copies = message.copies.values()
                if self.now - message.born > longest:
                    self.violate("late", f"{message} is open for {self.now - message.born:.3f} s")
                if all(map(self._is_settled, copies)) or any(map(self._is_lost, copies)):
                    self.violate("late", f"{message} is open, and nothing is missing: {list(copies)}")

    @staticmethod
    def _is_settled(copy: Copy) -> bool:
        return not copy.awaited or (copy.yes and not (copy.rejected and copy.book.dies))

    @staticmethod
    def _is_lost(copy: Copy) -> bool:
        return copy.awaited and copy.discarded and not copy.book.dies  # it may have died before

    def check_end(self) -> None:
        """Every queue is empty or gone, and every dead letter was read."""
        for channel in self.channels.values():
            for message in channel.open.values():
                self.violate("verdict", f"{message} has none: {list(message.copies.values())}")
            self.counts["outstanding"] += len(channel.open)
        for copy in self._owed:
            if (copy.message.channel.number, copy.message.seq, copy.book.name) not in self._dead:
                self.violate("ack", f"{copy}: no consumer has acked it, and there is no dead letter")

    def check_empty(self, book: Book) -> None:
        """A queue that never discards by itself is empty: everybody got everything."""
        if not (book.drops or book.dies or book.refuses):
            for copy in book.live:
                if not copy.message.expires:
                    self.violate("delivery", f"{copy} is lost")

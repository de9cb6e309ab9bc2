"""Ledger of what publishers and consumers saw, judged by what a durable broker may let them see.

Theory. Every message has an id (run, channel, seq): the run of the broker it was published in, the publisher's
channel, its number there, which in confirm mode is its seq_no. A message has one *copy* for each queue it is routed
to, and the ledger keeps where each copy is, as far as an honest observer can know:

    place      meaning                                            at the next start after a fault
    WAITING    published, not delivered, or requeued              WAITING if it was confirmed, else DOUBTFUL
    HELD       delivered, not settled                             the same
    ACKED      acknowledged; nobody knows whether on disk         DOUBTFUL
    DOUBTFUL   may be in the queue or not                         DOUBTFUL
    GONE       acknowledged and known to be on disk, purged       GONE

Transient copies are GONE after every start. A consumer's ack is *known* when a persistent message that was published
after it on the same channel, to a queue without a consumer, is confirmed: both are in the same commit or the ack is in
an earlier one.

What is seen is judged at once, by these oracles:

    O1   what was confirmed and not acknowledged is delivered before its queue is empty
    O2   a second delivery has `redelivered`, and follows a requeue or a fault; what is GONE stays gone
    O3   first deliveries of a publisher's channel in a queue come in order, over all runs and in each one;
         what was requeued comes back in order and before anything younger
    O4   one verdict for each number, none at or below an earlier `multiple`; a return comes before its ack
    O5   nothing is delivered that was not published, to no queue it was not routed to, no octet different
    O8   the broker logs no traceback, but where the disk is broken, and no slow step
    O9   a queue's depth is what went in less what went out
    O10  the broker is ready again soon after a fault

Pure: no sockets, no clock. Several consumers of one queue would need an order between connections that nobody can
see, so a queue has one consumer at a time.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from enum import Enum
from hashlib import blake2b
from struct import Struct
from typing import NamedTuple

START_SECONDS = 2.0
RECOVERY_RATE = 200_000
"""Messages a second."""
MANY = 200
"""Violations whose text is kept."""

_HEAD = Struct(">4sIHIQ")
_MAGIC = b"crsh"
_DIGEST_SIZE = 8
SMALLEST_BODY = _HEAD.size + _DIGEST_SIZE


class Id(NamedTuple):
    run: int
    channel: int
    seq: int

    def __str__(self) -> str:
        return f"{self.run}/{self.channel}/{self.seq}"


class Place(Enum):
    WAITING = "waiting"
    HELD = "held"
    ACKED = "acked"
    DOUBTFUL = "doubtful"
    GONE = "gone"


WAITING, HELD, ACKED, DOUBTFUL, GONE = Place


class Violation(NamedTuple):
    """Something an honest broker cannot do."""

    oracle: str
    text: str

    def __str__(self) -> str:
        return f"{self.oracle}: {self.text}"


class BodyError(Exception):
    """A body is none that `make_body` made."""


def make_body(ident: Id, fill: bytes) -> bytes:
    """A body that says which message it is and proves that it is whole."""
    rest = _HEAD.pack(_MAGIC, *ident, len(fill)) + fill
    return rest + blake2b(rest, digest_size=_DIGEST_SIZE).digest()


def read_body(body: bytes) -> tuple[Id, bytes]:
    """The message's id and its digest; raises BodyError if it is damaged."""
    if len(body) < SMALLEST_BODY:
        raise BodyError(f"{len(body)} octets are too few")
    magic, run, channel, seq, size = _HEAD.unpack_from(body)
    if magic != _MAGIC or size != len(body) - SMALLEST_BODY:
        raise BodyError(f"{len(body)} octets begin with {body[: _HEAD.size].hex()}")
    digest = body[-_DIGEST_SIZE:]
    if digest != blake2b(memoryview(body)[:-_DIGEST_SIZE], digest_size=_DIGEST_SIZE).digest():
        raise BodyError(f"the digest of {run}/{channel}/{seq} is wrong")
    return Id(run, channel, seq), digest


class Publication:
    """The publisher's line of one message."""

    __slots__ = ("digest", "id", "mandatory", "outcome", "persistent", "queues", "returned")

    def __init__(
        self, ident: Id, queues: Collection[str], digest: bytes, *, persistent: bool, mandatory: bool
    ) -> None:
        self.id, self.queues, self.digest = ident, queues, digest
        self.persistent, self.mandatory = persistent, mandatory
        self.outcome = ""
        """`ack`, `nack` or nothing yet."""
        self.returned = False


class Copy:
    __slots__ = ("place", "proven", "publication", "queue", "recovered", "redelivery", "why")

    def __init__(self, publication: Publication, queue: str) -> None:
        self.publication, self.queue = publication, queue
        self.place = WAITING
        self.redelivery: bool | None = False
        """True if its next delivery must have `redelivered`, False if it must not, None if that is not known."""
        self.proven = False
        """True if it came back from disk once, confirmed or not."""
        self.recovered = False
        """True if it has to come back from disk and has not yet."""
        self.why = ""
        """Reason why it is GONE or DOUBTFUL."""

    @property
    def owed(self) -> bool:
        """True if the broker must have it ready."""
        return self.place is WAITING and self.safe

    @property
    def safe(self) -> bool:
        """True if the broker answers for it."""
        return self.proven or self.publication.outcome == "ack"


class _Channel:
    __slots__ = ("multiple", "open", "published")

    def __init__(self) -> None:
        self.published = 0
        self.multiple = 0
        """The highest number of a verdict with `multiple`."""
        self.open: dict[int, Publication] = {}


class _Order:
    """Deliveries of one publisher's channel in one queue."""

    __slots__ = ("ever", "in_run", "placed", "returning", "run")

    def __init__(self) -> None:
        self.ever = 0
        self.run = self.in_run = 0
        self.returning: dict[int, int] = {}
        """Requeued, and the broker may not know yet: seq to the number of the requeue."""
        self.placed: list[int] = []
        """Requeued, and the broker knows; in order."""


class Ledger:
    """The history of one data directory. The first run has number 1."""

    def __init__(self) -> None:
        self.run = 1
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        """Totals: confirmed, recovered, lost, duplicates, unmarked, disordered, violations, by oracle."""
        self._requeues = 0
        self._channels: dict[tuple[int, int], _Channel] = {}
        self._queues: dict[str, dict[Id, Copy]] = {}
        self._orders: dict[str, dict[tuple[int, int], _Order]] = {}

    def _violate(self, oracle: str, text: str) -> None:
        self.counts["violations"] += 1
        self.counts[oracle] += 1
        if len(self.violations) < MANY:
            self.violations.append(Violation(oracle, text))

    def broke(self, oracle: str, text: str) -> None:
        """Something else went wrong that an oracle forbids."""
        self._violate(oracle, text)

    # -- publishers -----------------------------------------------------------------------------------------------------

    def open_channel(self) -> int:
        """A publisher's channel; its number goes into the ids."""
        number = 1
        while (self.run, number) in self._channels:
            number += 1
        self._channels[self.run, number] = _Channel()
        return number

    def next_id(self, channel: int) -> Id:
        return Id(self.run, channel, self._channels[self.run, channel].published + 1)

    def published(
        self,
        ident: Id,
        queues: Collection[str],
        digest: bytes,
        *,
        persistent: bool = True,
        mandatory: bool = False,
    ) -> Publication:
        """A message is about to be sent; `queues` is where it has to go."""
        channel = self._channels[ident.run, ident.channel]
        assert ident.seq == channel.published + 1
        channel.published = ident.seq
        publication = Publication(ident, queues, digest, persistent=persistent, mandatory=mandatory)
        channel.open[ident.seq] = publication
        for queue in queues:
            self._queues.setdefault(queue, {})[ident] = self._copy(publication, queue)
        self.counts["published"] += 1
        return publication

    def _copy(self, publication: Publication, queue: str) -> Copy:
        return Copy(publication, queue)

    def was_published(self, ident: Id) -> bool:
        """Return whether there ever was such a message."""
        book = self._channels.get((ident.run, ident.channel))
        return book is not None and ident.seq <= book.published

    def verdict(self, channel: int, number: int, *, multiple: bool, ack: bool) -> list[Publication]:
        """An ack or a nack came; returns what it decided."""
        book = self._channels[self.run, channel]
        name = f"{'ack' if ack else 'nack'} {number}{' multiple' if multiple else ''} on {self.run}/{channel}"
        if number <= book.multiple:
            self._violate("O4", f"{name} after multiple {book.multiple}")
        elif number > book.published:
            self._violate("O4", f"{name}, but {book.published} were published")
        elif number not in book.open:
            self._violate("O4", f"{name}: it had its verdict")
        decided = []
        if multiple:
            for seq in list(book.open):  # in order
                if seq > number:
                    break
                decided.append(book.open.pop(seq))
            book.multiple = max(book.multiple, number)
        elif (found := book.open.pop(number, None)) is not None:
            decided.append(found)
        for publication in decided:
            publication.outcome = "ack" if ack else "nack"
            if ack and publication.mandatory and not publication.queues and not publication.returned:
                self._violate("O4", f"{publication.id} is confirmed and was not returned")
            if ack and publication.persistent and publication.queues:
                self.counts["confirmed"] += 1
        return decided

    def returned(self, ident: Id) -> None:
        """A message came back to its publisher."""
        book = self._channels.get((ident.run, ident.channel))
        publication = None if book is None else book.open.get(ident.seq)
        if publication is None:
            self._violate("O4", f"{ident} is returned, but it is not open")
        elif publication.queues or not publication.mandatory:
            self._violate("O4", f"{ident} is returned, but it has queues or was not mandatory")
        elif publication.returned:
            self._violate("O4", f"{ident} is returned twice")
        else:
            publication.returned = True

    def undecided(self, channel: int) -> int:
        """Return the number of messages of a channel of this run that have no verdict yet."""
        return len(self._channels[self.run, channel].open)

    def quiet(self, channel: int) -> None:
        """Note that a publisher's channel is idle: all numbers must have their verdicts."""
        if left := list(self._channels[self.run, channel].open):
            self._violate(
                "O4", f"{len(left)} on {self.run}/{channel} have no verdict, the first is {left[0]}"
            )

    # -- consumers ------------------------------------------------------------------------------------------------------

    def damaged(self, queue: str, text: str) -> None:
        """A delivered body is none of ours."""
        self._violate("O5", f"{queue}: {text}")

    def delivered(self, queue: str, ident: Id, digest: bytes, *, redelivered: bool) -> Copy | None:
        """A consumer got a message; None if it never should have."""
        copy = self._queues.get(queue, {}).get(ident)
        if copy is None:
            if not self.was_published(ident):
                self._violate("O5", f"{queue}: {ident} was never published")
            else:
                self.counts["duplicates"] += 1
                self._violate("O2", f"{queue}: {ident} was settled for good, or never routed here")
            return None
        if digest != copy.publication.digest:
            self._violate("O5", f"{queue}: {ident} is not what was published")
        if copy.place in {GONE, HELD, ACKED}:
            self.counts["duplicates"] += 1
            why = copy.why or {HELD: "it is unacked", ACKED: "it was acknowledged in this run"}[copy.place]
            self._violate("O2", f"{queue}: {ident} is delivered again, but {why}")
        if copy.redelivery and not redelivered:
            self.counts["unmarked"] += 1
            self._violate("O2", f"{queue}: {ident} is delivered again without redelivered")
        elif redelivered and copy.redelivery is False:
            self._violate("O2", f"{queue}: {ident} is redelivered, but it was never delivered")
        self._check_order(queue, ident, copy)
        if copy.recovered:
            copy.recovered = False
            self.counts["recovered"] += 1
        copy.place = HELD
        copy.why = ""
        copy.redelivery = True
        copy.proven |= ident.run < self.run
        return copy

    def _check_order(self, queue: str, ident: Id, copy: Copy) -> None:
        orders = self._orders.setdefault(queue, {})
        order = orders.get(ident[:2])
        if order is None:
            order = orders[ident[:2]] = _Order()
        seq = ident.seq
        if order.run != self.run:
            order.run, order.in_run = self.run, 0
            order.returning, order.placed = {}, []
        if order.placed:
            while order.placed and order.placed[0] < seq:
                self._disorder(f"{queue}: {ident} before {order.placed.pop(0)}, which was requeued")
            if order.placed and order.placed[0] == seq:
                order.placed.pop(0)
                return
        if order.returning.pop(seq, None) is not None:
            return
        if seq > order.in_run:
            order.in_run = seq
        elif copy.place in {WAITING, DOUBTFUL}:
            self._disorder(f"{queue}: {ident} after {order.in_run} in one run")
        if seq > order.ever:
            order.ever = seq
        elif copy.redelivery is False:
            self._disorder(f"{queue}: {ident} for the first time after {order.ever}")

    def _disorder(self, text: str) -> None:
        self.counts["disordered"] += 1
        self._violate("O3", text)

    def acked(self, copies: Iterable[Copy]) -> None:
        """A consumer sent an ack for them."""
        for copy in copies:
            copy.place = ACKED

    def known(self, copies: Iterable[Copy]) -> None:
        """Acks of this run are on disk for certain; copies that have left ACKED since stay where they are."""
        for copy in copies:
            if copy.place is ACKED:
                copy.place, copy.why = GONE, "its ack was on disk"

    def leaving(self, queue: str) -> None:
        """A consumer is about to close its channel, with what it holds."""

    def requeued(self, copies: Iterable[Copy]) -> int:
        """A consumer gave them back, or its channel is closed with them; returns the number of this requeue."""
        self._requeues += 1
        for copy in copies:
            copy.place = WAITING
            order = self._orders[copy.queue][copy.publication.id[:2]]
            order.returning[copy.publication.id.seq] = self._requeues
        return self._requeues

    def placed(self, queue: str, number: int) -> None:
        """The broker has worked off a queue's requeues up to this number, before what it sends from now on."""
        for order in self._orders.get(queue, {}).values():
            if order.returning and order.run == self.run:
                known = [seq for seq, requeue in order.returning.items() if requeue <= number]
                for seq in known:
                    del order.returning[seq]
                order.placed = sorted(order.placed + known)

    def disturbed(self, queue: str) -> None:
        """Note that a consumer's connection to a queue was cut, with deliveries on their way."""
        for copy in self._queues.get(queue, {}).values():
            if copy.place is WAITING and not copy.redelivery:
                copy.redelivery = None

    # -- queues ---------------------------------------------------------------------------------------------------------

    def purging(self, queue: str) -> list[Copy]:
        """A purge (or a delete) is about to be sent; give the result to `purged` with the reply."""
        ready = [copy for copy in self._queues.get(queue, {}).values() if copy.place in {WAITING, DOUBTFUL}]
        for copy in ready:
            copy.place, copy.why = DOUBTFUL, "it was being purged"
        return ready

    def purged(self, copies: Iterable[Copy]) -> None:
        for copy in copies:
            copy.place, copy.why = GONE, "its queue was purged"

    def missing(self, queue: str) -> None:
        """A durable queue is not there after a start, and so are its messages."""
        self._violate("O1", f"{queue} is gone")
        self._lose(queue)

    def depth(self, queue: str, ready: int) -> None:
        """A queue said how many messages are ready in it, with no publish, delivery or settlement under way."""
        low = high = 0
        for copy in self._queues.get(queue, {}).values():
            if copy.owed:
                low += 1
            elif copy.place in {WAITING, DOUBTFUL}:
                high += 1
        high += low
        if not low <= ready <= high:
            self._violate("O9", f"{queue} says {ready}, but {low} to {high} are right")

    def drained(self, queue: str) -> None:
        """A queue is empty: nothing is ready and no delivery under way."""
        self._lose(queue)

    def _lose(self, queue: str) -> None:
        for ident, copy in self._queues.get(queue, {}).items():
            if copy.owed:
                self.counts["lost"] += 1
                persistent = "persistent" if copy.publication.persistent else "transient"
                self._violate("O1", f"{queue}: {ident} ({persistent}) was confirmed and is lost")
            if copy.place in {WAITING, DOUBTFUL}:
                copy.place, copy.why, copy.recovered = GONE, "its queue was empty meanwhile", False
        for order in self._orders.get(queue, {}).values():
            order.returning, order.placed = {}, []

    def owed(self, queue: str | None = None) -> int:
        """Return the number of persistent copies confirmed and not acknowledged, in one queue or in all."""
        names = list(self._queues) if queue is None else [queue]
        return sum(
            copy.place in {WAITING, HELD} and copy.safe and copy.publication.persistent
            for name in names
            for copy in self._queues.get(name, {}).values()
        )

    def copies(self, ident: Id) -> list[Copy]:
        return [copies[ident] for copies in self._queues.values() if ident in copies]

    def forget(self) -> None:
        """Drop the lines of copies that are GONE; should one come back, it is still a violation."""
        for copies in self._queues.values():
            for ident in [ident for ident, copy in copies.items() if copy.place is GONE]:
                del copies[ident]
        for queue, orders in self._orders.items():
            channels = {ident[:2] for ident in self._queues.get(queue, ())}
            self._orders[queue] = {
                key: order for key, order in orders.items() if key[0] == self.run or key in channels
            }

    # -- runs -----------------------------------------------------------------------------------------------------------

    def died(self) -> None:
        """The broker was killed, or its power was cut; the next run begins."""
        self._restart(acks_known=False, marked=True)

    def stopped(self) -> None:
        """The broker was stopped in good order; the next run begins."""
        self._restart(acks_known=True, marked=False)

    def _restart(self, *, acks_known: bool, marked: bool) -> None:
        """Begin the next run.

        Args:
            acks_known: whether the broker has heard all acks and has them on disk.
            marked: whether everything that comes back has `redelivered`.

        """
        for copies in self._queues.values():
            for copy in copies.values():
                if copy.place is GONE:
                    continue
                if not copy.publication.persistent:
                    copy.place, copy.why = GONE, "it was transient and the broker started again"
                elif copy.place is ACKED:
                    copy.place = GONE if acks_known else DOUBTFUL
                    copy.why = "it was acknowledged before the broker stopped" if acks_known else ""
                elif copy.place is not DOUBTFUL:
                    copy.place = WAITING if copy.safe else DOUBTFUL
                    copy.recovered = copy.place is WAITING
                if marked:
                    copy.redelivery = True
                elif not copy.redelivery:
                    copy.redelivery = None  # the broker may have sent it and nobody read it
        for (run, _), channel in self._channels.items():
            if run == self.run:
                channel.open.clear()
        self.run += 1

    def ready(self, seconds: float, messages: int = 0, allowance: float = START_SECONDS) -> None:
        """The broker took connections `seconds` after its start, having recovered so many messages."""
        limit = allowance + messages / RECOVERY_RATE
        if seconds > limit:
            self._violate(
                "O10", f"ready after {seconds:.2f} s with {messages} messages, {limit:.2f} s allowed"
            )

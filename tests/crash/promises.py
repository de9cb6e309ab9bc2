"""Rules for messages that wait for a consumer's verdict, beside those of `ledger` for messages on disk.

Theory. A queue in a consumer-ack mode makes a *promise* of each copy that came by a channel in confirm mode: nothing is
written, and the publish is confirmed when a consumer has answered for it. A copy that came by another channel is like
any other, also in such a queue. An honest observer of a promise knows:

    event                              consumer-ack                           consumer-ack-light
    ack for the publish                a consumer has answered for it before: acked it, rejected it for good, or took
                                       it without acks; it never comes again
    nack                               no reason for one                      a consumer gave it back or was cut
    given back, its channel closed     WAITING, comes again                   GONE
    its consumer's connection cut      the same; what was acked last, too     GONE; what was on its way to it, too
    rejected, with dead letters        the dead letter is WAITING; once the publish is confirmed it is on disk
    the broker is killed               GONE                                   GONE
    killed while it stops              there or not, in any order             the same
    stopped at work                    on disk from now on, if the broker     the same, if nobody consumed there;
                                       had it and it is persistent            else it may be, or it was delivered

The oracles are those of `ledger`: O1 objects to an ack that no consumer stands for, O4 to a nack without a reason. Every number has
its verdict once its queues are empty (`Ledger.quiet`). Pure: no sockets, no clock.
"""

import sys
from collections.abc import Collection, Iterable, Mapping

from crash.ledger import ACKED, DOUBTFUL, GONE, HELD, WAITING, Copy, Id, Ledger, Publication

LIGHT = "consumer-ack-light"
MODES = ("consumer-ack", LIGHT)
"""Modes in which consumers answer."""

_NEVER = sys.maxsize
"""The number of a requeue that is not certain."""


class Promise(Copy):
    __slots__ = ("answered", "letter", "light", "may_be_nacked", "written")

    def __init__(self, publication: Publication, queue: str, *, light: bool) -> None:
        super().__init__(publication, queue)
        self.light = light
        """True if the queue keeps nothing of it once it is delivered."""
        self.answered = False
        """True if its last consumer has sent an ack or a reject for it, or needs not."""
        self.may_be_nacked = False
        """True if it came back to a queue that no longer has it, or perhaps did."""
        self.letter: Copy | None = None
        """Copy of its dead letter."""
        self.written = False
        """True if it was written when the broker stopped; it is a copy like any other since."""


class Letter(Copy):
    """A dead letter of a promise: on disk if the publish is confirmed."""

    __slots__ = ()


def _is_light(copy: Copy) -> bool:
    return isinstance(copy, Promise) and copy.light and not copy.written


class Promises(Ledger):
    """A ledger for a broker some of whose queues are in a consumer-ack mode.

    Args:
        modes: the mode in effect by queue; what is not named is standard.
        without_acks: queues whose consumers need no acks: what is handed to them may never arrive in a fault.
        letters: where dead letters go, by queue.
        unordered: queues with priorities.

    """

    def __init__(
        self,
        modes: Mapping[str, str],
        *,
        without_acks: Collection[str] = (),
        letters: Mapping[str, str] | None = None,
        unordered: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.modes, self.without_acks, self.letters = modes, without_acks, letters or {}
        self.unordered = unordered
        self._standard: set[tuple[int, int]] = set()
        """Channels without confirms."""
        self._open: dict[Id, list[Promise]] = {}
        """Promises of publications without a verdict."""
        self._cut: set[str] = set()
        """Queues whose consumer's connection was cut, and the broker may not know it yet."""
        self._leaving: set[str] = set()
        """Queues whose consumer is closing its channel."""
        self._cut_short: set[tuple[str, int, int]] = set()
        """Queues, and channels by run and number, that have no order any more."""
        self._taken: set[Id] = set()
        """Messages that the broker certainly has, in this run."""

    # -- publishers -----------------------------------------------------------------------------------------------------

    def open_channel(self, *, confirms: bool = True) -> int:
        """Open a publisher's channel; one without confirms has `tx.commit-ok` as verdict, given to `verdict`."""
        number = super().open_channel()
        if not confirms:
            self._standard.add((self.run, number))
        return number

    def _copy(self, publication: Publication, queue: str) -> Copy:
        mode = self.modes.get(queue)
        if mode is None or publication.id[:2] in self._standard:
            return super()._copy(publication, queue)
        promise = Promise(publication, queue, light=mode == LIGHT)
        self._open.setdefault(publication.id, []).append(promise)
        return promise

    def taken(self, channel: int) -> None:
        """The broker has read all that was published on a channel of this run."""
        for copies in self._queues.values():
            self._taken.update(ident for ident in copies if ident[:2] == (self.run, channel))

    def verdict(self, channel: int, number: int, *, multiple: bool, ack: bool) -> list[Publication]:
        """An ack or a nack came, or a commit was answered; returns what it decided."""
        decided = super().verdict(channel, number, multiple=multiple, ack=ack)
        for publication in decided:
            promises = self._open.pop(publication.id, ())
            if not promises:
                continue
            self.counts["consumed" if ack else "nacked"] += 1
            if ack:
                for promise in promises:
                    self._confirmed(promise)
            elif not any(map(self._may_be_nacked, promises)):
                self._violate("O4", f"{publication.id} is nacked, but no queue had to give it up")
        return decided

    def _confirmed(self, promise: Promise) -> None:
        if promise.answered:
            promise.place, promise.why = GONE, "it was confirmed, so its consumer had been heard"
        elif promise.queue not in self.without_acks:
            self.counts["unanswered"] += 1
            ident = promise.publication.id
            self._violate("O1", f"{promise.queue}: {ident} is confirmed, but no consumer has answered for it")

    def _may_be_nacked(self, promise: Promise) -> bool:
        came_back = promise.queue in self._cut or promise.queue in self._leaving
        return promise.may_be_nacked or (came_back and promise.light)

    def publisher_cut(self, channel: int) -> None:
        """A publisher's connection was cut: it hears of nothing any more, and the broker may have all or not."""
        self._channels[self.run, channel].open.clear()

    # -- consumers ------------------------------------------------------------------------------------------------------

    def delivered(self, queue: str, ident: Id, digest: bytes, *, redelivered: bool) -> Copy | None:
        """A consumer got a message; None if it never should have."""
        copy = super().delivered(queue, ident, digest, redelivered=redelivered)
        self._taken.add(ident)
        if isinstance(copy, Promise):
            copy.answered = False
            if copy.letter is not None:
                copy.letter.place, copy.letter.why = GONE, "its original came back"
                copy.letter = None
        return copy

    def _check_order(self, queue: str, ident: Id, copy: Copy) -> None:
        if isinstance(copy, Letter):
            return  # in the order of the rejects
        if queue not in self.unordered and (queue, *ident[:2]) not in self._cut_short:
            super()._check_order(queue, ident, copy)

    def acked(self, copies: Iterable[Copy]) -> None:
        """A consumer sent an ack for them, or needs not."""
        for copy in copies:
            super().acked([copy])
            if isinstance(copy, Promise):
                copy.answered = True
                if copy.publication.outcome == "ack":
                    copy.place, copy.why = GONE, "it was confirmed"

    def rejected(self, copies: Iterable[Copy]) -> None:
        """A consumer gave promises up, without requeue, and their queue has dead letters."""
        for copy in copies:
            self.acked([copy])
            assert isinstance(copy, Promise)
            letter = copy.letter = Letter(copy.publication, self.letters[copy.queue])
            self._queues.setdefault(letter.queue, {})[copy.publication.id] = letter

    def requeued(self, copies: Iterable[Copy]) -> int:
        """A consumer gave them back, or its channel is closed with them; returns the number of this requeue."""
        kept = []
        for copy in copies:
            if _is_light(copy):
                copy.place, copy.why = GONE, "it was given back to a queue that keeps nothing"
                copy.may_be_nacked = True
            else:
                kept.append(copy)
        return super().requeued(kept)

    def leaving(self, queue: str) -> None:
        """A consumer is about to close its channel; publishers may hear of it first."""
        self._leaving.add(queue)

    def placed(self, queue: str, number: int) -> None:
        """The broker has worked off a queue's requeues up to this number, before what it sends from now on."""
        super().placed(queue, number)
        self._leaving.discard(queue)

    def cut(self, queue: str, held: Iterable[Copy]) -> None:
        """Note that a consumer's connection was cut, with deliveries and acks on their way.

        The broker may send more there until it notices; call `disturbed` then.
        """
        self._cut.add(queue)
        self.requeued(held)
        for ident, copy in self._queues.get(queue, {}).items():
            if copy.place is not ACKED or queue in self.without_acks:
                continue
            if _is_light(copy):
                copy.may_be_nacked = True
            else:
                copy.place = DOUBTFUL
                self._orders[queue][ident[:2]].returning[ident.seq] = _NEVER

    def disturbed(self, queue: str) -> None:
        """Note that the broker has noticed a consumer's cut connection, and the queue has no consumer."""
        super().disturbed(queue)
        self._cut.discard(queue)
        for copy in self._queues.get(queue, {}).values():
            if copy.place is not WAITING:
                continue
            if queue in self.without_acks:
                copy.place = DOUBTFUL
            elif _is_light(copy):
                copy.place = DOUBTFUL
                copy.may_be_nacked = True

    # -- runs -----------------------------------------------------------------------------------------------------------

    def died(self) -> None:
        """The broker was killed, or its power was cut; the next run begins."""
        for promise in self._promises():
            if promise.place is not GONE:
                self.counts["let go"] += not promise.answered
                promise.place, promise.why = GONE, "it was never written, and the broker died"
        self._next_run()
        super().died()

    def died_stopping(self, consumed: Collection[str]) -> None:
        """The broker was killed while it stopped, with consumers on these queues: what is persistent may be on disk.

        A queue that was being turned round is found as far as that had come, its front behind its rear.
        """
        self._cut_short |= {
            (queue, *ident[:2]) for queue in self.modes for ident in self._queues.get(queue, ())
        }
        for promise in self._promises():
            if promise.place is GONE:
                continue
            with_consumer = promise.light and promise.queue in consumed and promise.place in {HELD, ACKED}
            if with_consumer or not promise.publication.persistent:
                promise.place, promise.why = GONE, "it was not to be written"
            else:
                promise.place = DOUBTFUL
            promise.written = True
        self._next_run()
        self._restart(acks_known=False, marked=False)  # it may have said that it has stopped

    def halting(self, consumed: Collection[str]) -> None:
        """Note that the broker is about to be stopped, with consumers at work on these queues."""
        for promise in self._promises():
            if _is_light(promise) and promise.queue in consumed:
                promise.may_be_nacked = True

    def halted(self, consumed: Collection[str]) -> None:
        """The broker has stopped in good order, with consumers at work on these queues; the next run begins."""
        for promise in self._promises():
            if promise.light and promise.queue in consumed:
                if promise.place in {HELD, ACKED}:
                    promise.place, promise.why = GONE, "it was with a consumer when the broker stopped"
                elif promise.place is WAITING:
                    promise.place = DOUBTFUL
            promise.written = True
        for copies in self._queues.values():
            for ident, copy in copies.items():
                if copy.place in {WAITING, HELD} and ident in self._taken and not isinstance(copy, Letter):
                    self.counts["spilled"] += copy.publication.persistent and not copy.safe
                    copy.proven = True
        self._next_run()
        self._restart(acks_known=False, marked=False)

    def _promises(self) -> list[Promise]:
        """Return the promises that are not written."""
        return [
            copy
            for copies in self._queues.values()
            for copy in copies.values()
            if isinstance(copy, Promise) and not copy.written
        ]

    def _next_run(self) -> None:
        for queue in self.without_acks:
            for copy in self._queues.get(queue, {}).values():
                if copy.place is WAITING:
                    copy.place = DOUBTFUL
        for each in (self._open, self._taken, self._cut, self._leaving):
            each.clear()

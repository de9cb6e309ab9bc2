"""The leader: groups batches into entries, appends one entry after the other, and knows how long it may lead.

One request that changes the lease is under way at a time. Without an answer its outcome is unknown: the same bytes go
under the same index again. If the entry is then *found* in the log, that is no answer yet (a server that restarts shows
what it never sent to a standby), so it settles with the next entry that is answered; if nothing waits, an empty one.

| event | entries made and not settled | what follows |
|---|---|---|
| `Appended`, with a proof that counts | settled up to it | tickets are logged |
| `Appended`, with one that does not | kept | the same again |
| no answer | kept | the same again |
| `Refused`, the lease is ours, `last` is at least the entry | found: kept | the next entry, or an empty one |
| `Refused`, the lease is ours, `last` is below it, not below the settled one | kept | those behind `last` again |
| `Refused`, the lease is ours, `last` is below the settled one | kept | steps down: it is another log |
| `Refused`, another lease | kept | steps down |
"""

from collections import deque
from typing import NamedTuple

from leveret.broker.replication import chain, engine
from leveret.broker.replication.settings import Settings


class _Body(NamedTuple):
    body: int
    content: bytes
    ticket: int


class Leader:
    """The holder of the lease."""

    def __init__(
        self,
        lease: engine.Lease,  # as it was taken
        # the place behind the last entry of the log, all of whose entries the node has read
        tail: engine.Position,
        settled: int,  # the highest index known to be settled
        timeline: int,  # of the answer that gave the lease
        taken: float,  # time at which the lease was asked for, in seconds of the node's clock
        settings: Settings,
    ) -> None:
        self.epoch = lease.epoch
        self.holder = lease.holder
        self._settings = settings
        self._tail = tail  # the place behind the last entry that was made
        self.settled = settled
        self._unsettled: deque[tuple[engine.Entry, tuple[int, ...]]] = deque()
        self._sent = tail.index  # entries up to this index need not be sent, again or at all
        self._is_begun = False
        self._batches: deque[tuple[chain.Batch, int]] = deque()
        self._bodies: deque[_Body] = deque()
        self._body_offset = 0
        self._body_is_next = False
        self._numbers = 0
        self._ids = 0
        self.waiting_octets = 0  # bytes of batches and bodies in no entry yet
        self._timeline = timeline
        self._asked = taken  # time at which the request under way was made
        self.renewed = taken  # time at which the last request that renewed the lease was made
        self._last_tick = taken
        self._may_renew = True
        self._successor: str | None = None  # its name, '' for any, while the lease is being given back
        self._move: engine.Move | None = None  # what is done when it is given back
        self.is_released = False
        self.is_unsafe = False  # True if the last answer did not count: no standby had to have the change
        self.reason = ""  # the reason for which this node leads no more; empty while it does
        self.logged: list[int] = []  # tickets whose entries are settled since this list was last emptied
        self.entries: list[engine.Entry] = []  # those settled since this list was last emptied, in order

    # -- what is to be logged ---------------------------------------------------------------------------------------

    def submit(self, batch: chain.Batch) -> int:
        """Put a batch in line. Bodies that it names must be logged already."""
        ticket = self._new_ticket()
        self._batches.append((batch, ticket))
        self.waiting_octets += chain.framed_size(batch)
        return ticket

    def submit_body(self, body: int, content: bytes) -> int:
        """Put a large body in line: in chunks, between which batches go on."""
        ticket = self._new_ticket()
        self._bodies.append(_Body(body, content, ticket))
        self.waiting_octets += len(content)
        return ticket

    def _new_ticket(self) -> int:
        """Return a number that stands for a batch or a body until it is logged; it rises with each submission."""
        self._numbers += 1
        return self._numbers

    def new_id(self) -> int:
        """Return an id that no other leader of this log gives: the epoch in the upper bits."""
        self._ids += 1
        return self.epoch << 40 | self._ids

    # -- requests ---------------------------------------------------------------------------------------------------

    def tick(self, now: float, *, applying_since: float | None) -> None:
        """Take note of the time, at least four times a second, and of when the apply under way began."""
        self._may_renew = now - self._last_tick < self._settings.loop_stall
        self._last_tick = now
        if applying_since is not None and now - applying_since >= self._settings.stall_timeout:
            self._may_renew = False
            self.hand_over()
        # A move takes longer: it has locked the lease, and nothing is answered any more.
        if now - self.renewed >= self._settings.freshness and not self.reason and self._move is None:
            self.reason = "the lease was not renewed in time"

    def next(self, now: float) -> engine.LeaseRequest | None:
        """Return the request to make now, if no other that changes the lease is under way."""
        if self.reason or self.is_released:
            return None
        self._asked = now
        if (entry := self._next_entry()) is not None:
            return engine.Append(entry)
        if self._successor is not None:
            return engine.Release(self.epoch, self.holder, self.settled, self._successor, self._move)
        if self._may_renew and now - self.renewed >= self._settings.renewal:
            return engine.Renew(self.epoch, self.holder, self.settled)
        return None

    def _next_entry(self) -> engine.Entry | None:
        for entry, _ in self._unsettled:
            if entry.index > self._sent:
                return entry
        if not self._is_begun:
            self._is_begun = True
            return self._make(chain.EMPTY, b"", ())
        if self._bodies and (self._body_is_next or not self._batches):
            self._body_is_next = False
            return self._make_chunk()
        if self._batches:
            self._body_is_next = True
            return self._make_group()
        return self._make(chain.EMPTY, b"", ()) if self._unsettled else None

    def _make_group(self) -> engine.Entry:
        group: list[chain.Batch] = []
        tickets: list[int] = []
        size = 0
        while self._batches:
            batch, ticket = self._batches[0]
            more = chain.framed_size(batch)
            if group and size + more > self._settings.max_batch:
                break
            self._batches.popleft()
            group.append(batch)
            tickets.append(ticket)
            size += more
        self.waiting_octets -= size
        return self._make(chain.BATCHES, chain.join_batches(group), tuple(tickets))

    def _make_chunk(self) -> engine.Entry:
        body, content, ticket = self._bodies[0]
        offset = self._body_offset
        data = content[offset : offset + self._settings.chunk]
        is_last = offset + len(data) >= len(content)
        self.waiting_octets -= len(data)
        if is_last:
            self._bodies.popleft()
            self._body_offset = 0
        else:
            self._body_offset += len(data)
        return self._make(
            chain.CHUNK,
            chain.join_chunk(chain.BodyChunk(body, offset, is_last, data)),
            (ticket,) if is_last else (),
        )

    def _make(self, kind: int, payload: bytes, tickets: tuple[int, ...]) -> engine.Entry:
        entry = chain.make_entry(self._tail, self.epoch, self.holder, self.settled, kind, payload)
        self._tail = entry.position
        self._unsettled.append((entry, tickets))
        return entry

    # -- answers ----------------------------------------------------------------------------------------------------

    def answered(self, request: engine.LeaseRequest, answer: engine.Answer) -> bool:
        """Take the answer of the request under way; what it gives to do is in `logged`, `entries` and `reason`.

        Returns false if the next request is to wait a little: this answer has changed nothing.
        """
        match answer:
            case engine.Appended(proof) | engine.Renewed(proof):
                if not self._counts(proof):
                    return False
                self.renewed = self._asked
                if isinstance(request, engine.Append):
                    self._settle(request.entry.index)
                elif isinstance(request, engine.Release):
                    self.is_released = True
                    self.reason = self.reason or "the lease was handed over"
            case engine.Refused(lease):
                self._refused(request, lease)
                return isinstance(request, engine.Append)
            case _:
                return False
        return True

    def _counts(self, proof: engine.Proof) -> bool:
        """Return whether a change that was answered so is durable; otherwise it is as if there were no answer."""
        if proof.timeline < self._timeline:
            return False
        self._timeline = proof.timeline
        self.is_unsafe = self._settings.require_synchronous and not proof.standbys
        return not self.is_unsafe

    def _settle(self, index: int) -> None:
        self._sent = max(self._sent, index)
        self.settled = max(self.settled, index)
        while self._unsettled and self._unsettled[0][0].index <= self.settled:
            entry, tickets = self._unsettled.popleft()
            self.entries.append(entry)
            self.logged.extend(tickets)

    def _refused(self, request: engine.LeaseRequest, lease: engine.Lease) -> None:
        if (lease.epoch, lease.holder) != (self.epoch, self.holder):
            if isinstance(request, engine.Release) and lease.epoch == self.epoch and not lease.holder:
                self.is_released = True  # the answer to the same request was lost
            self.reason = self.reason or "another node has taken the lease"
        elif lease.last < self.settled:
            self.reason = f"the log ends at {lease.last}, and {self.settled} was answered"
        elif isinstance(request, engine.Append):
            self._sent = min(lease.last, self._tail.index)

    # -- how long ---------------------------------------------------------------------------------------------------

    def may_answer(self, now: float) -> bool:
        """Return whether answers that wait for no entry (deliveries, acks of transient messages) may go out now."""
        return not self.reason and self._successor is None and now - self.renewed < self._settings.freshness

    def hand_over(self, successor: str = "", move: engine.Move | None = None) -> None:
        """Append what waits, then give the lease back, with a move. Nothing may be submitted after this."""
        if self._successor is None:
            self._successor, self._move = successor, move

    def forget_move(self) -> None:
        """Give the lease back without a move from now on: it has failed, unless only its answer was lost."""
        self._move = None

    @property
    def is_handing_over(self) -> bool:
        """True once the lease is to be given back."""
        return self._successor is not None

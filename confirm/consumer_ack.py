"""Confirm on consumer ack: a backing queue that confirms publishes when consumers have settled their messages.

Theory. It wraps any other backing queue and keeps only promises, by seq_id. The inner queue keeps a `Promised` message
like a transient one, in memory or paged without a flush. Its publisher is notified when its copy in this queue is
settled. A consumer's verdict (an ack, a reject without requeue, a delivery with automatic ack) accepts the copy; if the
broker drops the message (a purge, expiry, a limit, deletion of the queue), the copy is refused. A requeue changes
nothing.

`light` is the second mode: once a message is delivered nothing of it is kept here. The promise itself is then the key
that the consumer's channel keeps (keys are opaque to it) and passes to `ack`, which accepts it. A message that would
have to be delivered again is no longer there, so its publish is nacked, and the publisher must send it again.

Messages without a promise pass through. The modes are those of a 2018 paper on confirms of small messages
(docs/adr/0017-confirm-on-consumer-ack.md has the differences).

Hot path: see docs/performance.md.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Any, Self

from leveret.storage.message import Awaited, Message, Promised
from leveret.storage.queues.backing_queue import BackingQueue, Fetched, Piece, Walk, never

Key = Any  # A seq_id, or the promise of a delivered message that is no longer kept
_PIECE = 256  # number of promises refused between two checks of the time


def _at_once(steps: Iterator[None]) -> None:
    """Run all steps immediately: the default without time slices."""
    deque(steps, maxlen=0)


def _of_inner(name: str) -> Any:
    """Return an attribute or a method that is that of the inner queue."""
    return property(attrgetter(f"inner.{name}"))


class ConsumerAckQueue:
    """A `BackingQueue` that wraps another, `inner`, and keeps the promises of its messages.

    `work` runs long work, immediately or in pieces: refusing very many promises.
    """

    __slots__ = (
        "_damaged",
        "_light",
        "_ready",
        "_ready_light",
        "_unacked",
        "_work",
        "handed",
        "inner",
        "light_count",
        "lost",
        "on_loaded",
        "promised",
        "refused",
    )

    def __init__(self, inner: BackingQueue, work: Callable[[Iterator[None]], object] = _at_once) -> None:
        self.inner = inner
        self._work = work
        self.on_loaded = inner.on_loaded
        inner.on_loaded = self._loaded
        self._damaged = inner.damaged
        self._light = False
        self._ready: dict[int, Awaited] = {}
        self._ready_light: dict[int, Awaited] = {}
        self._unacked: dict[int, Awaited] = {}
        self.handed: Sequence[Awaited | None] = ()
        """Promises of the last light delivery; its channel has them as keys, unless an error prevented that."""
        # counters
        self.light_count = 0  # light deliveries without a verdict, whose messages are no longer kept
        self.lost = 0  # light deliveries that were requeued: their publishes were nacked
        self.promised = 0  # messages published with a promise
        self.refused = 0  # promised messages that were refused, for any reason: their publishes were nacked

    @property
    def promised_count(self) -> int:
        """Number of promises of messages that are kept here, ready or unacked."""
        return len(self._ready) + len(self._ready_light) + len(self._unacked)

    @property
    def open_count(self) -> int:
        """Number of promises without a verdict, including those of light deliveries."""
        return self.promised_count + self.light_count

    @property
    def accepted(self) -> int:
        """Number of promised messages that were accepted."""
        return self.promised - self.open_count - self.refused

    def set_light(self, *, light: bool) -> None:
        """Switch light mode on, for messages published from now on, or off, for all messages."""
        self._light = light
        if not light:
            self._ready.update(self._ready_light)
            self._ready_light.clear()

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(
        self,
        messages: Collection[Message],
        *,
        persistent: bool = False,
        small: bool = False,
        expires: int = 0,
    ) -> Sequence[int]:
        """Append messages at the tail, in order; their promises are open until they are settled or dropped."""
        seq_ids = self.inner.publish(messages, persistent=persistent, small=small, expires=expires)
        promises = [message.promise for message in messages]
        self._note(self._ready_light if self._light else self._ready, seq_ids, promises)
        return seq_ids

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> Sequence[Key]:
        """Record messages that are delivered directly to a consumer; `ready_count` must be 0. Returns their keys."""
        publish = self.inner.publish_delivered
        promises = [message.promise for message in messages]
        if not ack_required:
            seq_ids = publish(messages, ack_required=False, persistent=persistent, expires=expires)
            for promise in promises:
                if promise is not None:
                    self.promised += 1
                    promise.accepted()
            return seq_ids
        if self._light and all(promises):
            publish(messages, ack_required=False, persistent=persistent, expires=expires)
            self.promised += len(promises)
            self.light_count += len(promises)
            self.handed = promises
            return promises
        seq_ids = publish(messages, ack_required=True, persistent=persistent, expires=expires)
        if self._light:
            self.promised += len(promises) - promises.count(None)
            return self._leave_light(seq_ids, promises)
        self._note(self._unacked, seq_ids, promises)
        return seq_ids

    def _leave_light(self, seq_ids: Sequence[int], promises: Sequence[Awaited | None]) -> list[Key]:
        """Drop the unacked messages that have a promise, which becomes their key; return the keys of all."""
        left = [seq_id for seq_id, promise in zip(seq_ids, promises, strict=True) if promise is not None]
        self.inner.ack(left)
        self.light_count += len(left)
        self.handed = promises
        return [promise or seq_id for seq_id, promise in zip(seq_ids, promises, strict=True)]

    def _note(
        self, table: dict[int, Awaited], seq_ids: Sequence[int], promises: Sequence[Awaited | None]
    ) -> None:
        before = len(table)
        pairs = zip(seq_ids, promises, strict=True)
        if all(promises):
            table.update(pairs)  # type: ignore[arg-type]
        else:
            table.update({seq_id: promise for seq_id, promise in pairs if promise is not None})
        self.promised += len(table) - before

    # -- fetching ---------------------------------------------------------------------------------------------------

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Fetch at most `count` messages from the head; `ready_count` must not be 0."""
        inner, light = self.inner, self._ready_light
        if ack_required and light and len(light) == inner.ready_count:
            batch = inner.fetch(count, ack_required=False)
            pop = light.pop
            keys: list[Key] = [pop(seq_id) for seq_id in batch.seq_ids]
            self.light_count += len(keys)
            self.handed = keys
            return batch._replace(seq_ids=keys)
        batch = inner.fetch(count, ack_required=ack_required)
        seq_ids = batch.seq_ids
        if not ack_required:
            for promise in self._pop_ready(seq_ids):
                promise.accepted()
        else:
            if self._ready:
                ready, unacked = self._ready, self._unacked
                for seq_id in seq_ids:
                    if seq_id in ready:
                        unacked[seq_id] = ready.pop(seq_id)
            if light:
                keys = self._leave_light(seq_ids, [light.pop(seq_id, None) for seq_id in seq_ids])
                batch = batch._replace(seq_ids=keys)
        return batch

    def take(self, count: int) -> Fetched:
        """Fetch messages that the broker discards from the head; they are kept until acked, in light mode too."""
        batch = self.inner.fetch(count, ack_required=True)
        self._hold(batch.seq_ids)
        return batch

    def _hold(self, seq_ids: Sequence[int]) -> None:
        """Keep the promises of messages that were ready and that the broker has taken."""
        for table in (self._ready, self._ready_light):
            if table:
                promised = [(seq_id, table.pop(seq_id)) for seq_id in seq_ids if seq_id in table]
                self._unacked.update(promised)

    def _pop_ready(self, seq_ids: Iterable[int]) -> list[Awaited]:
        ready, light = self._ready, self._ready_light
        if not ready and not light:
            return []
        found = (ready.pop(seq_id, None) or light.pop(seq_id, None) for seq_id in seq_ids)
        return [promise for promise in found if promise is not None]

    def _loaded(self) -> None:
        """Handle messages read from disk; if some were damaged, refuse all ready ones, as it is unknown which."""
        damaged = self.inner.damaged
        if damaged != self._damaged:
            self._damaged = damaged
            self._refuse_ready()
        self.on_loaded()

    def _refuse_ready(self) -> None:
        """Refuse the promises of all ready messages, because they were dropped or may be damaged."""
        self._refuse_tables(self._ready, self._ready_light)

    def _refuse_tables(self, *tables: dict[int, Awaited]) -> None:
        """Remove all promises from tables, and refuse them, oldest first."""
        # They are no longer counted here. Until they are refused, such a publish cannot be confirmed: this copy is
        # open.
        promises = deque(chain.from_iterable(table.values() for table in tables))
        self.refused += len(promises)
        for table in tables:
            table.clear()
        if promises:
            self._work(_refuse(promises))

    def drop(self, count: int) -> int:
        """Drop at most `count` messages from the head, and refuse them; return how many."""
        inner = self.inner
        if not self._ready and not self._ready_light:
            return inner.drop(count)
        dropped = 0
        while inner.ready_count and dropped < count:
            batch = inner.fetch(count - dropped, ack_required=True)
            if not batch.messages:
                break
            inner.ack(batch.seq_ids, dropped=True)
            dropped += len(batch.messages)
            for promise in self._pop_ready(batch.seq_ids):
                self.refused += 1
                promise.refused()
        return dropped

    # -- settling ---------------------------------------------------------------------------------------------------

    def follow(self, predecessor: Self) -> None:
        """Give no seq_id that a deleted queue of the same id has given; see `BackingQueue.follow`."""
        self.inner.follow(predecessor.inner)

    def ack(self, seq_ids: Collection[Key], *, moved: bool = False, dropped: bool = False) -> None:
        """Remove and accept messages that consumers have settled, or that were `moved` (dead-lettered) or `dropped`."""
        promises: Sequence[Awaited] = ()
        if self.light_count:
            seq_ids, promises = self.split(seq_ids)
        if seq_ids:
            self.inner.ack(seq_ids, moved=moved, dropped=dropped)
            if self._unacked:
                pop = self._unacked.pop
                for seq_id in seq_ids:
                    promise = pop(seq_id, None)
                    if promise is not None:
                        promise.accepted()
        if promises:
            self.handed = ()  # the ack shows that the channel has the key, or a later one
            self.light_count -= len(promises)
            for promise in promises:
                promise.accepted()

    def split(self, keys: Collection[Key]) -> tuple[Collection[int], list[Awaited]]:
        """Split keys into seq_ids and promises."""
        if not self.light_count:
            return keys, []
        return [key for key in keys if type(key) is int], [key for key in keys if type(key) is not int]

    def awaited(self, seq_ids: Collection[Key]) -> Iterable[Message]:
        """Return those of some unacked messages whose commit is not done, and, without a body, those with a promise."""
        seq_ids, promises = self.split(seq_ids)
        unacked = self._unacked
        promises += [unacked[seq_id] for seq_id in seq_ids if seq_id in unacked]
        return chain(self.inner.awaited(seq_ids), [Promised(b"", b"", 0, promise) for promise in promises])

    def refuse(self, seq_ids: Iterable[int]) -> None:
        """Refuse unacked messages that the broker is about to discard; the caller must still call `ack` for them."""
        unacked = self._unacked
        for seq_id in seq_ids:
            promise = unacked.pop(seq_id, None)
            if promise is not None:
                self.refused += 1
                promise.refused()

    def refuse_light(self, promises: Collection[Awaited]) -> None:
        """Refuse light deliveries that were requeued: they would have to be delivered again, but are no longer kept."""
        self.handed = ()
        self.light_count -= len(promises)
        self.lost += len(promises)
        self.refused += len(promises)
        for promise in promises:
            promise.refused()

    def refuse_all(self) -> None:
        """Refuse the promises of all messages after an internal error. The messages themselves are kept."""
        for promise in chain(self._ready.values(), self._ready_light.values(), self._unacked.values()):
            promise.refused()

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Requeue fetched messages; the keys must all be seq_ids (see `split`)."""
        self.inner.requeue(seq_ids)
        unacked = self._unacked
        if unacked:
            self._ready.update([(seq_id, unacked.pop(seq_id)) for seq_id in seq_ids if seq_id in unacked])

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Return unacked messages with their promises, and those being read; refuse those that were damaged on disk."""
        asked = list(seq_ids)
        found, waiting = self.inner.unacked_messages(asked)
        if len(found) + len(waiting) < len(asked):
            known = {seq_id for seq_id, _ in found}.union(waiting)
            self.refuse([seq_id for seq_id in asked if seq_id not in known])
        return self.with_promises(found), waiting

    def with_promises(self, messages: Iterable[tuple[int, Message]]) -> list[tuple[int, Message]]:
        """Return unacked messages with their promises, which messages read from disk do not have."""
        unacked = self._unacked
        return [(seq_id, _with_promise(message, unacked.get(seq_id))) for seq_id, message in messages]

    # -- all of them ------------------------------------------------------------------------------------------------

    def purge(self) -> int:
        """Drop every ready message, and refuse it; return how many."""
        purged = self.inner.purge()
        self._refuse_ready()
        return purged

    def delete(self) -> None:
        """Delete all messages, unacked ones included, and refuse them; light deliveries still get their verdict."""
        self.inner.delete()
        self.on_loaded = never  # breaks the reference cycle with its owner
        self._refuse_tables(self._ready, self._ready_light, self._unacked)

    # -- delegated to the inner queue, as far as light deliveries, which are no longer kept, make no difference -------

    ready_count: Any = _of_inner("ready_count")
    damaged: Any = _of_inner("damaged")
    lost_octets: Any = _of_inner("lost_octets")
    loading: Any = _of_inner("loading")
    expiring: Any = _of_inner("expiring")
    head_is_new: Any = _of_inner("head_is_new")
    head_expires: Any = _of_inner("head_expires")
    head_run: Any = _of_inner("head_run")
    head_message: Any = _of_inner("head_message")
    octets_of: Any = _of_inner("octets_of")
    ready_octets: Any = _of_inner("ready_octets")
    peek: Any = _of_inner("peek")
    portion: Any = _of_inner("portion")
    unacked_ids: Any = _of_inner("unacked_ids")
    unacked_portion: Any = _of_inner("unacked_portion")
    came_before: Any = _of_inner("came_before")
    state_counts: Any = _of_inner("state_counts")
    persistent_count: Any = _of_inner("persistent_count")
    paging_counts: Any = _of_inner("paging_counts")
    before_commit: Any = _of_inner("before_commit")
    count_returns: Any = _of_inner("count_returns")
    note_returns: Any = _of_inner("note_returns")
    set_lazy: Any = _of_inner("set_lazy")

    @property
    def unacked_count(self) -> int:
        """Number of messages fetched with `ack_required` and neither acked nor requeued yet, kept or not."""
        return self.inner.unacked_count + self.light_count

    def walk(self) -> Walk:
        """Walk over the ready messages; promises of those that are withdrawn stay open, in light mode too."""
        return self._walk(self.inner.walk())

    def _walk(self, walk: Walk) -> Walk:
        answer = None
        while True:
            try:
                found = walk.send(answer)
            except StopIteration:
                return
            if isinstance(found, Piece):
                found = found._replace(withdraw=partial(self._withdraw, found.withdraw))
            answer = yield found

    def _withdraw(
        self, withdraw: Callable[[Collection[int]], list[int]], seq_ids: Collection[int]
    ) -> list[int]:
        taken = withdraw(seq_ids)
        self._hold(taken)
        return taken

    def take_returns(self, seq_ids: Collection[Key]) -> dict[int, int]:
        """Return the requeue counts, from before the last start, of messages just fetched; only those above 0."""
        return self.inner.take_returns(self.split(seq_ids)[0])


def _refuse(promises: deque[Awaited]) -> Iterator[None]:
    while promises:
        for _ in range(min(len(promises), _PIECE)):
            promises.popleft().refused()
        yield


def _with_promise(message: Message, promise: Awaited | None) -> Message:
    """Return the message with its promise, which a message read from disk does not have."""
    if promise is None or message.promise is promise:
        return message
    return Promised(message.address, message.content, message.channel_id, promise)

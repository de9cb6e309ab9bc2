"""Confirm on consumer ack: a backing queue that tells publishers what consumers say of their messages.

Theory. It stands in front of any other backing queue and keeps nothing but promises, by seq_id: a `Promised` message
is kept as a transient one is, in memory or paged without a flush, and whoever published it is told when its copy here
has its end. A consumer's verdict (an ack, a reject without requeue, a delivery that needs no ack) accepts the copy;
what the broker drops by itself (a purge, an expiry, a limit, the end of the queue) refuses it. A requeue changes
nothing.

`light` is the second way: once a message is delivered nothing of it is kept here. The promise itself is then the key
that the consumer's channel remembers (keys are opaque to it) and gives back: to `ack` it is accepted; what would have
to be delivered again is gone, so the publisher is told to send it again.

Messages without a promise pass through. The modes are those of a 2018 paper on confirms of small messages
(docs/confirms.md says which and what was added).

Hot path: see docs/performance.md.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from leveret.storage.message import Awaited, Message, Promised
from leveret.storage.queues.backing_queue import BackingQueue, Fetched, never

Key = Any
"""A seq_id, or the promise of a message that was delivered and is kept no more."""
_PIECE = 256
"""Promises refused between two looks at the time."""


def _at_once(steps: Iterator[None]) -> None:
    """Nobody else waits for the time that this takes."""
    deque(steps, maxlen=0)


class ConsumerAckQueue:
    """A `BackingQueue` in front of another.

    Args:
        inner: keeps the messages.
        work: carries out what takes long, at once or a piece at a time: what to tell very many publishers.

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
        """Promises of the last delivery that nothing is kept of; its channel knows them, if no error prevented it."""
        # counters
        self.light_count = 0
        """Messages that were delivered, are kept no more, and have no verdict yet."""
        self.lost = 0
        """Those that came back: their publishers were told to send them again."""
        self.promised = 0
        """Messages that came with a promise."""
        self.refused = 0
        """Those of them whose publishers were told that it was not kept, for whatever reason."""

    @property
    def promised_count(self) -> int:
        """Promises of messages that are kept here, ready or unacked."""
        return len(self._ready) + len(self._ready_light) + len(self._unacked)

    @property
    def open_count(self) -> int:
        """Promises without a verdict, those of messages that are kept no more as well."""
        return self.promised_count + self.light_count

    @property
    def accepted(self) -> int:
        """Messages whose promise was kept here."""
        return self.promised - self.open_count - self.refused

    def set_light(self, *, light: bool) -> None:
        """Keep nothing about delivered messages, of those that are published from now on; or keep all, of all."""
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
        """Append messages at the tail, in order; their promises are open until they have left."""
        seq_ids = self.inner.publish(messages, persistent=persistent, small=small, expires=expires)
        promises = [message.promise for message in messages]
        self._note(self._ready_light if self._light else self._ready, seq_ids, promises)
        return seq_ids

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> Sequence[Key]:
        """Record messages that go straight to a consumer; `ready_count` must be 0. Returns their keys."""
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
        """Keep only those of the unacked that have no promise; returns the keys of all."""
        left = [seq_id for seq_id, promise in zip(seq_ids, promises, strict=True) if promise is not None]
        self.inner.ack(left)
        self.light_count += len(left)
        self.handed = promises
        return [promise or seq_id for seq_id, promise in zip(seq_ids, promises, strict=True)]

    def _note(
        self, table: dict[int, Awaited], seq_ids: Sequence[int], promises: Sequence[Awaited | None]
    ) -> None:
        """Remember what was promised of messages."""
        before = len(table)
        pairs = zip(seq_ids, promises, strict=True)
        if all(promises):
            table.update(pairs)  # type: ignore[arg-type]
        else:
            table.update({seq_id: promise for seq_id, promise in pairs if promise is not None})
        self.promised += len(table) - before

    # -- fetching ---------------------------------------------------------------------------------------------------

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Take at most `count` messages from the head; `ready_count` must not be 0."""
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
        """Take messages that the broker discards from the head; light or not, they are kept until they are acked."""
        batch = self.inner.fetch(count, ack_required=True)
        for table in (self._ready, self._ready_light):
            if table:
                promised = [(seq_id, table.pop(seq_id)) for seq_id in batch.seq_ids if seq_id in table]
                self._unacked.update(promised)
        return batch

    def _pop_ready(self, seq_ids: Iterable[int]) -> list[Awaited]:
        """Take the promises of messages that were ready."""
        ready, light = self._ready, self._ready_light
        if not ready and not light:
            return []
        found = (ready.pop(seq_id, None) or light.pop(seq_id, None) for seq_id in seq_ids)
        return [promise for promise in found if promise is not None]

    def _loaded(self) -> None:
        """Messages have been read; if some could not be, nobody knows which, so no promise holds any more."""
        damaged = self.inner.damaged
        if damaged != self._damaged:
            self._damaged = damaged
            self._refuse_ready()
        self.on_loaded()

    def _refuse_ready(self) -> None:
        """What is ready is dropped, or as good as that to its publishers."""
        self._refuse_tables(self._ready, self._ready_light)

    def _refuse_tables(self, *tables: dict[int, Awaited]) -> None:
        """Forget promises, and refuse them, oldest first as publishers know them.

        They do not count here any more. Nobody else could accept all copies of these messages meanwhile.
        """
        promises = deque(chain.from_iterable(table.values() for table in tables))
        self.refused += len(promises)
        for table in tables:
            table.clear()
        if promises:
            self._work(_refuse(promises))

    def drop(self, count: int) -> int:
        """Drop at most `count` messages from the head, and refuse them; returns how many."""
        inner = self.inner
        if not self._ready and not self._ready_light:
            return inner.drop(count)
        dropped = 0
        while inner.ready_count and dropped < count:
            batch = inner.fetch(count - dropped, ack_required=False)
            if not batch.messages:
                break
            dropped += len(batch.messages)
            for promise in self._pop_ready(batch.seq_ids):
                self.refused += 1
                promise.refused()
        return dropped

    # -- settling ---------------------------------------------------------------------------------------------------

    def ack(self, seq_ids: Collection[Key], *, moved: bool = False) -> None:
        """Consumers are done with messages (or they live on as others, `moved`): forget them, and accept them."""
        promises: Sequence[Awaited] = ()
        if self.light_count:
            seq_ids, promises = self.split(seq_ids)
        if seq_ids:
            self.inner.ack(seq_ids, moved=moved)
            if self._unacked:
                pop = self._unacked.pop
                for seq_id in seq_ids:
                    promise = pop(seq_id, None)
                    if promise is not None:
                        promise.accepted()
        if promises:
            self.handed = ()  # its channel does know it, or another that came later
            self.light_count -= len(promises)
            for promise in promises:
                promise.accepted()

    def split(self, keys: Collection[Key]) -> tuple[Collection[int], list[Awaited]]:
        """Keys that are seq_ids, and those that are promises."""
        if not self.light_count:
            return keys, []
        return [key for key in keys if type(key) is int], [key for key in keys if type(key) is not int]

    def refuse(self, seq_ids: Iterable[int]) -> None:
        """Unacked messages are about to be discarded by the broker, which still owes their `ack`."""
        unacked = self._unacked
        for seq_id in seq_ids:
            promise = unacked.pop(seq_id, None)
            if promise is not None:
                self.refused += 1
                promise.refused()

    def refuse_light(self, promises: Collection[Awaited]) -> None:
        """Messages that are kept no more would have to be delivered again."""
        self.handed = ()
        self.light_count -= len(promises)
        self.lost += len(promises)
        self.refused += len(promises)
        for promise in promises:
            promise.refused()

    def refuse_all(self) -> None:
        """Nothing can be said of any message any more. They stay where they are."""
        for promise in chain(self._ready.values(), self._ready_light.values(), self._unacked.values()):
            promise.refused()

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back; the keys are all seq_ids (see `split`)."""
        self.inner.requeue(seq_ids)
        unacked = self._unacked
        if unacked:
            self._ready.update([(seq_id, unacked.pop(seq_id)) for seq_id in seq_ids if seq_id in unacked])

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Unacked messages, with their promises; those that were damaged on disk are refused."""
        asked = list(seq_ids)
        found, waiting = self.inner.unacked_messages(asked)
        if len(found) + len(waiting) < len(asked):
            known = {seq_id for seq_id, _ in found}.union(waiting)
            self.refuse([seq_id for seq_id in asked if seq_id not in known])
        return self.with_promises(found), waiting

    def with_promises(self, messages: Iterable[tuple[int, Message]]) -> list[tuple[int, Message]]:
        """Unacked messages with what was promised of them: those that were read from disk know nothing of it."""
        unacked = self._unacked
        return [(seq_id, _with_promise(message, unacked.get(seq_id))) for seq_id, message in messages]

    # -- all of them ------------------------------------------------------------------------------------------------

    def purge(self) -> int:
        """Drop every ready message, and refuse it; returns how many."""
        purged = self.inner.purge()
        self._refuse_ready()
        return purged

    def delete(self) -> None:
        """The queue goes, with its unacked messages; those that were delivered and are not kept still get a verdict."""
        self.inner.delete()
        self.on_loaded = never  # or it would keep its owner, who keeps it
        self._refuse_tables(self._ready, self._ready_light, self._unacked)

    # -- what only the messages matter for ----------------------------------------------------------------------------

    @property
    def ready_count(self) -> int:
        """Messages that `fetch` could return now."""
        return self.inner.ready_count

    @property
    def unacked_count(self) -> int:
        """Messages fetched with `ack_required` and neither acked nor requeued yet, kept or not."""
        return self.inner.unacked_count + self.light_count

    @property
    def damaged(self) -> int:
        """How often something could not be read from disk any more."""
        return self.inner.damaged

    @property
    def lost_octets(self) -> int:
        """Octets of the bodies of messages that were ready and could not be read any more."""
        return self.inner.lost_octets

    @property
    def loading(self) -> bool:
        """Whether messages are being read from disk."""
        return self.inner.loading

    @property
    def expiring(self) -> bool:
        """Some message that came, or was found on disk, expires."""
        return self.inner.expiring

    @property
    def head_is_new(self) -> bool:
        """Whether the next message is in memory and was never delivered; False says nothing."""
        return self.inner.head_is_new

    def head_expires(self) -> int | None:
        """When the next message expires (epoch ms), 0 for never; None if it is being read, or there is none."""
        return self.inner.head_expires()

    def head_run(self, now: int, limit: int) -> tuple[int, bool]:
        """How many messages from the head on have all expired by `now` or all not; and which."""
        return self.inner.head_run(now, limit)

    def ready_octets(self) -> Iterator[int]:
        """Octets of the bodies of all messages that are ready now, in summands."""
        return self.inner.ready_octets()

    def count_returns(self, *, counted: bool) -> None:
        """Have it known how often messages had come back that are read from disk, or no longer."""
        self.inner.count_returns(counted=counted)

    def note_returns(self, counts: Mapping[int, int]) -> None:
        """Unacked messages are about to come back, so often by now; the keys are all seq_ids (see `split`)."""
        self.inner.note_returns(counts)

    def take_returns(self, seq_ids: Collection[Key]) -> dict[int, int]:
        """How often messages that have just been fetched had come back before the start: those that had."""
        return self.inner.take_returns(self.split(seq_ids)[0])

    def set_lazy(self, *, lazy: bool) -> None:
        """Keep as little as possible in memory, or no longer."""
        self.inner.set_lazy(lazy=lazy)


def _refuse(promises: deque[Awaited]) -> Iterator[None]:
    """Tell publishers that promises were not kept."""
    while promises:
        for _ in range(min(len(promises), _PIECE)):
            promises.popleft().refused()
        yield


def _with_promise(message: Message, promise: Awaited | None) -> Message:
    """A message that may have come from disk, where no promise is kept."""
    if promise is None or message.promise is promise:
        return message
    return Promised(message.address, message.content, message.channel_id, promise)

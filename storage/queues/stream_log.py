"""The log of a stream: messages that are appended, read from any offset by any number of readers, and deleted by age.

Theory. A message's offset is its seq_id, from 0 on. Messages go through the journal like those of other queues, and
blocks on disk are their index: nothing else knows a position, so a long stream takes no memory and no time at a start.
What is not on disk yet is in `_tail`, and what slow readers at the tail still need. Readers get a message when its
commit is done, so no offset that a reader has seen is ever given to another message.

Readers ask for a `Chunk` from an offset on. It is cut out of the tail or, if it is on disk only, requested: then
`on_loaded` is called when it is there. Chunks are shared by all readers, within the memory that a `ChunkCache` has for
all streams of a broker.

A stream is a row of segments (`storage.journal.stream_rows`). Retention deletes segments from the head, never the last
one. Their times and sizes are in memory; the time of each message is in its record, in the place of the expiry.

Without a pager, which has the disk, all messages are in the tail.

Hot path: see docs/performance.md.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from math import inf
from operator import attrgetter

from leveret.storage.journal.blocks import NO_RETURNS, RUN_SPACE, STORED, Entry, RunEntry
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import BODIES, DELTA, Loaded, LoadRequest, Range
from leveret.storage.journal.runs import ALONE_OCTETS, PACKED_OCTETS, RUN_OCTETS, PackedRun, Run, messages_of
from leveret.storage.journal.shared_bodies import OVERHEAD
from leveret.storage.journal.stream_rows import SEGMENTS, Segment, segment_key, segment_row, set_back
from leveret.storage.message import Message, Persistent
from leveret.storage.queues.backing_queue import (
    PagingCounts,
    Peeked,
    Peeking,
    Piece,
    PortionSteps,
    Recovered,
    never,
)
from leveret.storage.queues.chunks import Chunk, ChunkCache, Copies, Dress, chunk_of, message_of_copy
from leveret.storage.queues.delta import NO_GAPS
from leveret.storage.queues.no_paging import AppendOnly
from leveret.storage.queues.pager import LOAD_OCTETS, Pager
from leveret.storage.queues.peek import Looks, Part, Places, Snapshot, Stretch, changed
from leveret.storage.queues.stream_offsets import ConsumerOffsets, Reach, RunningSearch, search
from leveret.storage.queues.stream_tail import StreamTail

AHEAD = 2  # chunks that are read ahead of a reader
CHUNK = 512
"""Maximum number of offsets of a chunk: one step of the event loop makes it."""
SEGMENT_OCTETS = 64 * 1024 * 1024
"""Content bytes after which a segment ends at the latest: retention is as exact as that."""
FINEST = 4096
"""Segments are not smaller than this part of a stream: so they are few, whatever size they are to have."""
_CLOCK_SET_BACK = 60_000
"""Milliseconds by which a time has to be before an earlier one to show that the clock was in the future then."""
_MOST_COPIES = 256
"""Copies from which a message may still be on its way to other queues, so the number is not final."""

_first = attrgetter("first")


class StreamLog(AppendOnly, Looks):
    """The messages of one stream, as a `BackingQueue` from which nothing is fetched and nothing acked.

    Args:
        pager: the disk; None to keep everything in memory.
        qid: the id under which the messages are stored.
        cache: of the broker.
        dress: adds the offset to the headers of messages.
    """

    __slots__ = (
        "_cache",
        "_chunks",
        "_dress",
        "_loading",
        "_more",
        "_safe",
        "_searches",
        "_searching",
        "_stored",
        "_tail",
        "_wanted",
        "damaged",
        "deleted",
        "is_beside",
        "journal_fresh",
        "journal_paged",
        "journaled",
        "last_batch",
        "next_seq",
        "octets",
        "offsets",
        "on_loaded",
        "pager",
        "qid",
        "segment",
        "segment_ms",
        "segment_octets",
        "segments",
        "unacked_count",
    )

    durable = True
    expiring = False
    """False: the place of the expiry has the time of the append."""
    journal_returns = NO_RETURNS

    def __init__(self, pager: Pager | None, qid: int, cache: ChunkCache, dress: Dress) -> None:
        self.pager = pager
        self.qid = qid
        self.segment = 2048 if pager is None else pager.segment
        self._cache = cache
        self._dress = dress
        self.on_loaded: Callable[[], object] = never
        self.deleted = False
        self.damaged = 0
        self.segments: list[Segment] = []
        self.segment_octets = SEGMENT_OCTETS
        """Content bytes after which a segment ends."""
        self.segment_ms = inf  # time after which it ends
        self.next_seq = 0
        self.last_batch = 0
        """The offset at which the batch that was stored last begins."""
        self.octets = 0
        """Content bytes of all messages so far, those that were deleted included."""
        self.is_beside = False  # True if a queue writes it beside itself: it has no readers and no publishers
        self.unacked_count = 0
        """Deliveries that readers have not acked; kept by the owner."""
        self.offsets = ConsumerOffsets(pager, qid)
        self._tail = StreamTail(cache)
        self._safe = Reach(0)
        self._stored = Reach(0)
        self._chunks: list[Chunk] = []
        """The chunks in memory, ascending by their first offset."""
        self._wanted: dict[int, int] = {}
        """Offsets from which readers need a chunk, and how many more behind it."""
        self._loading: LoadRequest | None = None
        self._more = 0  # chunks to be read behind the one that is being read
        self._searches: dict[object, RunningSearch] = {}
        """The searches by time, of which the first one is being continued, by whom they are for."""
        self._searching: RunningSearch | None = None  # it waits for a read, if it was not given up
        self.journal_fresh: list[Entry] = []
        self.journal_paged: list[Entry] = []
        self.journaled = False

    # -- counts -----------------------------------------------------------------------------------------------------

    @property
    def first(self) -> int:
        """Offset of the first message that is not deleted."""
        return self.segments[0].first if self.segments else self.next_seq

    @property
    def ready_count(self) -> int:
        """Number of messages that are not deleted."""
        return self.next_seq - self.first

    @property
    def kept_octets(self) -> int:
        """Content bytes of the messages that are not deleted."""
        return self.octets - self.segments[0].before if self.segments else 0

    @property
    def loading(self) -> bool:
        """True if messages are being read from disk."""
        return self._loading is not None

    @property
    def _tail_first(self) -> int:
        return self._tail.entries[0].seq_id if self._tail.entries else self.next_seq

    # -- appends ----------------------------------------------------------------------------------------------------

    def publish(
        self,
        messages: Collection[Message],
        *,
        persistent: bool = False,
        small: bool = False,
        expires: int = 0,
    ) -> range:
        """Append messages; returns their offsets. `expires` is the time of the append (epoch ms)."""
        del persistent, small
        messages = list(messages)
        first = self.next_seq
        sizes = [len(each.content) for each in messages]
        most = ALONE_OCTETS if self.pager is None else min(ALONE_OCTETS, self.pager.blob_threshold)
        is_told = not self.is_beside
        alone = [
            size >= most or (is_told and each.persistent and each.copies != 1)  # type: ignore[attr-defined] # it is a `Persistent`
            for size, each in (
                zip(sizes, messages, strict=True) if is_told or max(sizes, default=0) >= most else ()
            )
        ]
        at = 0
        for is_alone, group in groupby(alone) if True in alone else ((False, sizes),):
            start, at = at, at + len(list(group))
            if is_alone:
                for message in messages[start:at]:
                    self._append_one(message, expires)
            else:
                self._append_runs(messages[start:at], sizes[start:at], expires)
        if self.pager is None:
            self._safe.stop = self._stored.stop = self.next_seq
            self.last_batch = first
        elif not self.journaled:
            self.pager.journal.touch(self)
        return range(first, self.next_seq)

    def _append_runs(self, messages: Sequence[Message], sizes: Sequence[int], time: int) -> None:
        """Append messages as runs, each in one segment of the stream, one chunk, and one part of a load."""
        ends = list(accumulate(sizes, initial=0))
        most = 2 * PACKED_OCTETS if self.is_beside else RUN_OCTETS
        at, count = 0, len(messages)
        while at < count:
            end = self._segment_end(time)
            if self.octets >= end:
                end = self._begin_segment(time)
            offset = self.next_seq
            stop = min(count, at + CHUNK - offset % CHUNK, at + self.segment - offset % self.segment)
            stop = bisect_left(ends, ends[at] + min(most, end - self.octets), at + 1, stop)
            if stop > at + 1:
                part = messages[at:stop]
                run = PackedRun(part, RUN_SPACE) if self.is_beside else Run(part)
                self._add(RunEntry(offset, run, ends[stop] - ends[at], span=stop - at, expires=time))
            else:
                self._append_one(messages[at], time)
            at = stop

    def _append_one(self, message: Message, time: int) -> None:
        size = len(message.content)
        is_small = self.pager is None or size < self.pager.blob_threshold
        if not isinstance(message, Persistent) or (self.is_beside and is_small):
            message = Persistent(message.address, message.content, message.channel_id, None, 0, 1)
        if message.copies == 1 and is_small:
            message.copies = 0  # its body is in its record: a start need not count references
        if message.copies or self.octets >= self._segment_end(time):
            self._begin_segment(time, message)
        self._add(Entry(self.next_seq, message, size, durable=True, expires=time))

    def _add(self, entry: Entry) -> None:
        message, size, pager = entry.message, entry.size, self.pager
        entry.evict = True
        self._tail.entries.append(entry)
        self.octets += size
        self.next_seq += entry.span
        if pager is None:
            entry.state = STORED
            message.accepted()  # type: ignore[union-attr] # it is a `Persistent`
            return
        journal = pager.journal
        journal.octets += OVERHEAD * entry.span
        messages = () if self.is_beside else messages_of(message)
        if any(each.persistent and each.publisher is not None for each in messages):  # type: ignore[attr-defined] # as above
            journal.urgent = True
        if entry.span > 1 or size < pager.blob_threshold:
            journal.octets += size
            journal.records += entry.span
            self.journal_fresh.append(entry)
        else:
            journal.write_blob(self, entry, message)  # type: ignore[arg-type] # as above

    def _begin_segment(self, time: int, message: Persistent | None = None) -> int:
        """Begin a segment if the last one has ended, or may not have a reference that this message may become.

        Returns the octets at which the segment of the next message ends.
        """
        last = self.segments[-1] if self.segments else None
        refers = False
        if message is not None and message.copies and self.pager is not None:
            octets = len(message.content) * message.copies
            refers = (
                octets >= min(self.pager.journal.embed_below, self.pager.blob_threshold)
                or message.copies >= _MOST_COPIES
            )
        if last is None or self.octets >= self._segment_end(time) or refers > last.has_references:
            changed = set_back(self.segments, time)
            self.segments.append(Segment(self.next_seq, time, self.octets, refers))
            if self.pager is not None:
                for segment in (*changed, self.segments[-1]):
                    self.pager.journal.put(SEGMENTS, *segment_row(self.qid, segment))
        return self._segment_end(time)

    def _segment_end(self, now: int) -> int:
        """Return the octets at which the last segment ends: at once if it began too long ago, or in the future."""
        if not self.segments or not -_CLOCK_SET_BACK <= now - self.segments[-1].time < self.segment_ms:
            return 0
        return self.segments[-1].before + max(self.segment_octets, self.kept_octets // FINEST)

    def logged(self, entries: Sequence[Entry]) -> None:
        """Handle entries that are safe, and on disk later (called by the journal)."""
        self._safe.add(entries)
        self.last_batch = entries[0].seq_id
        self.on_loaded()

    def stored(self, entries: Sequence[Entry]) -> None:
        """Handle entries that are on disk now (called by the journal)."""
        self._stored.add(entries)
        self._tail.stored(entries)
        fresh = [entry for entry in entries if entry.seq_id >= self._safe.stop]
        if fresh:
            self.logged(fresh)
        else:
            self.on_loaded()

    def trim(self, needed: float) -> None:
        """Forget stored messages at the head of the tail that no reader needs; `needed` is the first offset that is."""
        if self.pager is not None:
            self._tail.trim(self._stored.stop, needed)

    # -- retention --------------------------------------------------------------------------------------------------

    def retain(self, max_octets: float, since: float) -> None:
        """Delete segments from the head while there are more than `max_octets`, or their messages came before `since`.

        `since` is in epoch ms. Segments with messages that are not on disk yet stay, and so does the last one, unless a
        queue writes the stream beside itself.
        """
        rows = self.segments
        if rows and self.is_beside:
            rows = [
                *rows,
                Segment(self.next_seq, int(min(rows[-1].time + self.segment_ms, 1 << 62)), self.octets),
            ]
        count = 0
        while count + 1 < len(rows) and rows[count + 1].first <= self._stored.stop:
            if self.octets - rows[count].before <= max_octets and rows[count + 1].time > since:
                break
            count += 1
        if not count:
            return
        gone, self.segments = rows[:count], self.segments[count:]
        first = self.first
        self._tail.forget_before(first)
        for chunk in [chunk for chunk in self._chunks if chunk.stop <= first]:
            self.forget(chunk)
            self._cache.remove(chunk)
        if self.pager is not None:
            journal = self.pager.journal
            for segment in gone:
                journal.delete(SEGMENTS, segment_key(self.qid, segment.first))
            journal.sweep(self.qid, gone[0].first, first, paged=False)

    def follow(self, last: object) -> None:
        """Begin behind the offsets of a deleted stream with this id, the messages of which are being removed."""
        if isinstance(last, StreamLog):
            self.next_seq = self.last_batch = self._safe.stop = self._stored.stop = last.next_seq

    def before_commit(self, callback: Callable[[], object]) -> bool:
        """Call back when the next commit begins; false if nothing will call."""
        return self.pager is not None and self.pager.journal.before_cut(callback)

    # -- reads ------------------------------------------------------------------------------------------------------

    def chunk(self, offset: int) -> Chunk | None:
        """Return the chunk that has an offset (>= `first`); None at the end, or until `on_loaded` is called."""
        at = bisect_right(self._chunks, offset, key=_first) - 1
        if at >= 0 and offset < self._chunks[at].stop:
            chunk = self._chunks[at]
            self._cache.use(chunk)
            return chunk
        if offset >= self._safe.stop:
            return None
        if offset < self._tail_first:
            self._want(offset)
            return None
        messages = self._tail.messages(offset, min(self._safe.stop, offset + CHUNK), LOAD_OCTETS)
        stop = offset + len(messages)
        made = Copies(self._dress)
        copies = [made.copy(at, each.address, each.content) for at, each in enumerate(messages, offset)]
        return self._keep(Chunk(offset, stop, range(offset, stop), copies, made.shapes))

    def _keep(self, chunk: Chunk) -> Chunk:
        at = bisect_left(self._chunks, chunk.first, key=_first)
        if at < len(self._chunks) and self._chunks[at].first == chunk.first:
            self._cache.remove(self._chunks[at])
            self._chunks[at] = chunk
        else:
            self._chunks.insert(at, chunk)
        self._cache.keep(self, chunk)
        return chunk

    def forget(self, chunk: Chunk) -> None:
        """Release a chunk (called by the cache)."""
        at = bisect_left(self._chunks, chunk.first, key=_first)
        if at < len(self._chunks) and self._chunks[at] is chunk:
            del self._chunks[at]

    def read_ahead(self, offset: int, count: int = AHEAD) -> None:
        """Request those of the chunks from an offset on, `count` in all, that memory has not: a reader needs them next.

        They are read one after the other, the next one while the loop has the last one.
        """
        for left in range(count, 0, -1):
            if offset >= self._tail_first:
                return
            at = bisect_right(self._chunks, offset, key=_first) - 1
            if at < 0 or offset >= self._chunks[at].stop:
                self._want(offset, left - 1)
                return
            offset = self._chunks[at].stop

    def _want(self, offset: int, more: int = 0) -> None:
        if self._loading is None:
            self._load(offset, more)
        elif self._loading.ranges[0].first != offset:
            self._wanted[offset] = max(more, self._wanted.get(offset, 0))

    def _load(self, offset: int, more: int) -> None:
        stop = min(self._stored.stop, (offset // CHUNK + 1) * CHUNK)
        self._loading, self._more = self._request(Range(self.qid, offset, stop), DELTA), more

    def _request(self, what: Range, kind: str) -> LoadRequest:
        assert self.pager is not None  # noqa: S101 - what is not in the tail is on disk
        request = LoadRequest(self, (what,), 2 * self.pager.load_octets, kind, (), what.stop)
        self.pager.load(request)
        return request

    def loaded(self, request: LoadRequest, found: Loaded) -> None:
        """Take the result of a read. The caller must run a turn afterwards."""
        if self.deleted:
            return
        if request is self._loading:
            self._loading = None
            offset = request.ranges[0].first
            stop = min(found.stop, request.horizon)
            chunk = self._keep(chunk_of(found, range(offset, stop), self._dress, self._note_damage))
            if self.pager is not None:
                self.pager.read_delta.took(found, len(chunk.copies))
            if self._more:
                self.read_ahead(stop, self._more)
            if self._wanted and self._loading is None:
                offset = next(iter(self._wanted))
                self._load(offset, self._wanted.pop(offset))
        else:
            self._search_on(found)
        self.on_loaded()

    def _note_damage(self, position: int, kind: str) -> None:
        self.damaged += 1
        if self.pager is not None:
            self.pager.damages.note((self.qid, position), kind)

    # -- times ------------------------------------------------------------------------------------------------------

    def find_time(self, who: object, time: int, found: Callable[[int], object]) -> None:
        """Call `found` with the first offset of a message that came at a time (epoch ms) or later, or of the next one.

        At once if memory has it; otherwise after some reads, of one block each, and after those for others, unless
        `give_up_search` is called for `who`.
        """
        tail = self._tail.entries
        if tail and (self._tail_first <= self.first or tail[0].expires < time):
            found(self._tail.first_at(time))
        elif not self.segments:
            found(self.next_seq)
        else:
            steps = search(self.qid, self.segments, self._tail_first, time)
            self._searches[who] = RunningSearch(steps, found)
            if self._searching is None:
                self._search_on(None)

    def give_up_search(self, who: object) -> None:
        """End a search, if there is one."""
        self._searches.pop(who, None)

    def _search_on(self, result: Loaded | None) -> None:
        """Continue the first search with what was read for it, or begin the next ones, until one needs a read."""
        while self._searches:
            who, running = next(iter(self._searches.items()))
            if running is not self._searching:
                result = None
            self._searching = running
            try:
                what = next(running.steps) if result is None else running.steps.send(result)
            except StopIteration as end:
                del self._searches[who]
                running.found(max(end.value, self.first))
                continue
            self._request(what, BODIES)
            return
        self._searching = None

    # -- looks ------------------------------------------------------------------------------------------------------

    def portion(self, most: int, after: int | None = None, *, backwards: bool = False) -> PortionSteps:
        """Look at the next messages, as readers get them; see `Inspection.portion`."""
        steps = super().portion(most, after, backwards=backwards)
        return changed(steps, lambda found: found._replace(messages=list(map(self._as_read, found.messages))))

    def peek(self, most: int | None = None) -> Peeking:
        """Look at the messages, as readers get them; see `Inspection.peek`."""
        steps = super().peek(most)
        return changed(steps, lambda found: found._replace(ready=list(map(self._as_read, found.ready))))

    def _as_read(self, peeked: Peeked) -> Peeked:
        if self.is_beside:
            return peeked
        copy = Copies(self._dress).copy(peeked.seq_id, peeked.message.address, peeked.message.content)
        return peeked._replace(message=message_of_copy(copy), expires=0, came=peeked.expires)

    def _parts(self) -> tuple[Part | None, ...]:
        return None, Part(self._tail.between)

    def _front(self) -> Iterable[Entry]:
        is_known = self._tail_first <= self.first
        return self._tail.unrolled(range(self.first, self.next_seq)) if is_known else ()

    def _snapshot(self) -> Snapshot:
        assert self.pager is not None  # noqa: S101 - as above
        return self.pager.snapshot()

    def _stretch(self, low: float, high: float, *, is_whole: bool = False) -> Stretch | None:
        del is_whole
        first, stop = int(max(self.first, low)), int(min(self._tail_first, high))
        if self.pager is None or first >= stop:
            return None
        what = Range(self.qid, first, stop)
        return Stretch(what, self.segment, self.pager.load_octets, 0, {}, False, NO_GAPS)

    def _piece(self, messages: list[Peeked], places: Places, missed: list[int]) -> Piece:
        """Return messages of which none can be withdrawn."""
        del places, missed
        return Piece(
            [self._as_read(each) for each in messages], lambda _first, _last: True, lambda _seq_ids: []
        )

    def ready_octets(self) -> Iterator[int]:
        """Yield the content bytes of all messages."""
        yield self.kept_octets

    def state_counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of messages in memory and on disk; see `Inspection`."""
        return self.next_seq - self._tail_first, 0, 0, max(0, self._tail_first - self.first)

    def paging_counts(self) -> PagingCounts:
        """Return the present numbers; messages on disk count as a delta."""
        on_disk = max(0, self._tail_first - self.first)
        in_memory = sum([entry.size for entry in self._tail.entries])
        return PagingCounts(
            ram_msg_count=self.next_seq - self._tail_first,
            ram_octets=in_memory,
            delta_octets=max(0, self.kept_octets - in_memory),
            delta=on_disk,
            next_seq=self.next_seq,
        )

    def persistent_count(self) -> int:
        """Return the number of messages that survive a restart."""
        return 0 if self.pager is None else self.ready_count

    # -- life -------------------------------------------------------------------------------------------------------

    def know(self, rows: list[Segment]) -> None:
        """Take over the segments of an earlier run: no offset before the last one is given to another message."""
        self.segments = rows
        self.next_seq = self.last_batch = self._safe.stop = self._stored.stop = rows[-1].first
        self.octets = rows[-1].before

    def recover(self, found: Recovered) -> None:
        """Take over the messages on disk, with the octets of their contents; `know` must have been called."""
        first = found.first
        # the row of the first one was damaged: octets before the next one are not counted
        if not self.segments or first < self.first:
            before = self.segments[0].before if self.segments else 0
            self.segments.insert(0, Segment(first, 0, before, has_references=True))
        stop = max(found.stop, self.segments[-1].first)
        self.next_seq = self._safe.stop = self._stored.stop = stop
        self.last_batch = max(self.first, stop - 1)
        self.octets = self.segments[0].before + found.octets

    def saved(self) -> Recovered:
        """Return the state for `recover` at the next start, as a variable queue does; all must be on disk."""
        return Recovered(self.ready_count, self.first, self.next_seq, self.kept_octets)

    def delete(self) -> None:
        """Delete the stream: nothing else may be called."""
        if self.pager is not None:
            self._delete_from(self.pager.journal)
        for chunk in self._chunks:
            self._cache.remove(chunk)
        self._chunks.clear()
        self._searches.clear()
        self._tail.clear()
        self.on_loaded = never  # breaks the reference cycle with its owner
        self.deleted = True

    def _delete_from(self, journal: Journal) -> None:
        tell = journal.end_unwritten(self)
        for segment in self.segments:
            journal.delete(SEGMENTS, segment_key(self.qid, segment.first))
        self.offsets.clear()
        journal.sweep(self.qid, 0, self.next_seq, paged=False)
        if tell is not None:
            journal.when_all_safe(tell)

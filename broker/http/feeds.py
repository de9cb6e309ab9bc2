"""Feeds: what a topic says now, sampled once for all who watch it, as server-sent events. Pure.

Theory. A feed has the rows of its last pass and the events with what the last few passes changed. A watcher has the
number of the pass up to which it has everything: it gets the events since, which are the same octets for all, or all
rows again if there are no events from that pass on, because it is new or slow. So a watcher costs no memory of its own,
and a slow one gets less, not later.

The time between two passes grows with what a pass costs, so that all passes together take a bounded share of the time.
"""

from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

PIECE = 200  # rows of an event
SHARE = 100  # A pass follows no sooner than so many times as long as the last one took
EVENTS_OCTETS = 1 << 20  # most octets of the events of a feed kept for those who have the pass before

Reading = Iterable[tuple[Hashable, Any] | None]  # rows by their keys; None where others may have a turn


class Topic(NamedTuple):
    """Something that can be watched: the source of the rows of a feed."""

    name: str  # the name of its events
    key: Hashable  # what its rows depend on, beside the name: who may see them
    read: Callable[[], Reading]  # reads the rows
    columns: tuple[str, ...] = ()
    """The names of the values of a row, of which the first are the key; () for a topic with one row, which is an
    object."""
    seconds: float = 1.0  # time between two passes at least

    @property
    def identity(self) -> tuple[str, Hashable]:
        """The name and key: two topics with the same rows have the same."""
        return self.name, self.key


class _Row:
    """A row: its values, and the number of the pass that has seen it last.

    Rows stay the same objects from pass to pass, so that ten thousand of them are no work for the garbage collector.
    """

    __slots__ = ("number", "values")

    def __init__(self, number: int, values: Any) -> None:
        self.number = number
        self.values = values


class Feed:
    """The feed of a topic; `wall_clock` returns milliseconds since the epoch."""

    def __init__(self, topic: Topic, wall_clock: Callable[[], int]) -> None:
        self.topic = topic
        self.number = 0  # number of passes that are over
        self.due = 0.0  # seconds of a monotonic clock at which the next pass may begin
        self.watchers = 0  # how many there are; the owner counts
        self.is_broken = False  # True if reading the topic has failed
        self._wall_clock = wall_clock
        self._at = 0
        self._rows: dict[Hashable, _Row] = {}
        self._events: deque[tuple[int, list[bytes]]] = deque()  # events of the last passes with their numbers
        self._whole: tuple[int, list[bytes]] = (0, [])  # all rows as of a pass, made when first needed

    def sample(self) -> Generator[None, None, None]:
        """Make a pass, in steps."""
        rows, number, count = self._rows, self.number + 1, 0
        changed: list[Any] = []
        at = self._wall_clock()
        for item in self.topic.read():
            if item is None:
                yield
                continue
            key, values = item
            count += 1
            known = rows.get(key)
            if known is None:
                rows[key] = _Row(number, values)
                changed.append(values)
            else:
                known.number = number
                if known.values != values:
                    known.values = values
                    changed.append(values)
        gone = [] if len(rows) == count else [key for key, row in rows.items() if row.number != number]
        for key in gone:
            del rows[key]
        events: list[bytes] = []
        for event in self._made(changed, gone, at):
            events.append(event)
            yield
        self._at = at
        self.number = number
        self._events.append((self.number, events))
        while self._events and sum(len(each) for _, some in self._events for each in some) > EVENTS_OCTETS:
            self._events.popleft()

    def passed(self, now: float, cost: float) -> None:
        """Note that a pass is over that began now and took so many seconds of the processor."""
        self.due = now + max(self.topic.seconds, SHARE * cost)

    def since(self, number: int) -> Iterator[bytes | None]:
        """Return the events for a watcher that has everything up to a pass; None where others may have a turn.

        It then has everything up to the number of the feed at the call.
        """
        if number == self.number:
            return iter(())
        missed = [some for at, some in self._events if at > number]
        if number and len(missed) == self.number - number:
            return iter([event for some in missed for event in some])
        if self._whole[0] == self.number:
            return iter(self._whole[1])
        return self._everything()

    def _everything(self) -> Iterator[bytes | None]:
        number, events = self.number, []
        for event in self._made([row.values for row in self._rows.values()], [], self._at, is_whole=True):
            events.append(event)
            yield event
            yield None
        if number == self.number:
            self._whole = number, events

    def _made(
        self, rows: list[Any], gone: list[Hashable], at: int, *, is_whole: bool = False
    ) -> Iterator[bytes]:
        """Encode rows; the last event of a pass has its time, and the removed keys."""
        columns = self.topic.columns
        if not columns:
            for row in rows:
                yield self._encoded(row)
            return
        begin: dict[str, Any] = {"columns": columns} if is_whole else {}
        last = max(0, len(rows) - 1) // PIECE * PIECE
        for start in range(0, last, PIECE):
            yield self._encoded({**begin, "rows": rows[start : start + PIECE]})
            begin = {}
        yield self._encoded({**begin, "rows": rows[last:], "gone": gone, "at": at})

    def _encoded(self, value: Any) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (self.topic.name.encode(), msgspec.json.encode(value))

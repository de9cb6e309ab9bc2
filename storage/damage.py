"""What cannot be read of the data: counted by kind, and gathered by queue for whoever writes a log.

Damage is met where messages are read, in the loop and in the threads that read; it may be met a million times. So it
is noted here, and `take` is called now and then.
"""

from collections import Counter, deque
from typing import NamedTuple

BLOCK = "block"
"""The header of a block has a wrong checksum: none of its messages can be read."""
RECORD = "record"
BITMAP = "bitmap"
"""What says which messages of a block are settled: they come back."""
BODY = "body"
MISSING_BODY = "missing_body"
FILE = "file"
"""The file of a body."""
MISSING_FILE = "missing_file"
DELAYED = "delayed"
MISSING = "missing"
"""Messages that were counted and are nowhere."""
KINDS = (BLOCK, RECORD, BITMAP, BODY, MISSING_BODY, FILE, MISSING_FILE, DELAYED, MISSING)


class Damage(NamedTuple):
    """What was met in one queue since the last time."""

    qid: int
    """Of a level, where the queue has priorities; the line of a delayed message."""
    position: int
    """The seq_id of the first message, or where it should be."""
    kind: str
    others: int
    """How often something was met after it."""


class Damages:
    """All damage that one broker has met."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """By kind, since the start, as of the last `take`."""
        self._noted: deque[tuple[int, int, str, int]] = deque()
        """A deque, to which several threads may add."""

    def note(self, place: tuple[int, int], kind: str, count: int = 1) -> None:
        """Something cannot be read, `count` times; `place` is the queue's id and the position."""
        self._noted.append((*place, kind, count))

    def take(self) -> list[Damage]:
        """What was met since this was called last, in one entry for each queue. One thread calls it, now and then."""
        met: dict[int, Damage] = {}
        noted = self._noted
        while noted:
            qid, position, kind, count = noted.popleft()
            self.counts[kind] += count
            first = met.get(qid)
            if first is None:
                met[qid] = Damage(qid, position, kind, count - 1)
            else:
                met[qid] = first._replace(others=first.others + count)
        return list(met.values())

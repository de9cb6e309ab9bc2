"""Damaged data found while reading: counted by kind, and collected by queue for the log.

Damage is found where messages are read, in the event loop and in reader threads, possibly a million times. So it is
only noted here, and `take` is called periodically.
"""

from collections import Counter, deque
from typing import NamedTuple

BLOCK = "block"  # the header of a block has a wrong checksum: none of its messages can be read
RECORD = "record"
BITMAP = "bitmap"  # the bitmap of a block's settled messages is damaged: they are delivered again
BODY = "body"
MISSING_BODY = "missing_body"
FILE = "file"  # the file of a body is damaged
MISSING_FILE = "missing_file"
DELAYED = "delayed"
IDS = "ids"  # ids that a queue has forgotten by that: it may take their messages once more
MISSING = "missing"  # messages that were counted but cannot be found
TEXTS = {  # the words of the log for each kind
    BLOCK: "block header damaged, its messages are lost",
    RECORD: "message damaged and skipped",
    BITMAP: "list of settled messages damaged, they become ready again",
    BODY: "message body damaged, message skipped",
    MISSING_BODY: "message body missing, message skipped",
    FILE: "body file damaged, message skipped",
    MISSING_FILE: "body file missing, message skipped",
    DELAYED: "delayed message damaged and skipped",
    IDS: "ids of messages damaged and forgotten",
    MISSING: "messages missing",
}
KINDS = tuple(TEXTS)


class Damage(NamedTuple):
    """Damage found in one queue since the previous report."""

    qid: int  # id of the queue (of one priority level of a priority queue), or the line of a delayed message
    position: int  # the seq_id of the first damaged message, or where it should be
    kind: str
    others: int  # number of further damages found after it


class Damages:
    """Collects the damage that one broker has found."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()  # counts by kind since the start, as of the last `take`
        self._noted: deque[tuple[int, int, str, int]] = deque()  # deque, because several threads append to it

    def note(self, place: tuple[int, int], kind: str, count: int = 1) -> None:
        """Note `count` unreadable items of a kind; `place` is the queue's id and the position."""
        self._noted.append((*place, kind, count))

    def take(self) -> list[Damage]:
        """Return the damage noted since the last call, one entry per queue. Called periodically, by one thread only."""
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

"""What one commit writes: the journal cuts it, the environment carries it out, the journal settles it."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from leveret.storage.errors import DiskFullError, Done
from leveret.storage.journal.blocks import Block, Entry, Plan
from leveret.storage.journal.reads import Range


class Journaled(Protocol):
    """A queue whose messages go to disk."""

    qid: int
    journal_fresh: list[Entry]
    journal_paged: list[Entry]
    journal_returns: dict[int, int]
    """How often messages came back that are not on disk yet, by seq_id, if the queue counts that."""
    journaled: bool
    segment: int

    def stored(self, entries: list[Entry]) -> None:
        """Entries that shall be evicted are on disk now."""

    def unstored(self, entries: Iterable[Entry]) -> None:
        """Entries have found no room: those that are still needed are NEW again, and their publishers know."""


class Changes:
    """What one commit does to one environment."""

    __slots__ = (
        "blocks",
        "bodies",
        "deletes",
        "marks",
        "merges",
        "moves",
        "octets",
        "refs",
        "shared",
        "sweeps",
        "unmarks",
        "unrefs",
    )

    def __init__(self) -> None:
        self.bodies: list[tuple[int, bytes]] = []
        """Contents by msg_id; an empty one says that it is in a file."""
        self.refs: list[tuple[bytes, bytes]] = []
        """How many records refer to a msg_id, where more than one."""
        self.shared: dict[int, tuple[bytes, int]] = {}
        """Contents of paged messages that several queues have, by msg_id, and how many records more refer to each;
        it may be on disk already, for records that were written before."""
        self.blocks: list[Plan] = []
        self.marks: list[tuple[bytes, bytes]] = []
        """Bitmaps of blocks."""
        self.merges: list[tuple[bytes, bytes]] = []
        """Bits to be set in bitmaps that may have others on disk."""
        self.deletes: list[bytes] = []
        """Keys of blocks that are dead."""
        self.unmarks: list[bytes] = []
        """Those of them that have bitmaps."""
        self.unrefs: list[int] = []
        """msg_ids that one record less refers to."""
        self.sweeps: list[Range] = []
        self.moves: Changes | None = None
        """Deletions of what this commit writes elsewhere: they are never carried out without it."""
        self.octets = 0

    def __bool__(self) -> bool:
        return bool(
            self.blocks
            or self.marks
            or self.merges
            or self.deletes
            or self.unrefs
            or self.sweeps
            or self.bodies
            or self.moves
        )


class Batch(NamedTuple):
    """One commit: what it writes, and who is told."""

    durable: Changes
    paged: Changes
    rows: list[tuple[str, bytes, bytes | None]]
    """Rows of other tables, in order: table, key, value or None to delete it."""
    entries: list[tuple[Journaled, list[Entry]]]
    acked: list[tuple[Block, list[int]]]
    """The dead records that this batch writes down, by block."""
    moved: list[tuple[Block, list[int]]]
    """Those of blocks of which some live on elsewhere."""
    waiters: list[Callable[[bool], object]]
    octets: int
    pages: bool
    """Whether it touches the environment of paged messages, if there is something to be done."""

    @property
    def needs_sync(self) -> bool:
        """Whether anything of it must survive the process."""
        return bool(self.durable or self.rows)

    def written(self, error: DiskFullError | None) -> int:
        """Octets of it that a commit has put on disk."""
        if error is None:
            return self.octets
        paged = self.paged.octets
        return (error.durable is Done.ALL) * (self.octets - paged) + (error.paged is Done.ALL) * paged

"""The changes of one commit: the journal cuts the batch, the environment applies it, the journal settles it."""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from leveret.storage.errors import DiskFullError, Done
from leveret.storage.journal.blocks import Block, Entry, Plan
from leveret.storage.journal.reads import Range


class Journaled(Protocol):
    """A queue whose messages are written to disk."""

    qid: int
    journal_fresh: list[Entry]
    journal_paged: list[Entry]
    journal_returns: dict[int, int]
    """Delivery counts of requeued messages that are not on disk yet, by seq_id, if the queue counts them."""
    journaled: bool
    segment: int

    def stored(self, entries: list[Entry]) -> None:
        """Entries whose bodies are to be evicted from memory are on disk now."""

    def logged(self, entries: list[Entry]) -> None:
        """Entries whose bodies are to be evicted from memory are safe now, and on disk later."""

    def unstored(self, entries: Iterable[Entry]) -> None:
        """Entries found no space on disk: those still needed are NEW again and their publishes are nacked."""


class Changes:
    """The changes of one commit to one environment."""

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
        """Contents by msg_id; an empty one is in a file."""
        self.refs: list[tuple[bytes, bytes]] = []
        """Reference counts of msg_ids with more than one record."""
        self.shared: dict[int, tuple[bytes, int]] = {}
        """Contents of paged messages that several queues share, by msg_id, with the number of new references to each; a
        content may be on disk already, for records written earlier."""
        self.blocks: list[Plan] = []
        self.marks: list[tuple[bytes, bytes]] = []
        """Bitmaps of blocks."""
        self.merges: list[tuple[bytes, bytes]] = []
        """Bits to set in bitmaps that may have other bits set on disk."""
        self.deletes: list[bytes] = []
        """Keys of blocks to delete."""
        self.unmarks: list[bytes] = []
        """Keys of those of them that have bitmaps."""
        self.unrefs: list[int] = []
        """msg_ids that lose one reference."""
        self.sweeps: list[Range] = []
        self.moves: Changes | None = None
        """Deletions of records that this commit writes elsewhere, and of their queues; never applied without those
        writes."""
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


NOTHING: Final = Changes()
"""No changes: of all batches that do not touch an environment, and never changed itself."""


class Batch(NamedTuple):
    """One commit: its changes, and the callbacks to notify."""

    durable: Changes
    paged: Changes
    rows: list[tuple[str, bytes, bytes | None]]
    """Rows of other tables, in order: table, key, and value (None deletes the row)."""
    entries: list[tuple[Journaled, list[Entry]]]
    acked: list[tuple[Block, list[int]]]
    """Dead records that this batch writes to bitmaps, by block, except those in `moved`."""
    moved: list[tuple[Block, list[int]]]
    """Dead records, by block, whose messages live on in other queues."""
    waiters: list[Callable[[bool], object]]
    late_waiters: list[Callable[[bool], object]]
    """Callbacks that waited for an earlier batch, and then for ends that are in this one."""
    copies: int
    """Number of messages that it writes, in all queues."""
    octets: int
    pages: bool
    """True if it may touch the environment of paged messages."""

    @property
    def needs_sync(self) -> bool:
        """True if any of its changes must survive the process."""
        return bool(self.durable or self.rows)

    def written(self, error: DiskFullError | None) -> int:
        """Return the bytes of the batch that a commit has written."""
        if error is None:
            return self.octets
        paged = self.paged.octets
        return (error.durable is Done.ALL) * (self.octets - paged) + (error.paged is Done.ALL) * paged

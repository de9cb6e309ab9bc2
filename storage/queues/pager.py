"""What the variable queues of one broker share: their limits, the journal, and who pages when."""

from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Protocol

from leveret.storage.damage import Damages
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest, Reads
from leveret.storage.message import Message
from leveret.storage.queues.rates import Rates
from leveret.storage.queues.requeued import Requeued

PAGING_OCTETS = 4 * 1024 * 1024
"""Octets of transient messages on their way to disk, `OVERHEAD` each included, above which no queue pages more."""


LARGE = 4096
"""Messages of a run that takes long to free: a millisecond, about."""


_PIECE = 500


Releasable = deque[Any] | Requeued | MutableMapping[int, Any]
"""A run of messages, or a table of them."""


def release_at_once(run: Releasable) -> None:
    """Whoever had it has let it go."""


def freeing(run: Releasable) -> Iterator[None]:
    """Free a run of messages in pieces, each of them well below a millisecond."""
    pop: Callable[[], object] = run.popitem if isinstance(run, MutableMapping) else run.pop
    while run:
        for _ in range(min(_PIECE, len(run))):
            pop()
        yield


class Paging(Protocol):
    """A queue that can move messages out of memory, as the pager and the memory monitor see it."""

    next_seq: int
    fetched: int
    acked: int
    ready_count: int
    ram_octets: int
    unacked_octets: int
    deleted: bool
    rates: Rates

    @property
    def unacked_count(self) -> int:
        """Unacked messages."""

    @property
    def ram_msg_count(self) -> int:
        """Ready messages whose body is in memory."""

    @property
    def ram_ack_count(self) -> int:
        """Unacked messages whose body is in memory."""

    def some_in_memory(self, most: int) -> tuple[list[Message], list[bool]]:
        """Some messages whose body is in memory, and which of them have an entry."""

    def set_ram_target(self, count: float, octets: int) -> None:
        """Let the queue have so many messages, and so many octets of them, in memory."""

    def reduce_memory_use(self, published: int = 0) -> None:
        """Move messages out of memory, as far as the queue's targets ask for."""


class Pager:
    """What the queues of one broker share.

    Args:
        journal: takes what has to go to disk.
        load: has blocks read; the queue's `loaded` is called with what was found, later.
        segment: seq_ids that are loaded together at most (`queue_index_segment_entry_count`).
        io_batch: betas that are turned into deltas together at least (`msg_store_io_batch_size`).
        load_octets: what is enough for one load.
        file_from: octets of content from which a persistent body is written to a file of its own.
        ram_limit: octets of alphas that one queue may have, as long as nothing else says so.
        damages: is told what cannot be read.

    """

    __slots__ = (
        "active",
        "damages",
        "file_from",
        "io_batch",
        "journal",
        "load",
        "load_octets",
        "ram_limit",
        "read_delta",
        "read_entries",
        "release",
        "segment",
        "waiting",
    )

    def __init__(
        self,
        journal: Journal,
        load: Callable[[LoadRequest], None],
        *,
        segment: int = 2048,
        io_batch: int = 256,
        load_octets: int = 1024 * 1024,
        file_from: int = 4 * 1024 * 1024,
        ram_limit: int = 32 * 1024 * 1024,
        damages: Damages | None = None,
    ) -> None:
        self.journal = journal
        self.damages = Damages() if damages is None else damages
        self.load = load
        self.segment = segment
        self.io_batch = io_batch
        self.load_octets = load_octets
        self.file_from = file_from
        self.ram_limit = ram_limit
        self.release: Callable[[Releasable], object] = release_at_once
        """Frees a run of more than `LARGE` messages that were dropped; whoever sets it may take its time."""
        self.active: set[Paging] = set()
        """Queues that had a backlog since the memory monitor last looked."""
        self.read_delta = Reads()
        """What was read of deltas, position and body at once."""
        self.read_entries = Reads()
        """What was read for betas and gammas, whose positions memory had."""
        self.waiting: dict[Paging, None] = {}
        """Queues that have more to page than there was room for in the journal."""

    @property
    def may_page(self) -> bool:
        """Whether the journal has room for transient messages that are to be paged."""
        journal = self.journal
        return journal.octets_to_page + journal.octets_in_flight < PAGING_OCTETS

    def go_on(self) -> None:
        """Have those queues page that had to wait, as long as there is room."""
        while self.waiting and self.may_page:
            queue = next(iter(self.waiting))
            del self.waiting[queue]
            queue.reduce_memory_use()

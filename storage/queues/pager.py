"""State shared by the variable queues of one broker: limits, the journal, and the queues that wait to page."""

from collections import deque
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from leveret.storage.damage import Damages
from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest, Reads
from leveret.storage.queues.peek import Snapshot
from leveret.storage.queues.requeued import Requeued

PAGING_OCTETS = 4 * 1024 * 1024
"""Bytes of transient messages on their way to disk, including `OVERHEAD` each, above which no queue pages more."""

LOAD_OCTETS = 256 * 1024
"""Bytes after which one load stops. One step of the event loop takes its result: for 1 MiB of messages of 1 KB that was
the longest step of a queue that is drained, 2.4 ms."""

LARGE = 4096  # length of a run of messages that takes about a millisecond to free


_PIECE = 500


Releasable = deque[Any] | Requeued[Any] | MutableMapping[int, Any]  # A run of messages, or a table of them


def release_at_once(run: Releasable) -> None:
    """Do nothing: the run is freed with its last reference."""


def _no_disk() -> Snapshot:
    """Raise an error: there are no files."""
    raise RuntimeError("there are no files to look into")


def freeing(run: Releasable) -> Iterator[None]:
    """Free a run of messages in steps, each well below a millisecond."""
    pop: Callable[[], object] = run.popitem if isinstance(run, MutableMapping) else run.pop
    while run:
        for _ in range(min(_PIECE, len(run))):
            pop()
        yield


class Pager:
    """State shared by the queues of one broker."""

    def __init__(
        self,
        journal: Journal,  # collects the changes to be written to disk
        # starts a read of blocks; the queue's `loaded` is called later with the result
        load: Callable[[LoadRequest], None],
        *,
        segment: int = 2048,  # maximum number of seq_ids per load (`queue_index_segment_entry_count`)
        # minimum number of betas turned into deltas together (`msg_store_io_batch_size`)
        io_batch: int = 256,
        load_octets: int = LOAD_OCTETS,  # bytes after which one load stops
        # bytes of content from which a persistent body is written to a file of its own
        blob_threshold: int = 4 * 1024 * 1024,
        # bytes of alphas that one queue may have, until the memory monitor sets another limit
        ram_limit: int = 32 * 1024 * 1024,
        # whether messages that are settled before their commit are confirmed then and not written
        early_confirm: bool = True,
        damages: Damages | None = None,  # collects unreadable data
    ) -> None:
        self.journal = journal
        self.damages = Damages() if damages is None else damages
        self.load = load
        self.segment = segment
        self.io_batch = io_batch
        self.load_octets = load_octets
        self.blob_threshold = blob_threshold
        self.ram_limit = ram_limit
        self.early_confirm = early_confirm
        self.release: Callable[[Releasable], object] = release_at_once
        """Frees a dropped run of more than `LARGE` messages; a replacement may do so gradually."""
        self.snapshot: Callable[[], Snapshot] = _no_disk  # opens a snapshot of the files; set by their owner
        self.active: set[Any] = set()  # `VariableQueue`s with a backlog since the monitor's last update
        self.read_delta = Reads()  # reads of deltas, which return positions and bodies together
        self.read_entries = Reads()  # reads for betas and gammas, whose positions were in memory
        self.waiting: dict[Any, None] = {}  # queues that have more to page than the journal had space for

    @property
    def may_page(self) -> bool:
        """Return whether the journal has space for more transient messages to be paged."""
        journal = self.journal
        return journal.octets_to_page + journal.octets_in_flight < PAGING_OCTETS

    def resume_paging(self) -> None:
        """Resume paging of the waiting queues, as long as the journal has space."""
        while self.waiting and self.may_page:
            queue = next(iter(self.waiting))
            del self.waiting[queue]
            queue.reduce_memory_use()

"""Read requests of queues, and their results."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from leveret.storage.journal.blocks import Entry

DELTA, BODIES, RETURNED, UNACKED = "delta", "bodies", "returned", "unacked"
"""Kinds of reads: part of the delta, or bodies of entries in q3, of requeued ones, or of unacked ones."""


class Range(NamedTuple):
    """All seq_ids of a queue from `first` to before `stop`."""

    qid: int
    first: int
    stop: int


class RawBlock(NamedTuple):
    """One block as stored on disk."""

    paged: bool
    key: bytes
    value: bytes
    dead: bytes | None  # the bitmap of its dead records, if there is one


class Loaded(NamedTuple):
    """Result of a read: all blocks with a seq_id in the requested ranges, up to before `stop`."""

    blocks: list[RawBlock]
    stop: int
    """With one range: everything from its start to before here was read. Less than the range if the limit was reached,
    more if the queue has nothing on disk for some distance after it."""
    bodies: dict[int, bytes | str]
    """Contents stored apart from their records, by msg_id; the kind of damage (`storage.damage`) for a damaged one."""


class Loading(Protocol):
    """A queue that requests reads."""

    def loaded(self, request: "LoadRequest", found: Loaded) -> None:
        """Take the result of a read."""


class LoadRequest(NamedTuple):
    """One read of one queue's messages."""

    queue: Loading
    ranges: tuple[Range, ...]
    limit: int  # bytes after which the read may stop, if there is only one range
    what: str  # the kind of read; used by the queue only
    entries: Sequence[Entry] = ()  # those whose bodies are requested, on disk at the time of the request
    horizon: int = 0  # messages of the delta before this seq_id were on disk at the time of the request


class Reads:
    """Read counters for messages in one state, over all queues."""

    __slots__ = ("blocks", "bodies", "messages")

    def __init__(self) -> None:
        self.messages = 0  # messages whose bodies were read into memory
        self.blocks = 0  # blocks read for them
        self.bodies = 0  # bodies stored apart from their records that were read as well

    def took(self, found: Loaded, messages: int = 0) -> None:
        """Count a read, and messages that it has brought."""
        self.blocks += len(found.blocks)
        self.bodies += len(found.bodies)
        self.messages += messages

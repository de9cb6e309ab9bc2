"""What a queue asks to be read from disk, and what it gets."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from leveret.storage.journal.blocks import Entry
from leveret.storage.message import body_octets

DELTA, BODIES, RETURNED, UNACKED = "delta", "bodies", "returned", "unacked"
"""What is read: part of the delta, bodies of entries in q3, of requeued ones, or of unacked ones."""


class Range(NamedTuple):
    """All seq_ids of a queue from `first` to before `stop`."""

    qid: int
    first: int
    stop: int


class RawBlock(NamedTuple):
    """One block as it lies on disk."""

    paged: bool
    key: bytes
    value: bytes
    dead: bytes | None
    """The bitmap of its dead records, if there is one."""


class Loaded(NamedTuple):
    """What a read found: all blocks that hold a seq_id from the ranges asked for, up to before `stop`."""

    blocks: list[RawBlock]
    stop: int
    """With one range: everything from its start to before here was read. Less than the range if that was enough, more
    if the queue has nothing on disk for a while behind it."""
    bodies: dict[int, bytes | str]
    """Contents that lie apart from their records, by msg_id; of one that is damaged the kind (`storage.damage`)."""

    def body_octets(self, msg_id: int) -> int:
        """Octets of the body of a content that lies apart; 0 if it was not read."""
        content = self.bodies.get(msg_id)
        return body_octets(content) if isinstance(content, bytes) else 0


class Loading(Protocol):
    """A queue that has asked for something."""

    def loaded(self, request: "LoadRequest", found: Loaded) -> None:
        """Take what was read."""


class LoadRequest(NamedTuple):
    """One read of one queue's messages."""

    queue: Loading
    ranges: tuple[Range, ...]
    limit: int
    """Octets that are enough, where there is one range only."""
    what: str
    """What for: the queue's business."""
    entries: Sequence[Entry] = ()
    """Those whose bodies are wanted: all of them were on disk when this was asked for."""
    horizon: int = 0
    """Messages of the delta before this seq_id were on disk when this was asked for."""


class Reads:
    """What has been read for messages in one state, all queues together."""

    __slots__ = ("blocks", "bodies", "messages")

    def __init__(self) -> None:
        self.messages = 0
        """Messages whose bodies were brought into memory."""
        self.blocks = 0
        """Blocks that were looked up for them."""
        self.bodies = 0
        """Bodies that lay apart from their records and were looked up as well."""

"""What a queue asks to be read from disk, and what it gets."""

from typing import NamedTuple, Protocol


class Range(NamedTuple):
    """All seq_ids of a queue from `first` to before `stop`."""

    qid: int
    first: int
    stop: int


class RawBlock(NamedTuple):
    """One block as it lies on disk."""

    paged: bool
    value: bytes
    dead: bytes | None
    """The bitmap of its dead records, if there is one."""


class Loaded(NamedTuple):
    """What a read found: all blocks that hold a seq_id from the ranges asked for, up to before `stop`."""

    blocks: list[RawBlock]
    stop: int
    """Where reading ended because it was enough; the end of the last range otherwise."""
    bodies: dict[int, bytes | None]
    """Contents that lie apart from their records, by msg_id; None for one that is missing or damaged."""


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

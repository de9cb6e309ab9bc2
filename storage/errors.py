"""What storage raises."""

from collections.abc import Sequence
from enum import Enum


class StorageError(Exception):
    """Something is wrong with the data on disk, or with what is asked of it; the text is for an administrator."""


class DamagedError(StorageError):
    """Raised when octets read from disk are not those that were written."""


class UnknownFormatError(StorageError):
    """Raised when the data directory was written by a version whose format this one does not know."""


class Done(Enum):
    """How much of its part of a batch an environment has taken."""

    NOTHING = "nothing"
    DELETIONS = "deletions"
    """What frees room."""
    ALL = "all"


class DiskFullError(StorageError):
    """Raised when a commit found no room in one environment, or in both; they can still be used.

    `durable` and `paged` say how much of the batch each of them has taken. A durable part that is done is on disk as
    after any other commit: that transient messages could not be paged is no concern of persistent ones. `unlink` are
    the files nobody refers to any more, as `storage.store.environment.Environment.commit` returns them.
    """

    def __init__(
        self,
        text: str,
        *,
        durable: Done = Done.NOTHING,
        paged: Done = Done.NOTHING,
        unlink: Sequence[int] = (),
    ) -> None:
        super().__init__(text)
        self.durable = durable
        self.paged = paged
        self.unlink = unlink

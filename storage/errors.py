"""Exceptions raised by the storage layer."""

import errno
from collections.abc import Sequence
from enum import Enum

NO_SPACE = frozenset((errno.ENOSPC, errno.EDQUOT))  # codes of a system call that failed for a full disk


class StorageError(Exception):
    """Base class of storage errors: bad data on disk, or an invalid request. The text is for an administrator."""


class DamagedError(StorageError):
    """Raised when bytes read from disk are not those that were written."""


class UnknownFormatError(StorageError):
    """Raised when the data directory has a format that this version does not know."""


class UnknownStateError(StorageError):
    """Raised when the state of the disk is unknown: nothing may be confirmed or retried, the process should end."""


class Done(Enum):
    """The part of its share of a batch that an environment has committed."""

    NOTHING = "nothing"
    DELETIONS = "deletions"  # only the deletions, which free space
    ALL = "all"


class DiskFullError(StorageError):
    """Raised when a commit found no space in one or both environments; they remain usable.

    `durable` and `paged` are the parts of the batch that each environment has committed. A durable part that is done
    is on disk as after any other commit, even if transient messages could not be paged. `unlink` lists the files that
    are no longer referenced, as `storage.store.environment.Environment.commit` returns them, and `applied` is the
    number of batches that were only logged before and are in the tables now.
    """

    applied = 0

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

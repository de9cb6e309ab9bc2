"""What storage raises."""


class StorageError(Exception):
    """Something is wrong with the data on disk, or with what is asked of it; the text is for an administrator."""


class DamagedError(StorageError):
    """Raised when octets read from disk are not those that were written."""


class UnknownFormatError(StorageError):
    """Raised when the data directory was written by a version whose format this one does not know."""


class DiskFullError(StorageError):
    """Raised when a commit found no room. Nothing new was written; the environment can still be used.

    `deletions_done` says whether at least that was committed which frees room, `paged_done` whether everything was that
    belongs to paged transient messages.
    """

    def __init__(self, text: str, *, deletions_done: bool = False, paged_done: bool = False) -> None:
        super().__init__(text)
        self.deletions_done = deletions_done
        self.paged_done = paged_done

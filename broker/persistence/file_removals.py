"""Removes the files of bodies that nothing refers to any more, in threads, unless a backup needs them (driver)."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

log = logging.getLogger("leveret.storage")


class FileRemovals:
    """The removals of files.

    Args:
        loop: the event loop, in which all methods are called.
        threads: where files are removed.
        path_of: the path of a body's file.

    Attributes:
        pending: removals that are under way.

    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, threads: Executor, path_of: Callable[[int], Path]
    ) -> None:
        self._loop = loop
        self._threads = threads
        self._path_of = path_of
        self._held: list[int] | None = None
        """Files that wait for the end of a backup's step; None without a backup."""
        self.pending: set[asyncio.Future[None]] = set()

    def remove(self, msg_id: int) -> None:
        """Remove the file of a body, now or after the backup that may need it."""
        if self._held is not None:
            self._held.append(msg_id)
            return
        removal = self._loop.run_in_executor(self._threads, _remove, self._path_of(msg_id))
        self.pending.add(removal)
        removal.add_done_callback(self.pending.discard)

    @property
    def is_holding(self) -> bool:
        """True while files are held."""
        return self._held is not None

    def hold(self) -> None:
        """Remove the files that were held so far, and hold those that follow."""
        self.resume()
        self._held = []

    def resume(self) -> None:
        """Remove all files again, at once; those that were held, too."""
        held, self._held = self._held or (), None
        for msg_id in held:
            self.remove(msg_id)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror)

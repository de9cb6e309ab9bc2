"""Space reclaim: returns unused space of the data file to the file system while the broker runs (driver).

When more than `storage.garbage_fraction` of the space that the file takes has been unused for ten minutes, the writer
punches holes into its free pages (`storage.store.hole_punching`), in steps of a few milliseconds between which it
commits. Space that is reused soon is not worth the cost, hence the ten minutes.
"""

import asyncio
import logging
from collections.abc import Callable

from leveret.broker.persistence.worker_thread import Done, Job
from leveret.storage.errors import DamagedError
from leveret.storage.store.hole_punching import Given, give_back, keep_reserve
from leveret.storage.store.lmdb_environment import LmdbEnvironment

log = logging.getLogger("leveret.storage")

PATIENCE = 600.0  # seconds for which the file must have had too much garbage
PAUSE = 0.05  # seconds between two steps


class SpaceReclaim:
    """Returns unused space of one data file."""

    def __init__(
        self,
        table: LmdbEnvironment,  # the environment of the file
        # runs a job in the writer's thread, and a callback with its result in the loop
        submit: Callable[[Job, Done], None],
        loop: asyncio.AbstractEventLoop,
        *,
        fraction: float,  # maximum share of garbage (`storage.garbage_fraction`); 1 disables the reclaim
        worth: int,  # minimum size of the file on disk, in bytes
    ) -> None:
        self._table = table
        self._submit = submit
        self._loop = loop
        self._fraction = fraction
        self._worth = worth
        self._since: float | None = None  # time since when there was too much, None if there is not
        self._given = 0
        self._reserve: set[int] = set()  # free pages that are allocated on disk, until space is returned
        self._is_busy = self._is_refused = self._stopped = False

    def update(self, octets: int, garbage_fraction: float, now: float) -> None:
        """Process a measurement of the file: bytes on disk, the unused share of them, the loop's time (s)."""
        if self._is_busy or self._is_refused or self._stopped:
            return
        self._submit(lambda: keep_reserve(self._table, self._reserve), self._kept)
        if octets <= self._worth or garbage_fraction <= self._fraction or self._fraction >= 1:
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= PATIENCE:
            self._since = None
            self._is_busy = True
            self._given = 0
            self._step(-1)

    def stop(self) -> None:
        """Start no further step."""
        self._stopped = True

    def _kept(self, reserve: set[int] | None, error: BaseException | None) -> None:
        if error is not None or reserve is None:
            self._refuse(error)
        else:
            self._reserve = reserve

    def _step(self, after: int) -> None:
        if not self._stopped:
            self._submit(lambda: give_back(self._table, after), self._done)

    def _done(self, given: Given | None, error: BaseException | None) -> None:
        if error is not None or given is None:
            self._refuse(error)
            return
        self._given += given.octets
        self._reserve = set()
        if given.more:
            self._loop.call_later(PAUSE, self._step, given.after)
            return
        self._is_busy = False
        log.info("storage: returned unused space in the data file to the file system: bytes=%d", self._given)

    def _refuse(self, error: BaseException | None) -> None:
        """Disable the reclaim of this file."""
        if self._is_refused:
            return
        self._is_busy, self._is_refused = False, True
        if not isinstance(error, OSError | DamagedError):
            log.error(
                "storage: internal error while returning unused space of the data file; disabled until the "
                "next start",
                exc_info=error,
            )
        else:
            log.warning(
                "storage: cannot return unused space of the data file; it shrinks at the next start only: %s",
                error,
            )

"""Backups: the directory of one, and those that a running broker makes in a thread while it serves clients (driver).

The directory has a temporary name while it is unfinished, and its own when it is whole.

The thread copies; each state that it copies is opened by the writer's thread between two commits, at its request
(`storage.store.backup`). While one is open, files of bodies that are no longer referred to are not removed.
"""

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import pwd
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

from leveret.broker.persistence.committer import Committer
from leveret.broker.persistence.data_lock import DataDirError, locked
from leveret.storage.errors import StorageError
from leveret.storage.files import DIRECTORY, FILE, sync_directory
from leveret.storage.store.backup import Backup, Copied, Moment, Pace, latest
from leveret.storage.store.environment import Environment

log = logging.getLogger("leveret.storage")

SUFFIX = ".partial"
MARK = "unfinished-backup"  # name of a file in the directory of an unfinished backup
_LOCK = "leveret.lock"
WATCH_SECONDS = 1.0
STALL_SECONDS = 60.0  # without progress a backup is cancelled then: the state that it copies keeps pages
UNATTENDED_SECONDS = 30.0  # time after which a backup is cancelled if its command has stopped to ask for it
STOP_SECONDS = 5.0  # time that the broker's stop waits for a cancelled backup to remove its files


@contextlib.contextmanager
def unfinished(data_dir: Path, dest: Path) -> Iterator[Path]:
    """Create a directory for a backup; it gets its own name at the end, or is removed after an exception.

    Meanwhile it is locked, so that no broker uses it. A backup that was killed leaves it behind under its temporary
    name; the next one to the same destination removes it.

    Raises StorageError if the destination exists or cannot be written, with a text for the administrator.
    """
    try:
        dest = _checked(data_dir, dest)
        path = dest.with_name(dest.name + SUFFIX)
        _remove_left_behind(path, dest)
        path.mkdir(DIRECTORY)
    except OSError as error:
        raise _refusal(dest, error) from error
    except ValueError as error:  # octets that no path can have
        raise StorageError(f"{dest} is not a path: {error}") from error
    try:
        with _locked(path, dest):
            os.close(os.open(path / MARK, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE))
            yield path
            (path / MARK).unlink()
            sync_directory(path)
            _refuse_existing(dest)
            path.rename(dest)
            with contextlib.suppress(PermissionError):  # it may be written, and not read
                sync_directory(dest.parent)
    except BaseException as error:
        shutil.rmtree(path, ignore_errors=True)
        if isinstance(error, OSError):
            raise _refusal(dest, error) from error
        raise


def _checked(data_dir: Path, dest: Path) -> Path:
    """Return the destination with a parent that is no link; raises StorageError if it cannot be one."""
    if not dest.is_absolute() or dest.name in {"", ".."}:
        raise StorageError(f"{dest} is not the absolute path of a new directory")
    _refuse_existing(dest)
    if not dest.parent.is_dir():
        raise StorageError(f"there is no directory {dest.parent}")
    dest = dest.parent.resolve() / dest.name
    if data_dir.resolve() in dest.parents:
        raise StorageError(f"{dest} is inside of the data directory {data_dir}")
    return dest


def _refuse_existing(dest: Path) -> None:
    if os.path.lexists(dest):
        raise StorageError(f"{dest} exists: a backup never overwrites anything")


def _remove_left_behind(path: Path, dest: Path) -> None:
    """Remove what an interrupted backup has left; raises StorageError for anything else."""
    if not os.path.lexists(path):
        return
    is_ours = not path.is_symlink() and path.is_dir()
    names = {each.name for each in path.iterdir()} if is_ours else set()
    if not is_ours or not (MARK in names or names <= {_LOCK}):
        raise StorageError(
            f"{path} exists and is not an interrupted backup: remove it, or choose another name"
        )
    with _locked(path, dest):
        shutil.rmtree(path)


@contextlib.contextmanager
def _locked(path: Path, dest: Path) -> Iterator[None]:
    try:
        lock = contextlib.ExitStack()
        lock.enter_context(locked(path, make=False))
    except DataDirError as error:
        raise StorageError(f"another backup to {dest} is being written: {error}") from error
    with lock:
        yield


def _refusal(dest: Path, error: OSError) -> StorageError:
    user = str(os.geteuid())
    with contextlib.suppress(KeyError):
        user = pwd.getpwuid(os.geteuid()).pw_name
    return StorageError(f"cannot write {dest} as user {user}: {error.strerror}")


# -- of a running broker ----------------------------------------------------------------------------------------------


class BackupState(StrEnum):
    """The state of a backup."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


class RunningBackup:
    """One backup and, when it is over, its result."""

    def __init__(
        self,
        dest: Path,  # absolute path of the backup
        environment: Environment,
        commits: Committer,
        # the event loop, in which all methods are called whose docstrings do not say otherwise
        loop: asyncio.AbstractEventLoop,
        *,
        rate: int,  # maximum bytes per second; 0 for no limit
        reserve: int,  # bytes to leave free on the disk of the data directory, if the backup is on it
        more: "More | None" = None,
    ) -> None:
        self.dest = dest
        self.rate = rate
        self.state = BackupState.RUNNING
        self.error = ""  # the reason if it has failed
        self.copied: Copied | None = None  # the result if it is done
        self.elsewhere = Copied(0, 0)  # what `more` has copied
        self.elsewhere_total = 0  # bytes that it has to copy as far as known
        self.over = asyncio.Event()
        self._data_dir = environment.data_dir
        self._environment = environment
        self._commits = commits
        self._loop = loop
        self._reserve = reserve
        self._more = more
        self._cancelled = threading.Event()
        self._reason = ""
        self._pace = Pace(rate, self._cancelled.wait)
        self._backup: Backup | None = None
        self._moment: Moment | None = None  # the open state; used by the writer's thread
        self._began = self._attended = loop.time()
        self._ended = 0.0
        self._seen = (-1, 0.0)
        self._watch: asyncio.TimerHandle = loop.call_later(WATCH_SECONDS, self._check)
        # The process may end while the disk of the backup does not respond.
        self._thread = threading.Thread(target=self._run, name="leveret-backup", daemon=True)
        self._thread.start()

    @property
    def octets(self) -> int:
        """Bytes copied so far."""
        return self._pace.octets + self.elsewhere.octets

    @property
    def total(self) -> int:
        """Bytes to copy as far as known, including those copied already; 0 at first."""
        return self.elsewhere_total + (0 if self._backup is None else self._backup.total)

    @property
    def files(self) -> int:
        """Number of bodies in files of their own; 0 until it is done."""
        return 0 if self.copied is None else self.copied.files

    @property
    def seconds(self) -> float:
        """Time since the start, until the end if it is over, in seconds."""
        return (self._ended or self._loop.time()) - self._began

    def attend(self) -> None:
        """Note that a caller has asked for the backup."""
        self._attended = self._loop.time()

    @property
    def is_cancelled(self) -> bool:
        """True once it is to end."""
        return self._cancelled.is_set()

    def cancel(self, reason: str) -> None:
        """Cancel the backup and release the data, even if the thread does not respond; no effect if it is over."""
        if self.state is BackupState.RUNNING and not self._cancelled.is_set():
            self._reason = reason
            self._cancelled.set()
            self._commits.submit(self._release, _ignore)
            self._commits.removals.resume()

    def _check(self) -> None:
        """Cancel a backup that makes no progress, or that no caller has asked for."""
        now = self._loop.time()
        if self._seen[0] != self.octets:
            self._seen = self.octets, now
        if now - self._seen[1] >= STALL_SECONDS:
            self.cancel(f"nothing could be written for {STALL_SECONDS:.0f} s")
        elif now - self._attended >= UNATTENDED_SECONDS:
            self.cancel("no command asks about it any more")
        self._watch = self._loop.call_later(WATCH_SECONDS, self._check)

    # -- the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        error: BaseException | None = None
        copied = None
        try:
            with unfinished(self._data_dir, self.dest) as target:
                is_same_disk = target.stat().st_dev == self._data_dir.stat().st_dev
                reserve = self._reserve if is_same_disk else 0
                self._backup = Backup(self._data_dir, target, self, self._pace, reserve)
                done = self._backup.run()
                if self._more is not None:
                    asyncio.run_coroutine_threadsafe(self._more(self, target), self._loop).result()
            copied = Copied(self.octets, done.files + self.elsewhere.files)
        except BaseException as caught:  # noqa: BLE001 - whatever it is, the loop has to know
            error = caught
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._finish, copied, error)

    def advance(self) -> Moment:
        """Have a later state opened, and the last one released. Called by the backup's thread."""
        found: concurrent.futures.Future[Moment] = concurrent.futures.Future()
        self._loop.call_soon_threadsafe(self._request, found)
        while True:
            with contextlib.suppress(TimeoutError):
                return found.result(WATCH_SECONDS)
            self._pace.breathe()  # the writer's thread may have ended

    def release(self) -> None:
        """Have the last state released, and let files be removed again. Called by the backup's thread."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._request_release)

    # -- the writer's thread ----------------------------------------------------------------------------------------

    def _open(self) -> Moment:
        if self._cancelled.is_set():
            raise StorageError(self._reason)
        self._environment.apply_logged()
        moment = latest(self._environment.store)
        before, self._moment = self._moment, moment
        if before is not None:
            try:
                before.check()
            finally:
                before.close()
        return moment

    def _release(self) -> None:
        """End the read transaction; the file stays open, as the backup's thread may be reading."""
        if self._moment is not None:
            self._moment.release()

    def _close(self) -> None:
        moment, self._moment = self._moment, None
        if moment is not None:
            moment.close()

    # -- the loop ---------------------------------------------------------------------------------------------------

    def _request(self, found: concurrent.futures.Future[Moment]) -> None:
        def opened(moment: Moment | None, error: BaseException | None) -> None:
            if moment is None or error is not None:
                found.set_exception(error or RuntimeError("no state and no error"))
                return
            if not self._cancelled.is_set():
                self._commits.removals.hold()  # files that this state refers to
            found.set_result(moment)

        if self._cancelled.is_set():
            found.set_exception(StorageError(self._reason))
            return
        if not self._commits.removals.is_holding:
            self._commits.removals.hold()
        self._commits.submit(self._open, opened)

    def _request_release(self) -> None:
        self._commits.submit(self._close, _ignore)
        self._commits.removals.resume()

    def _finish(self, copied: Copied | None, error: BaseException | None) -> None:
        self._watch.cancel()
        self._request_release()
        self._ended = self._loop.time()
        if copied is not None:
            self.copied, self.state = copied, BackupState.DONE
            text = "storage: backup to %s complete: bytes=%d files=%d seconds=%.1f"
            log.info(text, self.dest, copied.octets, copied.files, self.seconds)
        else:
            self.state = BackupState.FAILED
            self.error = self._reason or str(error)
            if isinstance(error, StorageError):
                log.warning("storage: backup to %s failed: %s", self.dest, self.error)
            else:
                self.error = f"internal error: {self.error}"
                log.error("storage: internal error during a backup to %s", self.dest, exc_info=error)
        self.over.set()


More = Callable[[RunningBackup, Path], Coroutine[Any, Any, None]]
"""Adds what is elsewhere to the unfinished directory of a backup, and notes it as `elsewhere`. Raises StorageError."""


class Backups:
    """The backups of a running broker, one at a time; `reserve` are bytes to leave free on the disk of its data."""

    def __init__(
        self, environment: Environment, commits: Committer, loop: asyncio.AbstractEventLoop, reserve: int = 0
    ) -> None:
        self._environment = environment
        self._commits = commits
        self._loop = loop
        self._reserve = reserve
        self.more: More | None = None
        self.latest: RunningBackup | None = None  # the one that is running or was the last; None for none

    def start(self, dest: Path, rate: int) -> RunningBackup:
        """Start a backup; it is cancelled unless its `attend` is called at least every 30 s.

        `dest` must not exist, its directory must. Raises StorageError if one is running.
        """
        if self.latest is not None and self.latest.state is BackupState.RUNNING:
            raise StorageError(f"a backup to {self.latest.dest} is running")
        log.info("storage: backup to %s started", dest)
        self.latest = RunningBackup(
            dest,
            self._environment,
            self._commits,
            self._loop,
            rate=rate,
            reserve=self._reserve,
            more=self.more,
        )
        return self.latest

    def abandon(self) -> None:
        """Cancel a running backup without waiting for it."""
        if self.latest is not None:
            self.latest.cancel("the broker was killed")

    async def stop(self) -> None:
        """Cancel a running backup, and wait a while until its files are removed."""
        running = self.latest
        if running is not None and running.state is BackupState.RUNNING:
            running.cancel("the broker stops")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.over.wait(), STOP_SECONDS)


def _ignore(_result: object, _error: BaseException | None) -> None:
    """Do nothing with the result of a job."""

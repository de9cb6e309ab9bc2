"""The export writer: writes telemetry to JSON Lines files and a stream for analysis (driver). Contents: docs/export.md.

Every few seconds `export.rows.Rows` visits all objects, a few milliseconds at a time so that no client is delayed. Rows
are appended to a file for each table, by threads. Readers ignore the name of an unfinished file; a finished file is
renamed, so that partial files are never read.

If writing fails, as on a full disk, the broker logs it once and continues. Counters continue, so later rows cover what
was not written, except for events and latencies of that round. It retries every `RETRY_SECONDS`; the stream
(`export.stream`) gets rows meanwhile.
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import time
import uuid
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiofiles
import aiofiles.os
import msgspec

from leveret import __version__
from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.counters.sampling import Events
from leveret.broker.export.rows import Rows
from leveret.broker.export.stream import TelemetryStream
from leveret.broker.export.tables import TABLES
from leveret.broker.statistics.node_figures import Process, process_figures

log = logging.getLogger("leveret.export")

STEP_SECONDS = 0.002  # maximum time for which a step keeps the loop busy
RETRY_SECONDS = 60.0  # delay after writing has failed
TIDY_SECONDS = 3600.0  # interval of checks for files that are old enough to be removed
_DAY_MS = 86_400_000
HOUR = "dt=%Y-%m-%d/hour=%H"
UNFINISHED = ".tmp"  # suffix of unfinished files; their names begin with a dot, so that readers ignore them
FINISHED = ".jsonl"
_TABLE_OF = {table.struct: name for name, table in TABLES.items()}


class Layout:
    """The paths of one broker's files, in a directory that may have files of other nodes as well."""

    def __init__(self, directory: Path, node: str) -> None:
        self.directory = directory
        self.node_folder = f"node={quote(node, safe='@')}"

    @staticmethod
    def hour(ts: int) -> str:
        """Return the folders of a time (epoch ms), UTC."""
        return time.strftime(HOUR, time.gmtime(ts / 1000))

    @staticmethod
    def day(ts: float) -> str:
        """Return the folder of the day; names sort in the order of days."""
        return time.strftime("dt=%Y-%m-%d", time.gmtime(ts / 1000))

    def unfinished(self, table: str, hour: str, ts: int, number: int) -> Path:
        """Return the path of a file that begins at `ts`, in an hour's folders; `ts` and number are unique."""
        name = f".{table}-{ts}-{number}{FINISHED}{UNFINISHED}"
        return self.directory / table / hour / self.node_folder / name


def finished_name(unfinished: Path) -> Path:
    """Return the final name for the path of an unfinished file."""
    return unfinished.with_name(unfinished.name.removeprefix(".").removesuffix(UNFINISHED))


@dataclass(slots=True)
class _File:
    """An unfinished file in the folders of an hour, begun at a time in epoch ms."""

    path: Path
    file: Any
    hour: str
    since: int
    rows: int = 0
    size: int = 0  # bytes of whole rows


@dataclass(slots=True)
class _Batch:
    """The rows of one round for one file."""

    octets: bytearray = field(default_factory=bytearray)
    rows: int = 0  # number of rows; counting lines afterwards would keep the loop busy


class Export:
    """The export of one broker. Create it before there are queues, because they measure times from then on.

    Settings say where and how often it writes (`config.sections.ExportConfig`).
    """

    def __init__(self, broker: AdministeredBroker, settings: Any, node: str) -> None:
        self._broker = broker
        self._settings = settings
        self._layout = None if settings.dir is None else Layout(settings.dir, node)
        vhost = settings.stream_vhost
        self._stream = TelemetryStream(broker, vhost, settings.retention) if vhost else None
        self._encoder = msgspec.json.Encoder()
        self._rows = Rows(broker, node=node, boot_id=uuid.uuid4().hex, clock=broker.loop.monotonic)
        self._files: dict[str, _File] = {}
        self._number = 0
        self._again = self._tidy_at = float("-inf")
        self._lock: int | None = None
        """Descriptor of the lock file that reserves the folders of this node; None while they are not reserved."""
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None]
        self.failed = False  # True if the last attempt to write has failed
        self._lost = 0  # number of rows that could not be written
        broker.context.events = self._events = Events()

    @property
    def lost(self) -> int:
        """Number of rows that could not be written, and of events dropped for lack of space."""
        return self._lost + self._events.lost + (0 if self._stream is None else self._stream.dropped)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the export; clients may connect from now on."""
        self._rows.begin()
        if self._stream is not None:
            self._stream.open()
        self._broker.context.note("start", "", __version__)
        self._task = loop.create_task(self._run())

    async def stop(self, reason: str) -> None:
        """Write the final state, and finish all files."""
        self._broker.context.note("stop", "", reason)
        self._stopping.set()
        await self._task

    async def _run(self) -> None:
        try:
            if self._layout is not None:
                await self._try(self._prepare(self._layout))
            while not self._stopping.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), self._settings.interval)
                is_due = time.monotonic() >= self._again
                if not self._stopping.is_set() and (is_due or self._stream is not None):
                    await self._try(self._look(writes=is_due))
            await self._try(self._look())
            await self._try(self._finish(list(self._files)))
            self._unlock()
        except Exception:
            log.exception("internal error in the export: nothing more is exported until a restart")
            self._broker.context.events = None

    async def _try(self, work: Awaitable[object]) -> None:
        try:
            await work
        except OSError as error:
            self._again = time.monotonic() + RETRY_SECONDS
            self._rows.forget()
            if not self.failed:
                self.failed = True
                log.warning("export failed, trying again every %.0f s: %s", RETRY_SECONDS, error)
            await self._give_up()

    async def _prepare(self, layout: Layout) -> None:
        """Reserve the folders of this node, and finish the files of an earlier run."""
        if self._lock is None:
            self._lock = await asyncio.to_thread(lock_folders, layout)
            await asyncio.to_thread(recover, layout)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # -- rows -------------------------------------------------------------------------------------------------------

    async def _look(self, *, writes: bool = True) -> None:
        """Take a sample, append it to the stream, and write it to files unless these have failed lately."""
        layout = self._layout if writes else None
        if layout is not None:
            await self._prepare(layout)
        process = await asyncio.to_thread(process_figures)
        ts = self._broker.wall_clock()
        batches = await self._sample(ts, process)
        if self._stream is not None:
            for (table, _), batch in batches.items():
                for seconds in self._stream.append(table, batch.octets, ts):
                    await asyncio.sleep(seconds)
        if layout is not None:
            await self._write(layout, batches, ts)

    async def _sample(self, ts: int, process: Process) -> dict[tuple[str, str], _Batch]:
        """Return the rows that are due, by table and hour."""
        batches: dict[tuple[str, str], _Batch] = {}
        slices = self._broker.turn.slices
        slices.begin()
        until = time.monotonic() + STEP_SECONDS
        encode = self._encoder.encode_into
        hour = Layout.hour(ts)
        for row in self._rows.take(ts, process, self.lost):
            if row is not None:
                key = _TABLE_OF[type(row)], hour if row.ts == ts else Layout.hour(row.ts)
                batch = batches.get(key)
                if batch is None:
                    batch = batches[key] = _Batch()
                octets = batch.octets
                end = len(octets)
                try:
                    encode(row, octets, -1)
                except UnicodeEncodeError:
                    del octets[end:]
                    encode(_readable(msgspec.to_builtins(row)), octets, -1)
                octets += b"\n"
                batch.rows += 1
            if time.monotonic() >= until:
                slices.end("export sample", "")
                await asyncio.sleep(0)
                slices.begin()
                until = time.monotonic() + STEP_SECONDS
        slices.end("export sample", "")
        return batches

    async def _write(self, layout: Layout, batches: dict[tuple[str, str], _Batch], ts: int) -> None:
        """Write the rows of a round to files."""
        try:
            for (table, hour), batch in list(batches.items()):
                await self._append(layout, table, hour, ts, batch)
                del batches[table, hour]
        except OSError:
            self._lost += sum([batch.rows for batch in batches.values()])
            raise
        if self.failed:
            self.failed = False
            log.info("export resumed: lost_rows=%d", self.lost)
            self._broker.context.note("export_gap", "", "", lost=str(self.lost))
        await self._finish([name for name, file in self._files.items() if self._is_full(file, ts)])
        if self._settings.retention and time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY_SECONDS
            last = layout.day(ts - self._settings.retention * 1000 - _DAY_MS)
            await asyncio.to_thread(remove_old, layout, last)

    async def _append(self, layout: Layout, table: str, hour: str, ts: int, batch: _Batch) -> None:
        file = self._files.get(table)
        if file is not None and file.hour != hour:
            await self._finish([table])
            file = None
        if file is None:
            self._number += 1
            path = layout.unfinished(table, hour, ts, self._number)
            await aiofiles.os.makedirs(path.parent, exist_ok=True)
            opened = await aiofiles.open(path, "wb", buffering=0)
            file = self._files[table] = _File(path, opened, hour, ts)
        left = memoryview(batch.octets)
        while left:
            left = left[await file.file.write(left) :]
        file.size += len(batch.octets)
        file.rows += batch.rows

    def _is_full(self, file: _File, ts: int) -> bool:
        """Return whether a file is old or large enough to be finished; always if the clock was set back."""
        settings = self._settings
        is_young = 0 <= ts - file.since < settings.rotate_interval * 1000
        return not is_young or file.size >= settings.rotate_size

    async def _finish(self, tables: Iterable[str]) -> None:
        for table in tables:
            file = self._files.pop(table)
            try:
                await file.file.close()
                await aiofiles.os.rename(file.path, finished_name(file.path))
            except OSError:
                self._lost += file.rows
                raise

    async def _give_up(self) -> None:
        """Finish files as far as possible, without a row that may have been written partially."""
        files, self._files = self._files, {}
        for file in files.values():
            try:
                await file.file.truncate(file.size)
                await file.file.close()
                if file.rows:
                    await aiofiles.os.rename(file.path, finished_name(file.path))
                else:
                    await aiofiles.os.unlink(file.path)
            except OSError:
                self._lost += file.rows
        self._unlock()


def _readable(value: Any) -> Any:
    """Remove bytes that are not valid UTF-8 from properties sent by a client."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_readable(name): _readable(each) for name, each in value.items()}
    return value


# -- in threads ------------------------------------------------------------------------------------------------------


def lock_folders(layout: Layout) -> int:
    """Lock the folders of this node as long as the returned descriptor is open.

    Raises OSError: another process holds the lock, or nothing can be written there.
    """
    layout.directory.mkdir(parents=True, exist_ok=True)
    name = layout.directory / f".{layout.node_folder}.lock"
    file = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise BlockingIOError(
            errno.EWOULDBLOCK, "directory in use by another broker with this node name", str(name)
        ) from None
    except OSError as error:
        if error.errno not in {errno.ENOLCK, errno.ENOTSUP}:  # a file system without locks
            os.close(file)
            raise
    return file


def recover(layout: Layout) -> None:
    """Finish the files that an earlier run has left, as far as their rows are complete."""
    for table in _TABLE_OF.values():
        for path in list(layout.directory.glob(f"{table}/dt=*/hour=*/{layout.node_folder}/.*{UNFINISHED}")):
            octets = path.read_bytes()
            whole = octets.rfind(b"\n") + 1
            if not whole:
                path.unlink()
                continue
            os.truncate(path, whole)
            path.rename(finished_name(path))


def remove_old(layout: Layout, day: str) -> None:
    """Remove the files of this node of that day or of earlier ones, and folders that become empty."""
    for table in _TABLE_OF.values():
        for old in list(layout.directory.glob(f"{table}/dt=*")):
            if old.name > day:
                continue
            for folder in list(old.glob(f"hour=*/{layout.node_folder}")):
                for path in list(folder.glob("*.jsonl")):  # leave other files alone
                    path.unlink(missing_ok=True)
                for empty in (folder, folder.parent):
                    with contextlib.suppress(OSError):
                        empty.rmdir()
            with contextlib.suppress(OSError):
                old.rmdir()

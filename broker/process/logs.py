"""Logging: outputs, line formats, and the rotation of files (driver: files and streams).

Everything logs through the standard library under the name ``leveret`` and its children, which are RabbitMQ's
categories: ``leveret.connection``, ``leveret.channel``, ``leveret.queue``. Lines have RabbitMQ's format::

    2026-11-20 12:00:00.000000+00:00 [info] <4711> accepting AMQP connection ...

Text in a line may come from a client (a queue name, a user name), so control and format characters are
escaped: no client can forge a line, or make one look like another. Writing never raises: a full disk or a
closed pipe must not stop the broker.

As in RabbitMQ a file is rotated by size or by time, whichever comes first: `broker.log` is renamed to `broker.log.0`,
`.0` to `.1` and so on, with `.gz` appended if it is compressed; the oldest is removed.

The last lines are kept in memory, for the API. There is one such log of a process, as there is one `leveret` logger.
It is kept while a server shows it (`begin`, `end`),
has what the configured levels let through from info on, and takes some megabytes at most.
"""

import contextlib
import gzip
import io
import logging
import os
import re
import shutil
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TextIO

import msgspec

LOGGER_NAME: Final = "leveret"

# RabbitMQ's levels on the scale of the standard library.
LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": 25,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": 60,
    "emergency": 70,
    "none": 100,
}
CATEGORIES: Final = (  # parts of the broker whose lines have a logger of their own, below `LOGGER_NAME`
    *("channel", "connection", "definitions", "export", "http", "management"),
    *("queue", "replication", "shovel", "storage", "tls"),
)
_NAMES: Final = {number: name for name, number in LEVELS.items()}

# Characters that are invisible or change how the following text is displayed: C0 and C1 controls and DEL, Unicode's
# line separators, and its format characters (category Cf), which hide or reverse text. A test compares this list with
# Unicode's table.
_UNSHOWN: Final = (
    (0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x600, 0x605), (0x61C, 0x61C), (0x6DD, 0x6DD), (0x70F, 0x70F),
    (0x890, 0x891), (0x8E2, 0x8E2), (0x180E, 0x180E), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x206F),
    (0xFEFF, 0xFEFF), (0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F),
    (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE007F),
)  # fmt: skip
_CODES: Final = [code for first, last in _UNSHOWN for code in range(first, last + 1)]


def _escape(code: int) -> str:
    if code <= 0xFF:  # noqa: PLR2004 - two hex digits
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - four hex digits


_ESCAPES: Final = {code: _escape(code) for code in _CODES} | {0x09: "\\t", 0x0A: "\\n", 0x0D: "\\r"}

# JSON escapes of the same characters, as one or two UTF-16 code units; the encoder itself escapes the C0 controls.
JSON_ESCAPES: Final = {
    code: "".join(f"\\u{unit}" for unit in re.findall("....", chr(code).encode("utf-16-be").hex()))
    for code in _CODES
    if code > 0x1F  # noqa: PLR2004 - the last of C0
}


_WHEN = re.compile(
    r"\$(?:H(?P<minute>\d{1,2})|(?:W(?P<weekday>[0-6])|M(?P<day>\d{1,2}))?(?:D(?P<hour>\d{1,2}))?)"
)
_RETRY_SECONDS = 60.0  # seconds until the next attempt after a file could not be rotated


@dataclass(frozen=True, slots=True)
class When:
    """A recurring point in time; fields that are None match any value."""

    minute: int | None = None  # minute of every hour
    weekday: int | None = None  # day of the week; 0 is Sunday
    day: int | None = None  # day of the month
    hour: int = 0  # 0 to 23

    @classmethod
    def parsed(cls, text: str) -> "When":
        """Parse RabbitMQ's format: `$D0` is midnight, `$W0D23` Sunday at 23:00, `$M1D5` the first of a month at 5:00.

        `$H30` is half past each hour. Raises ValueError for anything else.
        """
        match = _WHEN.fullmatch(text)
        if match is None or text == "$":
            raise ValueError("is not a time such as $D0, $W0D23, $M1D0 or $H30")
        minute, weekday, day, hour = (None if part is None else int(part) for part in match.groups())
        if (minute or 0) > 59 or (hour or 0) > 23 or not 1 <= (1 if day is None else day) <= 31:  # noqa: PLR2004
            raise ValueError("has a number out of range")
        return cls(minute, weekday, day, hour or 0)

    def following(self, now: datetime) -> datetime:
        """Return the next such time after `now`."""
        at = now.replace(minute=self.minute or 0, second=0, microsecond=0)
        while at <= now or not self._includes(at):
            at += timedelta(hours=1)
        return at

    def _includes(self, at: datetime) -> bool:
        if self.minute is not None:
            return True
        return (
            at.hour == self.hour
            and self.weekday in (None, at.isoweekday() % 7)
            and self.day in (None, at.day)
        )


@dataclass(frozen=True, slots=True)
class Rotation:
    """Settings of log rotation; with the defaults files are never rotated."""

    size: int = 0  # size in bytes from which a file is rotated; 0 for no limit
    when: str = ""  # times at which a file is rotated; '' for never (see `When.parsed`)
    count: int = 5  # number of rotated files to keep
    compress: bool = False  # true to compress rotated files


def put_aside(file: Path, count: int) -> None:
    """Rotate a log file: rename it and the rotated ones; at most `count` of these are kept. Raises OSError."""
    for suffix in ("", ".gz"):
        _old(file, max(0, count - 1), suffix).unlink(missing_ok=True)
    for number in range(count - 2, -1, -1):
        for suffix in ("", ".gz"):
            old = _old(file, number, suffix)
            if old.exists():
                old.rename(_old(file, number + 1, suffix))
    if count:
        file.rename(_old(file, 0))
    else:
        file.unlink()


def compress(file: Path) -> None:
    """Compress the rotated files that are not compressed yet. Slow; the files must not be renamed meanwhile."""
    for old in file.parent.glob(f"{file.name}.*"):
        if old.suffix[1:].isdecimal():
            packed = old.with_name(f"{old.name}.gz")
            with old.open("rb") as source, gzip.open(packed, "wb") as target:
                shutil.copyfileobj(source, target)
            packed.chmod(old.stat().st_mode & 0o777)
            old.unlink()


def _old(file: Path, number: int, suffix: str = "") -> Path:
    return file.with_name(f"{file.name}.{number}{suffix}")


class Output(msgspec.Struct, frozen=True):
    """One log output: a stream or a file, never both."""

    level: str = "info"
    formatter: Literal["plaintext", "json"] = "plaintext"
    stream: TextIO | None = None
    file: Path | None = None
    rotation: Rotation = Rotation()


def escaped(text: str) -> str:
    """Escape the characters of ``text`` that end a line, are invisible or change how others are displayed."""
    return text.translate(_ESCAPES)


def message_of(record: logging.LogRecord) -> str:
    """Return the text of a record, also of one whose arguments do not fit."""
    try:
        return record.getMessage()
    except (TypeError, ValueError):
        return f"{record.msg!s} {record.args!r}"


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(sep=" ", timespec="microseconds")


def level_name(record: logging.LogRecord) -> str:
    """Return RabbitMQ's name of the level of a record."""
    return _NAMES.get(record.levelno) or record.levelname.lower()


class PlainFormatter(logging.Formatter):
    """RabbitMQ's plain text format; a traceback follows line by line, each with the same prefix."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line or lines, without the final newline."""
        head = f"{_time(record)} [{level_name(record)}] <{record.process}> "
        line = head + escaped(message_of(record))
        if not record.exc_info:
            return line
        trace = self.formatException(record.exc_info).split("\n")
        return "\n".join((line, *(head + escaped(part) for part in trace)))


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with RabbitMQ's keys."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object."""
        message = message_of(record)
        if record.exc_info:
            message += "\n" + self.formatException(record.exc_info)
        entry = {
            "time": _time(record),
            "level": level_name(record),
            # JSON cannot represent the lone surrogates that stand for bytes that are not UTF-8.
            "msg": message.encode("utf-8", "backslashreplace").decode(),
            "pid": str(record.process),
            "domain": record.name,
            "file": record.filename,
            "line": record.lineno,
            "mfa": record.funcName,
        }
        return msgspec.json.encode(entry).decode().translate(JSON_ESCAPES)


class Unfailing(logging.Handler):
    """Part of the handlers of the broker: a line that cannot be written is dropped."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the standard library's name
        """Drop the line; logging must never stop the broker."""

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other threads from the handler meanwhile."""
        self.acquire()
        try:
            yield
        finally:
            self.release()


class _StreamHandler(Unfailing, logging.StreamHandler[TextIO]):
    pass


class RotatedFile(Unfailing, logging.FileHandler):
    """Writes to a file that is rotated, here or by another program (logrotate)."""

    def __init__(self, file: Path, rotation: Rotation) -> None:
        super().__init__(file, encoding="utf-8", errors="backslashreplace")
        self._file = file
        self._rotation = rotation
        self._when = When.parsed(rotation.when) if rotation.when else None
        self._due = self._following()
        self._retry = 0.0  # time before which a failed rotation is not retried
        self._compressing: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line; rotate the file first if that is due."""
        self._rotate_if_due(record.created)
        super().emit(record)

    def write_line(self, line: bytes) -> None:
        """Write a line as it is, all of it or nothing; rotate the file first if that is due. Raises OSError."""
        with self.locked():
            self._rotate_if_due(time.time())
            if self.stream is None:
                self.stream = self._open()
            number = self.stream.fileno()
            before, octets = os.fstat(number).st_size, line + b"\n"
            try:
                while octets:
                    octets = octets[os.write(number, octets) :]
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(number, before)
                raise

    def _rotate_if_due(self, now: float) -> None:
        if self._is_due(now):
            try:
                self._rotate()
            except OSError:  # the file grows until the next attempt
                self._retry = now + _RETRY_SECONDS

    def _is_due(self, now: float) -> bool:
        if self._compressing is not None:
            if self._compressing.is_alive():  # files must not be renamed meanwhile
                return False
            self._compressing = None
        if now < self._retry:
            return False
        size = self._rotation.size
        if size and self.stream is not None and os.fstat(self.stream.fileno()).st_size >= size:
            return True
        return self._when is not None and now >= self._due

    def _following(self) -> float:
        """Return the next rotation time in seconds since the epoch, according to local time, as in RabbitMQ."""
        now = datetime.now().astimezone()
        return 0.0 if self._when is None else self._when.following(now).timestamp()

    def _rotate(self) -> None:
        self._due = self._following()
        put_aside(self._file, self._rotation.count)
        self.reopen()
        if self._rotation.compress and self._rotation.count:
            self._compressing = threading.Thread(target=self._compress, name="leveret-log", daemon=True)
            self._compressing.start()

    def _compress(self) -> None:
        with contextlib.suppress(OSError):  # such as a full disk: the file stays uncompressed
            compress(self._file)

    def reopen(self) -> None:
        """Continue in a new file of the same name. Raises OSError if it cannot be opened; the old file is then kept."""
        replacement = self._open()
        with self.locked():
            old, self.stream = self.stream, replacement
        if old is not None:
            old.close()


class Logs:
    """The log outputs of this process, from ``configure`` to ``close``."""

    def __init__(self, logger: logging.Logger, handlers: Sequence[logging.Handler]) -> None:
        self._logger = logger
        self._handlers = tuple(handlers)
        self._files = tuple(handler for handler in handlers if isinstance(handler, RotatedFile))
        self._others: list[Any] = []  # `AuditWriter`s, which import this module

    def add(self, other: Any) -> None:
        """Have another log file reopened together with these."""
        if other is not None:
            self._others.append(other)

    def remove(self, other: Any) -> None:
        """Reopen another log file no more: it is closed."""
        self._others.remove(other)

    def reopen(self) -> None:
        """Reopen the files, for example after logrotate moved them. A failure is logged, and the old file kept."""
        for handler in self._files:
            try:
                handler.reopen()
            except OSError as error:
                self._logger.error("cannot reopen log file %s: %s", handler.baseFilename, error.strerror)  # noqa: TRY400
        for other in self._others:
            other.reopen()

    def close(self) -> None:
        """Flush and detach the handlers; may be called twice."""
        for handler in self._handlers:
            self._logger.removeHandler(handler)
            # Lines that could not be written because of a full disk or a closed pipe are lost here too.
            with contextlib.suppress(OSError, ValueError):
                handler.close()


def configure(outputs: Sequence[Output], levels: Mapping[str, str], name: str = LOGGER_NAME) -> Logs:
    """Attach ``outputs`` to the logger ``name``; ``levels`` has the minimum level per category.

    The category ``default`` is the logger itself. Directories of log files are created. Raises OSError if a
    file cannot be opened; nothing is changed then.
    """
    handlers = [_handler(output) for output in outputs]
    logger = logging.getLogger(name)
    logger.propagate = False
    least = min((handler.level for handler in handlers), default=LEVELS["none"])
    logger.setLevel(max(least, LEVELS[levels.get("default", "debug")]))
    for category, level in levels.items():
        if category != "default":
            logging.getLogger(f"{name}.{category}").setLevel(LEVELS[level])
    for handler in handlers:
        logger.addHandler(handler)
    return Logs(logger, handlers)


def _handler(output: Output) -> logging.Handler:
    handler: logging.Handler
    if output.file is not None:
        output.file.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatedFile(output.file, output.rotation)
    else:
        stream = sys.stdout if output.stream is None else output.stream
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        handler = _StreamHandler(stream)
    handler.setLevel(LEVELS[output.level])
    handler.setFormatter(JsonFormatter() if output.formatter == "json" else PlainFormatter())
    return handler


KEPT: Final = 1000  # maximum number of lines
MOST_TEXT: Final = 4000  # maximum number of characters of a line; the rest is left out
_CREDENTIALS: Final = re.compile(r"://[^\s/@]*:[^\s/@]*@")  # user and password in a URI


class LogLine(NamedTuple):
    """A line of the log."""

    number: int  # 1 for the first since the process has begun, and so on
    time: int  # when, in milliseconds since the epoch
    level: str  # RabbitMQ's name of the level
    category: str  # the part of the broker, such as `connection`; '' for none
    text: str  # the message without control characters; a traceback follows in lines of its own


class Found(NamedTuple):
    """Lines that were asked for."""

    lines: Sequence[LogLine]  # the lines, the oldest first
    last: int  # number of the newest line that there is, of any level: what to ask after next
    missed: int  # number of lines of any level that are no longer kept, of those that were asked for


class RecentLog(Unfailing):
    """Keeps the last lines of the logger `name`, at most `kept`."""

    def __init__(self, name: str = LOGGER_NAME, kept: int = KEPT) -> None:
        super().__init__(logging.INFO)
        self._logger = logging.getLogger(name)
        self._lines: deque[LogLine] = deque(maxlen=kept)
        self._last = 0
        self._users = 0

    def begin(self) -> None:
        """Keep lines from now on, until as many calls of `end`."""
        with self.locked():
            self._users += 1
            if self._users == 1:
                self._logger.addHandler(self)

    def end(self) -> None:
        """Keep no further lines, once the last user has ended."""
        with self.locked():
            self._users -= 1
            if not self._users:
                self._logger.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        text = escaped(message_of(record)[:MOST_TEXT])
        if record.exc_info and record.exc_info[0] is not None:
            trace = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n").split("\n")
            text = "\n".join((text, *map(escaped, trace)))
        text = _CREDENTIALS.sub("://***@", text[:MOST_TEXT].encode("utf-8", "backslashreplace").decode())
        category = record.name.partition(".")[2]
        self._last += 1
        self._lines.append(
            LogLine(self._last, round(record.created * 1000), level_name(record), category, text)
        )

    def find(self, *, after: int | None = None, level: str = "info", count: int = KEPT) -> Found:
        """Return the newest lines of a level and above, at most `count`; with `after` those behind that number.

        A number that is too high, as after a restart of the broker, counts as none.
        """
        with self.locked():
            lines, last = list(self._lines), self._last
        known = after if after is not None and after <= last else None
        least = LEVELS[level]
        found = [
            line
            for line in lines
            if line.number > (known or 0) and LEVELS.get(line.level, logging.INFO) >= least
        ]
        first = lines[0].number if lines else last + 1
        missed = 0 if known is None else max(0, first - known - 1)
        return Found(found[-count:], last, missed)


RECENT: Final = RecentLog()  # the log of this process

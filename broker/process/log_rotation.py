"""Log rotation: schedule and names of rotated files (pure, except for renaming on disk).

As in RabbitMQ: by size or by time, whichever comes first, `broker.log` is renamed to `broker.log.0`, `.0` to `.1` and
so on, with `.gz` appended if it is compressed; the oldest is removed.
"""

import gzip
import re
import shutil
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

_WHEN = re.compile(
    r"\$(?:H(?P<minute>\d{1,2})|(?:W(?P<weekday>[0-6])|M(?P<day>\d{1,2}))?(?:D(?P<hour>\d{1,2}))?)"
)


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

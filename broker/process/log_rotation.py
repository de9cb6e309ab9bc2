"""When a log file is put aside, and under which names the old ones are kept (pure, but for the names on disk).

As RabbitMQ does it: by size or by time, `broker.log` becomes `broker.log.0`, what was `.0` becomes `.1` and so on, with
`.gz` behind it where it is compressed; the oldest is removed.
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
    """Points in time that come again and again; what is None does not matter.

    Attributes:
        minute: of every hour.
        weekday: 0 is Sunday.
        day: of the month.
        hour: 0 to 23.

    """

    minute: int | None = None
    weekday: int | None = None
    day: int | None = None
    hour: int = 0

    @classmethod
    def parsed(cls, text: str) -> "When":
        """Read RabbitMQ's form: `$D0` is midnight, `$W0D23` Sunday at 23:00, `$M1D5` the first of a month at 5:00.

        `$H30` is half past each hour. Raises ValueError for anything else.
        """
        match = _WHEN.fullmatch(text)
        if match is None or text == "$":
            raise ValueError("is not a time such as $D0, $W0D23, $M1D0 or $H30")
        minute, weekday, day, hour = (None if part is None else int(part) for part in match.groups())
        if (minute or 0) > 59 or (hour or 0) > 23 or not 1 <= (1 if day is None else day) <= 31:  # noqa: PLR2004
            raise ValueError("has a number that no clock shows")
        return cls(minute, weekday, day, hour or 0)

    def following(self, now: datetime) -> datetime:
        """The next such time after `now`."""
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
    """What is asked for; the defaults rotate never.

    Attributes:
        size: octets from which a file is put aside; 0 for any number.
        when: or times at which it is; '' for never (see `When.parsed`).
        count: old files that are kept.
        compress: whether they are.

    """

    size: int = 0
    when: str = ""
    count: int = 5
    compress: bool = False


def put_aside(file: Path, count: int) -> None:
    """Give a log file and the old ones their next names; at most `count` old ones stay. Raises OSError."""
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
    """Compress the old files of a log that are not; takes its time. They must not get other names meanwhile."""
    for old in file.parent.glob(f"{file.name}.*"):
        if old.suffix[1:].isdecimal():
            packed = old.with_name(f"{old.name}.gz")
            with old.open("rb") as source, gzip.open(packed, "wb") as target:
                shutil.copyfileobj(source, target)
            packed.chmod(old.stat().st_mode & 0o777)
            old.unlink()


def _old(file: Path, number: int, suffix: str = "") -> Path:
    return file.with_name(f"{file.name}.{number}{suffix}")

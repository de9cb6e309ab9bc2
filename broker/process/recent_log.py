"""The last lines of the log, in memory, for those who look at the broker through its API.

There is one log of a process, as there is one `leveret` logger. It is kept while a server shows it (`begin`, `end`),
has what the configured levels let through from info on, and takes some megabytes at most.
"""

import logging
import re
import traceback
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from leveret.broker.process.logs import LEVELS, LOGGER_NAME, Unfailing, escaped, level_name, message_of

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

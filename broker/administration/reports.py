"""Reports that `leveret analyze` has written, for those who look at the broker through its API.

A report is a file `report.html` in a folder of its own. The folders may be written to by others than the broker, so
nothing that is found there is trusted: links are not followed, neither for a folder nor for the file, and what is not a
regular file, or too large, is not read.
"""

import contextlib
import html
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = "report.html"
MOST_REPORTS: Final = 200
MOST_OCTETS: Final = 16 << 20
"""Maximum size of a report in bytes; those of the analysis have a few hundred kilobytes."""
_MOST_ENTRIES: Final = 5000
"""Entries of the directory that are looked at."""
_HEAD: Final = 4096
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)
_TITLE: Final = re.compile(rb"<title>([^<]{1,200})</title>")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Report(NamedTuple):
    """A report.

    Attributes:
        name: name of its folder.
        title: its title; the name if it has none.
        time: when it was written, in milliseconds since the epoch.
        size: bytes.

    """

    name: str
    title: str
    time: int
    size: int


def find_reports(directory: Path) -> list[Report]:
    """Return the reports in a directory, the newest first; [] if there is no such directory. It reads from disk."""
    found: list[Report] = []
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for _, entry in zip(range(_MOST_ENTRIES), entries, strict=False):
            if _NAME.fullmatch(entry.name) is None:
                continue
            with contextlib.suppress(OSError), _opened(directory, entry.name) as file:
                status = os.fstat(file)
                title = _TITLE.search(os.read(file, _HEAD))
                text = html.unescape(title[1].decode("utf-8", "replace")) if title else entry.name
                found.append(Report(entry.name, text, round(status.st_mtime * 1000), status.st_size))
    return sorted(found, key=lambda report: (-report.time, report.name))[:MOST_REPORTS]


def read_report(directory: Path, name: str) -> bytes | None:
    """Return the page of a report; None if there is none of this name. It reads from disk."""
    if _NAME.fullmatch(name) is None:
        return None
    octets = bytearray()
    try:
        with _opened(directory, name) as file:
            while len(octets) <= MOST_OCTETS and (piece := os.read(file, 1 << 20)):
                octets += piece
    except OSError:
        return None
    return bytes(octets) if len(octets) <= MOST_OCTETS else None


@contextlib.contextmanager
def _opened(directory: Path, name: str) -> Iterator[int]:
    """Open the file of a report; raises OSError, also for what is none."""
    with contextlib.ExitStack() as open_ones:
        base = os.open(directory, _FOLDER & ~os.O_NOFOLLOW)
        open_ones.callback(os.close, base)
        folder = os.open(name, _FOLDER, dir_fd=base)
        open_ones.callback(os.close, folder)
        file = os.open(FILE, _REGULAR, dir_fd=folder)
        open_ones.callback(os.close, file)
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MOST_OCTETS:
            message = "no report"
            raise OSError(message)
        yield file

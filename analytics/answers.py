"""The note of an output's last answer: the same question about unchanged files needs no Spark (driver: files)."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from leveret.analytics.asked import Asked
from leveret.analytics.locations import files
from leveret.analytics.names import ALL

NOTE: Final = ".answered.json"
_ROWS: Final = frozenset({".json", ".jsonl", ".parquet"})


def question(asked: Asked) -> str | None:
    """Return what a request and its answer depend on: its words, its input's files, and those of this program.

    None if files of any are not on this machine.
    """
    program = _state(Path(__file__).parent, lambda path: path.suffix != ".pyc")
    if program is None or not isinstance(asked.directory, Path) or not isinstance(asked.output, Path):
        return None
    words = (tuple(asked.names), str(asked.directory.resolve()), asked.scope, asked.objective)
    return f"{words} {_state(asked.directory, lambda path: path.suffix in _ROWS)} {program}"


def is_answered(asked: Asked) -> bool:
    """Return whether the output has the answer to a request, as it was written."""
    if not isinstance(asked.output, Path):
        return False
    try:
        noted = json.loads((asked.output / NOTE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(noted == [question(asked), _state(asked.output)])


def note(asked: Asked, question: str | None) -> None:
    """Note that the output has the answer to a request. `question`: that of the request, before it was read."""
    if question is not None and isinstance(asked.output, Path):
        unfinished = asked.output / f"{NOTE}.{os.getpid()}"
        unfinished.write_text(json.dumps([question, _state(asked.output)]), encoding="utf-8")
        unfinished.replace(asked.output / NOTE)


def page(asked: Asked) -> str:
    """Return the page to begin with."""
    return f"{asked.output}/{'index' if {ALL, 'overview'} & set(asked.names) else f'{asked.names[-1]}/report'}.html"


def _state(folder: Path, is_wanted: Callable[[Path], bool] = lambda _: True) -> str | None:
    """Return a digest of the names, sizes and times of the finished files below a directory; None if it has none."""
    found = sorted(
        (str(path.relative_to(folder)), status.st_size, status.st_mtime_ns)
        for path, status in files(folder)
        if not path.name.startswith((".", "_")) and is_wanted(path)
    )
    return hashlib.sha256(repr(found).encode("utf-8", "surrogateescape")).hexdigest() if found else None

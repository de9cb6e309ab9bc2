"""Directory layout of the export: a folder for each table, day, hour and node, as readers of partitions expect."""

import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

HOUR = "dt=%Y-%m-%d/hour=%H"
UNFINISHED = ".tmp"
"""Suffix of unfinished files; their names begin with a dot, so that readers ignore them."""
FINISHED = ".jsonl"


class Names(NamedTuple):
    """The paths of a file: while it is written, and afterwards."""

    unfinished: Path
    finished: Path


class Layout:
    """The paths of one broker's files.

    Args:
        directory: the root directory, which may contain files of other nodes as well.
        node: the broker's name.

    """

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

    def names(self, table: str, hour: str, ts: int, number: int) -> Names:
        """Return the paths of a file that begins at `ts`, in an hour's folders; `ts` and number are unique."""
        name = f"{table}-{ts}-{number}{FINISHED}"
        finished = self.directory / table / hour / self.node_folder / name
        return Names(finished.with_name(f".{name}{UNFINISHED}"), finished)


def finished_name(unfinished: Path) -> Path:
    """Return the final name for the path of an unfinished file."""
    return unfinished.with_name(unfinished.name.removeprefix(".").removesuffix(UNFINISHED))

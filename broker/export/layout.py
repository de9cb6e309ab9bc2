"""Where the files of the export lie: a folder for each table, day, hour and node, as readers of partitions want it."""

import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

HOUR = "dt=%Y-%m-%d/hour=%H"
UNFINISHED = ".tmp"
"""How the names of files end that are being written; they begin with a dot, so that readers overlook them."""
FINISHED = ".jsonl"


class Names(NamedTuple):
    """A file: where it is while it is written, and afterwards."""

    unfinished: Path
    finished: Path


class Layout:
    """The places of one broker's files.

    Args:
        directory: where all of them are, those of other nodes perhaps as well.
        node: the broker's name.

    """

    def __init__(self, directory: Path, node: str) -> None:
        self.directory = directory
        self.node_folder = f"node={quote(node, safe='@')}"

    @staticmethod
    def hour(ts: int) -> str:
        """The folders of a time (epoch ms), UTC."""
        return time.strftime(HOUR, time.gmtime(ts / 1000))

    @staticmethod
    def day(ts: float) -> str:
        """The folder of the day; the names of days are in the order of days."""
        return time.strftime("dt=%Y-%m-%d", time.gmtime(ts / 1000))

    def names(self, table: str, hour: str, ts: int, number: int) -> Names:
        """The names of a file that begins at `ts`, in the folders of an hour; no two have the same `ts` and number."""
        name = f"{table}-{ts}-{number}{FINISHED}"
        finished = self.directory / table / hour / self.node_folder / name
        return Names(finished.with_name(f".{name}{UNFINISHED}"), finished)


def finished_name(unfinished: Path) -> Path:
    """What a file will be called that has the name of one that is being written."""
    return unfinished.with_name(unfinished.name.removeprefix(".").removesuffix(UNFINISHED))

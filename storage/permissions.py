"""Who may read the data: the owner of the process alone.

Messages, definitions and hashes of passwords lie in a data directory as they are, so its directories have the mode
0700 and its files 0600. What an earlier version made is set right when the data are opened.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

log = logging.getLogger("leveret.storage")

DIRECTORY = 0o700
FILE = 0o600
_OTHERS = 0o077


def tighten(data_dir: Path) -> None:
    """Take from the group and from others what they may do with the data, and log it.

    What belongs to another user than that of the process is left as it is, which is logged, too.
    """
    changed = refused = 0
    for path, mode in _entries(data_dir):
        try:
            if path.stat(follow_symlinks=False).st_mode & _OTHERS:
                path.chmod(mode)
                changed += 1
        except FileNotFoundError:
            continue
        except OSError:
            refused += 1
    if changed:
        text = "storage: %d files and directories in %s could be read by others; mended"
        log.warning(text, changed, data_dir)
    if refused:
        text = "storage: %d files and directories in %s may be read by others and belong to another user: chmod them"
        log.warning(text, refused, data_dir)


def _entries(data_dir: Path) -> Iterator[tuple[Path, int]]:
    """What the store has made in a data directory, with the modes it should have; symbolic links in it are left out."""
    data_dir = data_dir.resolve()
    yield data_dir, DIRECTORY
    yield data_dir / "leveret.lock", FILE
    for name in ("store", "blobs"):
        directory = data_dir / name
        if directory.is_symlink() or not directory.is_dir():
            continue
        yield directory, DIRECTORY
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), FILE

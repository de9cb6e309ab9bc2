"""File permissions of the data directory: accessible to the owner of the process only.

Messages, definitions and password hashes are stored unencrypted, so the directories have mode 0700 and the files 0600.
Modes set by an earlier version are corrected when the data is opened.
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
    """Remove group and other permissions from the data, and log it.

    Files of another user than that of the process are left unchanged, which is logged, too.
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
        text = "storage: %d files and directories in %s were accessible to other users; permissions corrected"
        log.warning(text, changed, data_dir)
    if refused:
        log.warning(
            "storage: %d files and directories in %s are accessible to other users and have another owner: "
            "run `chmod go=` on them",
            refused,
            data_dir,
        )


def _entries(data_dir: Path) -> Iterator[tuple[Path, int]]:
    """Yield the store's directories and files with their intended modes; symbolic links are left out."""
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

"""Folders for Unix sockets, whose addresses may be little longer than 100 octets: a machine's TMPDIR may be longer alone."""

import os
import tempfile
from pathlib import Path

SHORT = 50
"""Octets of the path of the folder for temporary files below which everything in a folder of ours fits."""
ALWAYS = "/tmp"


def short_parent() -> str:
    """Return the folder for temporary files, or `/tmp` where that has a long path, or as root is closed to other users."""
    usual = Path(tempfile.gettempdir())
    is_open = os.geteuid() or all(each.stat().st_mode & 0o001 for each in (usual, *usual.parents))
    return str(usual) if is_open and len(os.fsencode(usual)) < SHORT else ALWAYS


def servers_folder(prefix: str) -> Path:
    """Return a new folder with a short path, which all users may enter: PostgreSQL does not run as root."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=short_parent()))
    made.chmod(0o755)
    return made

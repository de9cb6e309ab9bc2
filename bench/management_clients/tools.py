"""Runs the tools that fetch and build clients."""

import shutil
import subprocess
from pathlib import Path

LIMIT = 3600
"""Maximum seconds of a build."""


class MissingError(Exception):
    """Raised when a client cannot be had here; the text says why."""


def run(*words: str, cwd: Path) -> str:
    """Run a tool, and return what it has printed.

    Raises:
        MissingError: it is not installed, or has failed.
    """
    if shutil.which(words[0]) is None:
        message = f"{words[0]} is not installed"
        raise MissingError(message)
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, timeout=LIMIT, check=False)
    if done.returncode:
        message = f"{' '.join(words[:3])} failed: {(done.stderr or done.stdout).strip()[-500:]}"
        raise MissingError(message)
    return done.stdout

"""Questions to git about this checkout, which may be an unpacked archive, on a machine without git."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def git(*words: str) -> str | None:
    """Return git's output, or None where there is no git, no repository, or not all of its history."""
    try:
        done = subprocess.run(
            ["git", *words], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout if done.returncode == 0 else None

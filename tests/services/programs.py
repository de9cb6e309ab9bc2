"""Programs that only one campaign needs: each is installed into a folder of its own, the first time."""

import subprocess
import sys
import venv
from pathlib import Path

SECONDS = 1800
"""Time to install one of them."""


def installed(folder: Path, name: str, *packages: str) -> Path:
    """Return a program of some packages, which are installed unless it is there; raises CalledProcessError."""
    program = folder / "bin" / name
    if not program.exists():
        venv.create(folder, with_pip=False, symlinks=True)
        pip = [sys.executable, "-m", "pip", "--python", str(program.with_name("python"))]
        subprocess.run([*pip, "install", "--quiet", *packages], check=True, timeout=SECONDS)
    return program

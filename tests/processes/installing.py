"""Packages of this checkout, and environments that have them: what runs there has our sources nowhere in reach."""

import os
import sys
import venv
from pathlib import Path

from processes.commands import execute

ROOT = Path(__file__).parents[2]
PIP = ("--quiet", "--disable-pip-version-check")
OURS = ("PYTHON", "LEVERET_", "RABBITMQ_", "PYTEST_", "DJANGO_")
"""Beginnings of the names of variables that configure a broker, or that lead to the sources or to the tests."""


def environment() -> dict[str, str]:
    """Return the environment without such variables."""
    return {name: value for name, value in os.environ.items() if not name.startswith(OURS)}


def run(*command: object, cwd: Path, seconds: float = 50) -> str:
    """Return the output and the errors of a command that must succeed."""
    done = execute(command, cwd=cwd, env=environment(), timeout=seconds)

    assert 0 == done.returncode, done.stdout + done.stderr
    return done.stdout + done.stderr


def built(target: str, folder: Path, source: Path = ROOT) -> Path:
    """Return the `wheel` or the `sdist` of a source tree; the backend is run directly, so no network is needed."""
    run(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=source)
    (found,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return found


def installed(wheel: Path, folder: Path) -> Path:
    """Return the folder of commands of a fresh environment that has the wheel; dependencies come from the tests' own."""
    venv.create(folder, with_pip=False, symlinks=True)
    pip = (sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", *PIP)
    run(*pip, "--no-deps", "--no-index", "--force-reinstall", wheel, cwd=folder)
    (site,) = (folder / "lib").glob("python*/site-packages")
    found = [each for each in sys.path if each.endswith("site-packages")]
    (site / "dependencies.pth").write_text("".join(f"{each}\n" for each in found))
    return folder / "bin"

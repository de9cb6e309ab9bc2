"""Runs tests in a new directory with Debian: `make campaign NAME=platform ARGS="--python 3.15"`, or `ARGS="--machine arm64"`.

The tests are the selection of `.ci/run`, for ARM, which is emulated, `CORE`, or those that are named; then the wheel is
tried, which is installed there. Dependencies have the versions of `requirements/core.txt`, and are compiled where they
have no wheel. Needs root, debootstrap and indexes of packages; for ARM Debian's `qemu-user-static`.

Exit code 0: all pass. 1: some fail. 3: Debian or Debian's Python of that version cannot be had.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from services.debian import EMULATOR, SUITES, inside, made  # noqa: E402 - found by the line above

COMPILED: Final = {"3.15": ("lmdb",)}
"""Dependencies without a wheel for a version of Python, each of which `setup.py` builds."""
COMPILER: Final = ("gcc", "libc6-dev", "patch")
CORE: Final = (
    "tests/broker/amqp", "tests/exchanges/test_router.py", "tests/exchanges/test_topic.py",
    "tests/broker/channel/test_channel.py", "tests/broker/metadata/test_durability.py", "tests/confirm/test_channel_confirms.py",
    "tests/confirm/test_consumer_ack_damage.py", "tests/confirm/test_promise.py", "tests/exchanges/test_headers.py",
    "tests/storage/journal/test_journal.py", "tests/storage/store/test_environment.py",
)  # fmt: skip
"""Tests that an emulated processor runs in minutes."""
MISSING: Final = 3
GLIBC: Final = 36
"""That of Debian 12: wheels for it and for older ones are installed."""
PIP: Final = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def selection() -> list[str]:
    """Return the tests that `.ci/run` runs with other versions of Python."""
    (words,) = re.findall(
        r"^SELECTION=\((.*)\)$", (ROOT / ".ci/run").read_text(encoding="utf-8"), re.MULTILINE
    )
    return str(words).split()


def requirements(folder: Path, version: str) -> tuple[Path, Path]:
    """Return files with the requirements that have wheels for a version of Python, and with those that are compiled."""
    of_python = {
        "python_version": version,
        "python_full_version": f"{version}.0",
    }  # pip takes its own interpreter's
    rows: dict[bool, list[str]] = {False: [], True: []}
    for row in re.findall(
        r"^\w.*\n(?: .*\n)*", (ROOT / "requirements/core.txt").read_text(encoding="utf-8"), re.MULTILINE
    ):
        needed = Requirement(row.partition("\\")[0])
        if needed.marker is None or needed.marker.evaluate(of_python):
            rows[needed.name in COMPILED.get(version, ())].append(row)
    files = folder / "wheels.txt", folder / "compiled.txt"
    for file, chosen in zip(files, rows.values(), strict=True):
        file.write_text("".join(chosen), encoding="utf-8")
    return files


def install(root: Path, wheel: Path, version: str, machine: str | None) -> None:
    """Install the wheel and what the tests need into a directory with Debian."""
    # without dependencies: all are listed, and pip would choose those of its own interpreter
    where = ["--no-deps", "--no-compile", "--only-binary=:all:", f"--python-version={version}"]
    where += ["--target", str(root / "site")]
    if machine:
        where += [f"--platform=manylinux_2_{each}_aarch64" for each in range(GLIBC, 16, -1)]
    (root / "usr/lib/python3/dist-packages").mkdir(parents=True, exist_ok=True)
    (root / "usr/lib/python3/dist-packages/site.pth").write_text("/site\n", encoding="ascii")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheels, sources = requirements(folder, version)
        subprocess.run([*PIP, "install", *where, "--require-hashes", "-r", wheels], check=True)
        subprocess.run([*PIP, "install", *where, wheel], check=True)
        if version in COMPILED:
            subprocess.run([*PIP, "install", *where, "setuptools"], check=True)
            words = ["--no-deps", "--no-binary=:all:", "--require-hashes", "-r", sources, "--dest", folder]
            subprocess.run([*PIP, "download", *words], check=True)
        for archive in folder.glob("*.tar.gz"):
            with tarfile.open(archive) as opened:
                opened.extractall(folder, filter="data")
            build = f"cd /src/{archive.name.removesuffix('.tar.gz')} && python{version} setup.py -q build --build-lib /site"
            subprocess.run(inside(root, "sh", "-c", build, bound=folder), check=True)


def tried(root: Path, version: str, tests: list[str], *, emulated: bool) -> int:
    """Return 0 if the tests pass there, and the installed wheel can be used; else 1."""
    python = ("HOME=/tmp", "LANG=C.UTF-8", "PYTHONPYCACHEPREFIX=/compiled", f"python{version}")
    profile = "HYPOTHESIS_PROFILE=short" if emulated else "HYPOTHESIS_PROFILE=default"
    ran = 0
    for folder, words in (
        ("/src", ["-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "--dist", "loadfile", *tests]),
        ("/tmp", ["/src/tests/processes/tried_wheel.py"]),
    ):
        command = inside(root, profile, *python, *words, bound=ROOT, folder=folder, emulated=emulated)
        ran |= subprocess.run(command, check=False).returncode
    return int(ran != 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default="3.11", help="the version, such as 3.15")
    parser.add_argument("--machine", choices=["arm64"], help="the processor, if not that of this machine")
    parser.add_argument("tests", nargs="*", help="files and folders of tests")
    asked = parser.parse_args()
    version, emulated = asked.python, asked.machine is not None
    programs = ("debootstrap", *([str(EMULATOR)] if emulated else []))
    if os.geteuid() != 0 or not all(map(shutil.which, programs)):
        print(f"Python {version}: nothing is tested with it, which needs root and {' and '.join(programs)}")
        return MISSING
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "debian")
        packages = [f"python{version}"]
        if version in COMPILED:
            packages += [f"python{version}-dev", *COMPILER]
        try:
            made(root, SUITES.get(version, "sid"), packages, asked.machine)
        except subprocess.CalledProcessError:
            print(f"Python {version}: nothing is tested with it, Debian does not have it")
            return MISSING
        for each in ("src", "site"):
            (root / each).mkdir()
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], cwd=ROOT, check=True
        )
        (wheel,) = Path(folder).glob("*.whl")
        install(root, wheel, version, asked.machine)
        tests = asked.tests or (list(CORE) if emulated else selection())
        print(f"Python {version} of Debian {asked.machine or ''}: {' '.join(tests)}", flush=True)
        return tried(root, version, tests, emulated=emulated)


if __name__ == "__main__":
    sys.exit(main())

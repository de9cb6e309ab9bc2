"""Runs the tests with a secret that can be searched for, and searches what they leave (``make campaign NAME=canary``).

The project is copied into a fresh folder, with a random secret wherever tests, the defaults of the broker and clients have
a usual one (`planting.py`). Then the tests run there, with `ARGS` some of them, and keep their temporary folders: data,
logs, exports, what brokers print. At last all that is searched for the secret, as it is and in the usual encodings.

A test that is added to the copy writes the secret into its folder, and logs in with it: if that one is not found, or the
broker did not take it, the search has shown nothing.

Exit code 0: the secret is only where `ALLOWED` says. 1: it is elsewhere, too. 2: the control was not found, more than
`MOST_FAILURES` tests failed, or nothing could be run. The folder is kept and told.
"""

import argparse
import fnmatch
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from canary.planting import PlantingError, Word, chosen, plant  # noqa: E402
from canary.search import Find, forms, search  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CONTROL = "tests/test_planted_secret.py"
REPORT = "pytest.log"
"""Output of pytest, which has texts of the tests."""
CONTROL_FILE = "control-of-the-search"
CONTROL_TEXT = '''"""Writes the secret, and logs in with it."""

import base64

from conformance.wire import Client
from processes.running import Running, serving


def test_the_secret_is_left(tmp_path):
    """A file has it in a form that none has by accident; a broker takes it as the password of guest."""
    (tmp_path / "{file}").write_bytes(b"{file}: " + base64.b64encode(b"guest:{word}"))
    with serving(tmp_path) as running:
        Client(running.address).login().close_socket()
        running.wait_for("user 'guest' authenticated")
'''
ABOUT_THE_TREE = (
    "tests/canary", "tests/docs/test_commits.py", "tests/test_ci.py", "tests/test_docs.py", "tests/test_hot_files.py",
    "tests/test_layering.py", "tests/test_make.py", "tests/test_packaging.py", "tests/test_portability.py",
    "tests/test_requirements.py", "tests/covered", "tests/page",
)  # fmt: skip
"""Tests of the project's own files, which the copy changes, and those in a browser: left out unless `ARGS` names them."""
MOST_FAILURES = 0.01
"""Share of tests that may fail, which compare the text of a secret, or its hash, with the usual one."""


class Allowed(NamedTuple):
    """A place in which the secret may be.

    Attributes:
        path: pattern of the path, below the folder of one test if it begins with `*/`.
        before: what has to be right before the secret, as a pattern; "" for anything.
        why: the reason.

    """

    path: str
    before: bytes
    why: str


ALLOWED = (
    Allowed(
        "tests/*/test_sec_26_*/a.conf", rb"s3cret-canary.*", "the configuration that the test has written"
    ),
    Allowed("tests/*/test_problems_show_no_password*/a.conf", rb"hunter2.*",
            "the configuration that the test has written"),
    Allowed("tests/*/test_a_start_finishes_what_*/definitions.json", rb'"password": "[^"]*',
            "what the test imports"),
    Allowed("tests/*/slapd.conf", rb"\nrootpw root-secret[^\n]*", "the configuration of the test's directory"),
    Allowed(
        "tests/*/slapd[0-9]/data/data.mdb", b"", "the test's directory, which has the passwords of its users"
    ),
    Allowed("tests/*/test_a_directory_*/data/data.mdb", b"",
            "the test's directory, which has the passwords of its users"),
    Allowed(
        "tests/*/store/data.mdb", rb'"(src|dest)-uri":\[?"[^{}]*', "the broker logs in with it after a start"
    ),
    Allowed("logs/process-*.log", rb"kept\.connection INFO cannot reach amqps://me:secret[^@]*",
            "a test of the log says it"),
    Allowed("tests/*/test_a_migration_*/shovels.json", rb'"(src|dest)-uri": ?\[?\s*"[^{}]*',
            "shovels that a how-to writes"),
    Allowed("tests/*/site[0-9]/*", b"", "the site, which is made of the pages of the copy"),
    Allowed("tests/*/opt[0-9]/*/__pycache__/*.pyc", b"", "bytecode of the copy, which the test has installed"),
    Allowed("tests/*/beside[0-9]/env/*/site-packages/leveret/*/__pycache__/*.pyc", b"",
            "bytecode of the copy, too"),
    Allowed("tree/.hypothesis/constants/*", b"", "texts that hypothesis has read in the copy's files"),
)  # fmt: skip


def is_allowed(find: Find) -> bool:
    """Return whether the secret may be there."""
    return any(
        fnmatch.fnmatchcase(find.path, each.path) and re.search(each.before + rb"\Z", find.before, re.DOTALL)
        for each in ALLOWED
    )


def run_tests(folder: Path, word: Word, arguments: Sequence[str], jobs: int) -> tuple[str, int]:
    """Run tests in the copy; returns what pytest has printed, and its exit code."""
    tree = folder / "tree"
    control = CONTROL_TEXT.replace("{file}", CONTROL_FILE).replace("{word}", str(word))
    (tree / CONTROL).write_text(control, encoding="utf-8")
    (folder / "tmp").mkdir()
    (tree / ".venv").symlink_to(Path(sys.prefix))
    words = [sys.executable, "-m", "pytest", "-q", "-n", str(jobs), "--dist", "loadfile", "--no-loadscope-reorder",
             "-p", "canary.keeping", "-p", "no:cacheprovider", f"--basetemp={folder / 'tests'}"]  # fmt: skip
    chosen_paths = [each for each in arguments if each.startswith("tests")]
    rest = [each for each in arguments if each not in chosen_paths]
    if not chosen_paths:
        rest += [f"--ignore={each}" for each in ABOUT_THE_TREE]
    words += [CONTROL, *(chosen_paths or ["tests"]), *rest]
    environment = os.environ | {
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'tests'}",
        "PYTHONPYCACHEPREFIX": str(folder / "bytecode"),
        "TMPDIR": str(folder / "tmp"),
        "KEPT_LOGS": str(folder / "logs"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    print(f"{shlex.join(words)} in {tree}", flush=True)
    done = subprocess.run(words, cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    (folder / REPORT).write_text(done.stdout)
    return done.stdout, done.returncode


def left(folder: Path, word: Word, planted: dict[str, bytes]) -> Iterable[Find]:
    """Return where the secret is below the folder, without the files of the project that it was put into, as they are.

    Tests copy and install the project; these files are known by what they contain.
    """
    contents = set(planted.values())
    for find in search(folder, forms(word.halves())):
        first, _, rest = find.path.partition("/")
        if first in {"bytecode", REPORT} or (first == "tree" and rest == CONTROL):
            continue
        path = folder / find.path
        if path.is_file() and path.read_bytes() in contents:
            continue
        yield find


def main() -> int:
    """Plant, run, search, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=4, help="tests at a time")
    parser.add_argument("--folder", type=Path, help="where; a new one in /tmp by default")
    options, arguments = parser.parse_known_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="leaks-", dir="/tmp"))  # short: sockets are in it
    word = chosen()
    try:
        planted = plant(ROOT, folder / "tree", word)
    except PlantingError as error:
        print(f"canary: {error}", file=sys.stderr)
        return 2
    print(f"the secret is {word}, in {len(planted)} files", flush=True)
    output, code = run_tests(folder, word, arguments, options.jobs)
    lines = output.splitlines()
    print("\n".join(line for line in lines if line.startswith(("FAILED", "ERROR"))))
    print(lines[-1] if lines else "no output")
    counts = Counter(
        {kind: int(number) for number, kind in re.findall(r"(\d+) (passed|failed|error)", output)}
    )
    finds = list(left(folder, word, planted))
    controls = [find for find in finds if find.path.endswith(CONTROL_FILE)]
    allowed = [find for find in finds if find not in controls and is_allowed(find)]
    leaks = [find for find in finds if find not in controls and find not in allowed]
    printed = "".join(path.read_text() for path in (folder / "logs").glob("console-*.log"))
    for find in leaks:
        print(f"found: {find}")
    print(f"{len(leaks)} places, {len(allowed)} allowed ones, in {folder}")
    bad = counts["failed"] + counts["error"]
    if code not in {0, 1} or bad > MOST_FAILURES * max(counts["passed"], 1):
        print("canary: too many tests failed, so that nothing is shown", file=sys.stderr)
        return 2
    if not controls or "user 'guest' authenticated" not in printed:
        print("canary: the control was not found, or the broker did not take the secret", file=sys.stderr)
        return 2
    return 1 if leaks else 0


if __name__ == "__main__":
    sys.exit(main())

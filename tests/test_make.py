"""Commands of the Makefile: few enough to read, and consistent with pages and docstrings."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from processes.commands import execute

ROOT = Path(__file__).parent.parent
MOST = 28
"""Maximum number of targets in `make help`."""
TARGET = re.compile(r"^make (\S+)", re.MULTILINE)
NAMED = re.compile(r"`make ([^`\n]*)`|^ *make ([a-z].*)$", re.MULTILINE)
OLD = {
    "bench-topic": "bench NAME=topic",
    "bench-hotpath": "bench NAME=hotpath",
    "bench-paper": "bench NAME=paper",
    "crash": "campaign NAME=crash",
    "crash-points": "campaign NAME=crash-points",
    "definitions-roundtrip": "campaign NAME=definitions-roundtrip",
    "churn": "campaign NAME=churn",
    "fuzz": "campaign NAME=fuzz",
    "fuzz-long": "campaign NAME=fuzz N=2000000",
    "model": "campaign NAME=model",
    "types": "lint",
}


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `make` with these words in an environment without a surrounding make."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return execute(["make", "--no-print-directory", *words], cwd=ROOT, env=environment, timeout=30)


@pytest.fixture(scope="module")
def shown() -> dict[str, set[str]]:
    """Return each target of `make help`, with the names that it accepts."""
    lines = make("help").stdout.splitlines()
    found = {}
    for line in lines:
        _, _, names = line.partition("one of: ")
        found[TARGET.match(line)[1]] = set(names.partition(";")[0].split())
    return found


def test_help_can_be_read(shown):
    """`make help` has few enough targets to read, including those that people know by name."""
    known = {
        "run",
        "test",
        "test-ui",
        "bench-instructions",
        "bench-compare",
        "bench-pairs",
        "conformance",
        "campaigns",
        "loop-steps",
    }

    assert len(shown) <= MOST
    assert known <= set(shown)


def test_every_benchmark_can_be_named(shown):
    """`make bench NAME=` accepts all of bench/ but two brokers, a generator, and what has a target of its own."""
    scripts = {path.stem for path in (ROOT / "bench").glob("*.py") if '"__main__"' in path.read_text()}
    scripts |= {path.parent.name for path in (ROOT / "bench").glob("*/__main__.py")}

    assert (
        scripts
        - {
            "compare",
            "demo_export",
            "generate",
            "instructions",
            "pairs",
            "paper_baseline",
            "paper_page",
            "relay",
        }
        == shown["bench"]
    )


PROGRAM = re.compile(
    r"^\t@?(?P<path>PYTHONPATH=\S+ )?\$\(BIN\)/python (?P<script>tests/\S+\.py)", re.MULTILINE
)


@pytest.mark.parametrize(("path", "script"), PROGRAM.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
def test_the_programs_of_the_tests_find_what_they_import(path, script):
    """A program of the tests that a recipe runs finds its modules in the folders that it is given, and in its own."""
    environment = {"PATH": os.environ["PATH"], **dict([path.strip().split("=")] if path else [])}
    load = "import runpy, sys; sys.path[0] = sys.argv[1].rpartition('/')[0]; runpy.run_path(sys.argv[1])"
    done = execute([sys.executable, "-c", load, script], cwd=ROOT, env=environment)

    assert 0 == done.returncode, done.stderr


def commands() -> list[tuple[str, str]]:
    """Yield each `make ...` in a page or a docstring; the changelog has the names of its time."""
    files = [
        path
        for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.py"))
        if path.name != "CHANGELOG.md"
    ]
    files += [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    return [
        (str(path.relative_to(ROOT)), (in_line or in_block).partition("#")[0].strip())
        for path in files
        for in_line, in_block in NAMED.findall(path.read_text(encoding="utf-8"))
        if in_line or path.suffix == ".md"
    ]


def test_commands_that_are_named_exist(shown):
    """Every command in a page or a docstring has a target in `make help`, and a name that it accepts."""
    wrong = []
    for place, command in commands():
        target, _, rest = command.partition(" ")
        name = re.search(r"\bNAME=([\w-]+)", rest)
        if target not in {*shown, "help"} or (name and name[1] not in shown[target]):
            wrong.append((place, command))

    assert len(commands()) > MOST
    assert [] == wrong


@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_an_old_name_works_and_tells_the_new_one(old, new):
    """A target's name of 0.1.0 runs the new target, and prints its name."""
    output = make("-n", old, "VENV=build/none", "PYTHON=python3").stdout

    assert f'echo "make {old} is make {new} now"' in output


@pytest.mark.parametrize("target", ["bench", "campaign"])
def test_a_name_that_does_not_exist_is_reported(target):
    """`make bench NAME=fly` lists the existing names."""
    done = make("-n", target, "NAME=fly", "-o", ".venv/.installed-test")

    assert done.returncode != 0
    assert "NAME is one of: " in done.stderr


@pytest.mark.parametrize(
    ("target", "sizes"),
    [
        ("run", ["60 MB"]),
        ("wheel", ["60 MB"]),
        ("demo-export", ["60 MB"]),
        ("pytest", ["60 MB", "1.1 GB"]),
    ],
)
def test_an_installation_is_announced_with_its_size(target, sizes):
    """Each begins with a line of its own; wheel and demo need none of the packages of the tests."""
    lines = make("-n", target, "VENV=build/none", "PYTHON=python3").stdout.splitlines()
    steps = [line for line in lines if line.startswith(('echo "installing', "build/none/bin/python -m pip"))]

    assert [True, False] * len(sizes) == [line.startswith("echo") for line in steps]
    assert sizes == [re.search(r"\(([^)]*B)\)", line)[1] for line in steps[::2]]

"""Extras: a command whose packages are missing says in one line what to install."""

import sys
import tomllib
from pathlib import Path

import pytest
from extras.run import COMMANDS, asks_for
from processes.commands import execute

ROOT = Path(__file__).parent.parent
WITHOUT = """
import runpy, sys
for name in sys.argv.pop(1).split(","):
    sys.modules[name] = None
if sys.argv[1] == "-m":
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    exec(sys.argv[2])
"""
OF_DEVELOPERS = {"docs", "test", "test-core"}


def test_every_extra_has_a_command():
    """Each extra of users is tried here and by `make campaign NAME=extras`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert set(COMMANDS) == set(project["optional-dependencies"]) - OF_DEVELOPERS


@pytest.mark.parametrize("extra", COMMANDS)
def test_a_command_says_what_to_install(tmp_path, extra):
    """Without the packages of its extra a command ends with its code, and one line that has the command of pip."""
    words, packages, code, _ = COMMANDS[extra]
    done = execute([sys.executable, "-c", WITHOUT, ",".join(packages), *words], cwd=tmp_path)
    told = done.stdout + done.stderr

    assert code == done.returncode, told
    assert asks_for(extra, told), told
    assert "Traceback" not in told


def test_times_in_words_say_what_to_install(tmp_path):
    """A time in words names the extra that reads it, if the package is missing."""
    words = (
        "-m",
        "leveret.analytics",
        "latency",
        "--input",
        ".",
        "--output",
        "out",
        "--since",
        "last tuesday",
    )
    done = execute([sys.executable, "-c", WITHOUT, "dateparser,dateparser.date", *words], cwd=tmp_path)

    assert 2 == done.returncode, done.stderr
    assert asks_for("analytics", done.stderr), done.stderr

"""The program `leveret`: what its commands load."""

import json
import subprocess
import sys

import pytest

SECONDS = 60
PROGRAM = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules))))
from leveret.broker.cli.entry import main
sys.argv = ["leveret", *sys.argv[1:]]
main()
"""
HEAVY = {
    "aiofiles",
    "aiohttp",
    "asyncio",
    "importlib.metadata",
    "leveret.broker.cli.main",
    "leveret.broker.config",
    "leveret.broker.server",
    "lmdb",
    "logging",
    "pamqp",
    "re2",
    "uvloop",
}
"""Modules that a client of the broker has no use for, and waits for."""


@pytest.mark.parametrize("command", ["ping", "list_queues", "add_user"])
def test_a_command_for_a_running_broker_loads_no_broker(tmp_path, command):
    """Scripts call such commands often, so these load only a client."""
    words = [sys.executable, "-c", PROGRAM, "ctl", command, "--data-dir", str(tmp_path), "-q"]
    words += ["ann", "secret"] if command == "add_user" else []
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))

    assert "it is not running" in done.stderr
    assert set() == HEAVY & loaded


def test_other_commands_are_there():
    """The entry hands them to the command line of the broker."""
    words = [sys.executable, "-m", "leveret", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=True)

    assert {"config", "ctl", "definitions", "perf", "serve", "store"} <= set(done.stdout.split())

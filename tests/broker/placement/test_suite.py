"""A part of the suite through a front, of processes or of another broker; `make test-placed` runs more of it."""

import os
import sys
from pathlib import Path

import pytest
from processes.commands import execute
from processes.fronts import PLACED

ROOT = Path(__file__).parents[3]
SECONDS = 300


@pytest.mark.skipif(PLACED in os.environ, reason="the whole suite runs so")
@pytest.mark.parametrize("how", ["2", "forwarded"])
def test_a_client_works_through_a_front(how: str) -> None:
    """The tests of a client pass as they do with one process: with two of them, or another broker that has the virtual host."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/clients/test_pika.py")
    done = execute(words, env=environment | {PLACED: how}, timeout=SECONDS, cwd=ROOT)
    assert 0 == done.returncode, done.stdout + done.stderr

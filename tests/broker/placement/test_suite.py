"""A part of the suite against a broker of two processes; `make test-placed` runs more of it."""

import os
import sys
from pathlib import Path

import pytest
from processes.commands import execute

ROOT = Path(__file__).parents[3]
SECONDS = 300


@pytest.mark.skipif("LEVERET_TEST_PROCESSES" in os.environ, reason="the whole suite runs so")
def test_a_client_works_through_a_front() -> None:
    """The tests of a client pass through a front as they do with one process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/clients/test_pika.py")
    done = execute(words, env=environment | {"LEVERET_TEST_PROCESSES": "2"}, timeout=SECONDS, cwd=ROOT)
    assert 0 == done.returncode, done.stdout + done.stderr

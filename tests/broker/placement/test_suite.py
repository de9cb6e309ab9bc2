"""A part of the suite through a front, or a broker that forwards; `make test-placed` runs more of it."""

import os
import sys
from pathlib import Path

import pytest
from processes.commands import execute
from processes.running import serving

ROOT = Path(__file__).parents[3]
SECONDS = 300


def check_client(**more: str) -> None:
    """Run the tests of a client with these variables of the environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    words = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/clients/test_pika.py")
    done = execute(words, env=environment | more, timeout=SECONDS, cwd=ROOT)
    assert 0 == done.returncode, done.stdout + done.stderr


@pytest.mark.skipif("LEVERET_TEST_PROCESSES" in os.environ, reason="the whole suite runs so")
def test_a_client_works_through_a_front() -> None:
    """The tests of a client pass through a front as they do with one process."""
    check_client(LEVERET_TEST_PROCESSES="2")


def test_a_client_works_through_a_broker_that_forwards(tmp_path: Path) -> None:
    """The tests of a client pass where another broker has the virtual host."""
    folders = tmp_path / "there", tmp_path / "front"
    for folder in folders:
        folder.mkdir()
    with serving(folders[0]) as there:
        elsewhere = {"vhosts.broker./": f"127.0.0.1:{there.address[1]}"}
        with serving(folders[1], settings=elsewhere) as front:
            check_client(LEVERET_TEST_AMQP_URL=f"amqp://guest:guest@127.0.0.1:{front.address[1]}")

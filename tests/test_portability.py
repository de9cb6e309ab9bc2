"""Systems without what only Linux has (`other_system`), and Pythons without uvloop."""

import os
import sys
from pathlib import Path

import pika
import pytest
from processes.commands import execute
from processes.running import serving

ROOT = Path(__file__).parent.parent
OTHER_SYSTEM = str(ROOT / "tests" / "doubles" / "other_system.py")
CORE = (
    "tests/broker/channel/test_channel.py",
    "tests/broker/metadata/test_durability.py",
    "tests/broker/network/test_socket_state.py",
    "tests/broker/persistence/test_committer.py",
    "tests/broker/persistence/test_message_reader.py",
    "tests/broker/process/test_resource_alarms.py",
    "tests/storage/store/test_check.py",
    "tests/storage/store/test_compact.py",
    "tests/storage/store/test_environment.py",
    "tests/storage/store/test_store_header.py",
)
OF_LINUX = (
    "test_a_large_body_is_flushed",  # counts fdatasync
    "test_a_disk_without_any_room",  # makes posix_fallocate fail
    "test_files_that_are_read",  # only RssAnon excludes them
)


@pytest.mark.parametrize("told", [(), ("untold",)])
def test_the_broker_runs_without_linux(tmp_path, told):
    """A broker with /proc, epoll and uvloop absent serves clients, keeps messages, and stops with 0; psutil or not."""
    program = (OTHER_SYSTEM, *told)
    for expected in (0, 1):
        with serving(tmp_path, program=program) as running:
            parameters = pika.ConnectionParameters(*running.address)
            with pika.BlockingConnection(parameters) as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                queue = channel.queue_declare("orders", durable=True)
                channel.basic_publish("", "orders", b"kept", pika.BasicProperties(delivery_mode=2))
            code, _out, _log = running.stopped_by(15)

        assert (expected, 0) == (queue.method.message_count, code)


def test_the_core_of_the_tests_passes_without_linux():
    """Channels, storage, recovery, persistence and alarms pass their tests there, in asyncio's own loop."""
    done = execute([
            sys.executable, "-m", "pytest", "-q", "-p", "doubles.other_system", "-p", "no:cacheprovider", "-n", "0",
            "-k", " and ".join(f"not {name}" for name in OF_LINUX), *CORE,
        ], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "PYTEST_ADDOPTS": ""}, timeout=200)  # fmt: skip

    assert 0 == done.returncode, done.stdout[-5000:]

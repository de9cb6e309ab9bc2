"""Celery: a worker in a process of its own, and the application that gives it work."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from celery import Celery, chain, group
from celery.exceptions import TaskRevokedError
from kombu import pools

# Celery and kombu warn about their own use of the standard library on recent Pythons
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")

HERE = Path(__file__).parent
START_SECONDS = 40
SECONDS = 15


class Worker:
    """`celery worker` with two threads, killed and started again at will.

    Args:
        url: of the broker.
        log: where its output goes.

    """

    def __init__(self, url: str, log: Path) -> None:
        self.name = f"worker-{uuid.uuid4().hex[:8]}@localhost"
        self.queue = f"test.celery.{uuid.uuid4().hex[:12]}"
        self.log = log
        self.environment = os.environ | {"CELERY_TEST_URL": url, "CELERY_TEST_QUEUE": self.queue}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, without waiting."""
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--loglevel", "INFO"]
        command += ["--pool", "threads", "--concurrency", "2", "-n", self.name, "--without-mingle"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, cwd=HERE, env=self.environment, stdout=log, stderr=log)

    def kill(self) -> None:
        """End it without a chance to say goodbye."""
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def worker(amqp_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """A worker that ends well."""
    worker = Worker(f"{amqp_url}//", tmp_path_factory.mktemp("celery") / "worker.log")
    worker.start()
    try:
        yield worker
        worker.process.terminate()
        code = worker.process.wait(SECONDS)
    finally:
        worker.kill()
    log = worker.log.read_text(encoding="utf-8")
    assert 0 == code, log
    assert "onnection to broker lost" not in log


@pytest.fixture(scope="module")
def tasks(worker: Worker, amqp_url: str) -> Iterator[object]:
    """The module of the tasks, set up for the worker's queue, when the worker answers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        patch.setenv("CELERY_TEST_URL", f"{amqp_url}//")
        patch.setenv("CELERY_TEST_QUEUE", worker.queue)
        import celery_tasks

        patch.delitem(sys.modules, "celery_tasks")
        wait_for_worker(celery_tasks.app, worker)
        yield celery_tasks
        with celery_tasks.app.connection_for_write() as connection:
            connection.default_channel.queue_delete(worker.queue)
        celery_tasks.app.backend.result_consumer.stop()
        celery_tasks.app.close()
        pools.reset()  # it keeps connections for the whole process


def wait_for_worker(app: Celery, worker: Worker) -> None:
    """Ask until it answers."""
    deadline = time.monotonic() + START_SECONDS
    inspect = app.control.inspect(destination=[worker.name], timeout=1, limit=1)
    while (answer := inspect.ping()) is None:
        assert worker.process.poll() is None, worker.log.read_text(encoding="utf-8")
        assert time.monotonic() < deadline, worker.log.read_text(encoding="utf-8")
    assert {worker.name: {"ok": "pong"}} == answer


def test_results(tasks):
    """A hundred tasks give their results over `rpc://`."""
    results = [tasks.add.delay(number, 1) for number in range(100)]
    assert list(range(1, 101)) == [result.get(timeout=SECONDS) for result in results]


def test_chain(tasks):
    """Each task of a chain gets the result of the one before."""
    assert 10 == chain(tasks.add.s(1, 2), tasks.add.s(3), tasks.add.s(4))().get(timeout=SECONDS)


def test_group(tasks):
    """The tasks of a group run each."""
    assert [0, 2, 4, 6, 8] == group(tasks.add.s(n, n) for n in range(5))().get(timeout=SECONDS)


def test_retry(tasks):
    """A task that retries itself comes back with its count."""
    assert 2 == tasks.succeed_at.delay(2).get(timeout=SECONDS)


def test_countdown_and_eta(tasks):
    """Tasks for later run later."""
    started = time.monotonic()
    eta = datetime.now(UTC) + timedelta(seconds=0.5)
    later = [tasks.add.apply_async((1, 2), countdown=0.5), tasks.add.apply_async((3, 4), eta=eta)]
    assert [3, 7] == [result.get(timeout=SECONDS) for result in later]
    assert 0.4 < time.monotonic() - started


def test_failure(tasks):
    """An exception comes back to the caller."""
    with pytest.raises(ValueError, match="on purpose"):
        tasks.fail.delay().get(timeout=SECONDS)


def test_large_argument(tasks):
    """A task with a megabyte of arguments runs."""
    assert 200_000 == tasks.total.delay([1] * 200_000).get(timeout=SECONDS)


def test_priority_and_expiry_are_accepted(tasks):
    """Message properties that a plain queue does nothing about do no harm."""
    assert 3 == tasks.add.apply_async((1, 2), priority=5, expires=60).get(timeout=SECONDS)


def test_revoke(tasks, worker):
    """A revoked task does not run."""
    result = tasks.add.apply_async((1, 2), countdown=1)
    answer = tasks.app.control.revoke(
        result.id, destination=[worker.name], reply=True, timeout=SECONDS, limit=1
    )
    assert answer
    with pytest.raises(TaskRevokedError):
        result.get(timeout=SECONDS)


def test_inspect(tasks, worker):
    """The worker answers what it has and what it listens to."""
    inspect = tasks.app.control.inspect(destination=[worker.name], timeout=SECONDS, limit=1)
    assert "celery_tasks.add" in inspect.registered()[worker.name]
    assert [worker.queue] == [queue["name"] for queue in inspect.active_queues()[worker.name]]
    assert 8 == inspect.stats()[worker.name]["prefetch_count"]


def test_consume_another_queue(tasks, worker):
    """A running worker takes up another queue and leaves it again."""
    queue, control = f"{worker.queue}.other", tasks.app.control
    options = {"destination": [worker.name], "reply": True, "timeout": SECONDS, "limit": 1}
    assert "ok" in control.add_consumer(queue, **options)[0][worker.name]
    assert 11 == tasks.add.apply_async((5, 6), queue=queue).get(timeout=SECONDS)
    assert "ok" in control.cancel_consumer(queue, **options)[0][worker.name]
    with tasks.app.connection_for_write() as connection:
        connection.default_channel.queue_delete(queue, if_unused=True)


def test_events(tasks):
    """Events about tasks reach who listens."""
    seen = []
    with tasks.app.connection_for_read() as connection:
        receiver = tasks.app.events.Receiver(
            connection, handlers={"task-succeeded": seen.append, "*": lambda _event: None}
        )
        with receiver.consumer_context() as (listening, _channel, _consumers):
            result = tasks.add.delay(2, 2)
            while result.id not in {event["uuid"] for event in seen}:
                listening.drain_events(timeout=SECONDS)
    assert "4" == seen[-1]["result"]


def test_acks_late(tasks, worker, tmp_path):
    """What a killed worker had not acknowledged is done by the next one."""
    assert 42 == tasks.late.delay(21).get(timeout=SECONDS)
    marker = tmp_path / "started"
    result = tasks.hold.delay(str(marker))
    deadline = time.monotonic() + SECONDS
    while not marker.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    worker.kill()
    worker.start()
    assert result.get(timeout=START_SECONDS)

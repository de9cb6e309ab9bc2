"""Celery: a worker in a process of its own, and the application that gives it work."""

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from amqp import NotFound
from celery import Celery, chain, group
from celery.exceptions import TaskRevokedError
from kombu import pools
from processes.waiting import wait_until

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
        careful: one thread that takes one task at a time, from a queue with priorities and dead letters.
        holds: its queue holds tasks until their ETA.

    """

    def __init__(self, url: str, log: Path, *, careful: bool = False, holds: bool = False) -> None:
        self.name = f"worker-{uuid.uuid4().hex[:8]}@localhost"
        self.queue = f"test.celery.{uuid.uuid4().hex[:12]}"
        self.log, self.threads = log, 1 if careful else 2
        self.variables = {"CELERY_TEST_URL": url, "CELERY_TEST_QUEUE": self.queue}
        if careful:
            self.variables["CELERY_TEST_DEAD"] = self.dead
        if holds:
            self.variables["CELERY_TEST_HOLD"] = "eta"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def dead(self) -> str:
        """The queue of what a careful worker's queue discards."""
        return f"{self.queue}.dead"

    def start(self) -> None:
        """Start it, without waiting."""
        command = [sys.executable, "-m", "celery", "-A", "celery_tasks", "worker", "--loglevel", "INFO"]
        command += [
            "--pool",
            "threads",
            "--concurrency",
            str(self.threads),
            "-n",
            self.name,
            "--without-mingle",
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=HERE, env=os.environ | self.variables, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """End it without a chance to say goodbye."""
        self.process.kill()
        self.process.wait()


@contextmanager
def running(worker: Worker) -> Iterator[object]:
    """A worker from its start to its end, which has to be a good one; the module of its tasks, set up for its queue."""
    worker.start()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        for name, value in worker.variables.items():
            patch.setenv(name, value)
        import celery_tasks

        del sys.modules["celery_tasks"]  # the next worker imports its own
    celery_tasks.worker, app = worker, celery_tasks.app
    try:
        wait_for_worker(app, worker)
        yield celery_tasks
        worker.process.terminate()
        code = worker.process.wait(SECONDS)
    finally:
        worker.kill()
        with app.connection_for_write() as connection:
            connection.default_channel.queue_delete(worker.queue)
            connection.default_channel.queue_delete(worker.dead)
        with suppress(AttributeError):  # it has no connection to close where nobody asked for a result
            app.backend.result_consumer.stop()
        app.close()
    log = worker.log.read_text(encoding="utf-8")
    assert 0 == code, log
    assert "onnection to broker lost" not in log


@pytest.fixture(scope="module", autouse=True)
def connections() -> Iterator[None]:
    """Close the connections that kombu keeps for the whole process, also those of other applications."""
    yield
    pools.reset()


@pytest.fixture(scope="module")
def tasks(amqp_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with running(Worker(f"{amqp_url}//", tmp_path_factory.mktemp("celery") / "worker.log")) as tasks:
        yield tasks


@pytest.fixture
def worker(tasks: object) -> Worker:
    return tasks.worker


@pytest.fixture(scope="module")
def careful(amqp_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """The tasks of a worker that takes one at a time and acks it late."""
    log = tmp_path_factory.mktemp("celery") / "careful.log"
    with running(Worker(f"{amqp_url}//", log, careful=True)) as tasks:
        with tasks.app.connection_for_write() as connection:
            connection.default_channel.queue_declare(tasks.worker.dead, durable=True, auto_delete=False)
        yield tasks


def wait_for_worker(app: Celery, worker: Worker) -> None:
    """Ask the worker until it answers."""
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
    """Events about tasks reach their listeners."""
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
    """A task that a killed worker had not acknowledged is done by the next one."""
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


@contextmanager
def busy(careful: object, path: Path) -> Iterator[None]:
    """Keep the worker from taking the tasks that are given meanwhile."""
    waiting = careful.wait_for.apply_async((str(path),), priority=9)
    wait_until(path.with_name(path.name + ".waiting").exists)
    yield
    path.touch()
    waiting.get(timeout=SECONDS)


def ready(app: Celery, queue: str) -> int:
    with app.connection_for_read() as connection:
        return connection.default_channel.queue_declare(queue, passive=True).message_count


def test_priorities(careful, tmp_path):
    """The most urgent of the waiting tasks is run first, the oldest among equals."""
    priorities = [0, 3, 9, 1, 5, 9, 0, 3]
    with busy(careful, tmp_path / "go"):
        results = [careful.stamp.apply_async(priority=priority) for priority in priorities]
        wait_until(lambda: ready(careful.app, careful.worker.queue) == len(priorities))
    times = [result.get(timeout=SECONDS) for result in results]
    expected = sorted(range(len(priorities)), key=lambda n: (-priorities[n], n))
    assert expected == sorted(range(len(priorities)), key=times.__getitem__)


def test_tasks_for_later_make_room(careful):
    """Tasks for later, each of which keeps its delivery, raise the prefetch of a worker that takes one at a time."""
    started = time.monotonic()
    later = [careful.stamp.apply_async(countdown=0.5) for _ in range(5)]
    assert started + 0.4 < min(result.get(timeout=SECONDS) for result in later)


def test_a_queue_that_holds_does_all_that_celery_does(amqp_url, tmp_path):
    """Held tasks are not with the worker; priorities, expiry, retries with a countdown and late acks work as without."""
    with running(Worker(f"{amqp_url}//", tmp_path / "worker.log", careful=True, holds=True)) as held:
        inspect = held.app.control.inspect(destination=[held.worker.name], timeout=SECONDS, limit=1)
        long_ago = held.stamp.apply_async(countdown=-60)
        much_later = held.stamp.apply_async(countdown=3600)
        expired = held.stamp.apply_async(countdown=0.2, expires=0.1)
        assert 2 == held.succeed_at.delay(2).get(timeout=SECONDS)
        assert long_ago.get(timeout=SECONDS)
        with pytest.raises(TaskRevokedError):
            expired.get(timeout=SECONDS)
        with busy(held, tmp_path / "go"):
            started = time.monotonic()
            later = [held.stamp.apply_async(countdown=1, priority=priority) for priority in (0, 9)]
            assert [] == inspect.scheduled()[held.worker.name]
            wait_until(lambda: ready(held.app, held.worker.queue) == len(later))
            # a worker runs what it has by ETA: the order of deliveries is seen here
            with held.app.connection_for_read() as connection:
                found = [connection.default_channel.basic_get(held.worker.queue) for _ in later]
                assert [9, 0] == [message.properties["priority"] for message in found]
        assert started + 0.9 < min(result.get(timeout=SECONDS) for result in later)
        marker = tmp_path / "started"
        result = held.hold.apply_async((str(marker),), countdown=0.3)
        wait_until(marker.exists)
        held.worker.kill()
        held.worker.start()
        assert result.get(timeout=START_SECONDS)
        assert not much_later.ready()


def dead_letters(careful: object, count: int) -> list[tuple[str, str]]:
    """The next dead tasks: the name of each, and why it died."""
    found = []
    with careful.app.connection_for_read() as connection:
        channel = connection.default_channel
        for _ in range(count):
            message = wait_until(lambda: channel.basic_get(careful.worker.dead, no_ack=True))
            found.append((message.headers["task"], message.headers["x-death"][0]["reason"]))
    return found


def test_rejected_tasks_are_dead_letters(careful):
    """A task that its worker refuses goes where its queue's dead letters go."""
    careful.refuse.delay()
    assert [("celery_tasks.refuse", "rejected")] == dead_letters(careful, 1)


def test_expired_tasks_are_dead_letters(careful, tmp_path):
    """A task whose message expires while the worker is busy is a dead letter; others of its queue stay."""
    with busy(careful, tmp_path / "go"):
        careful.stamp.apply_async(expiration=0.05)
        kept = careful.stamp.apply_async(expiration=600)
        assert [("celery_tasks.stamp", "expired")] == dead_letters(careful, 1)
    assert kept.get(timeout=SECONDS)


def test_result_queues(tasks, unique):
    """Results reach hundreds of queues, one for each task, which go with their consumers."""
    count = int(os.environ.get("LEVERET_TEST_RESULT_QUEUES", "200"))
    with tasks.app.connection_for_read() as connection:
        channel = connection.default_channel
        queues = [unique(str(number)) for number in range(count)]
        for number, name in enumerate(queues):
            channel.queue_declare(name, durable=False, auto_delete=True, arguments={"x-expires": 600_000})
            tasks.add.apply_async((number, 1), reply_to=name)
        results = {}
        for number, name in enumerate(queues):
            tag = channel.basic_consume(
                name,
                callback=lambda message, number=number: results.update(
                    {number: json.loads(message.body)["result"]}
                ),
                no_ack=True,
            )
            while number not in results:
                connection.drain_events(timeout=SECONDS)
            channel.basic_cancel(tag)
    assert {number: number + 1 for number in range(count)} == results
    with tasks.app.connection_for_read() as connection, pytest.raises(NotFound):
        connection.default_channel.queue_declare(queues[-1], passive=True)

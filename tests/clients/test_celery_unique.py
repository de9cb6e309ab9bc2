"""Unique tasks of Celery: a queue drops the repeat of a task, and nothing else."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event

import pytest
from celery import Celery, chain, group, signals
from celery.contrib.testing.worker import start_worker
from kombu import Queue, pools
from processes.commands import execute
from processes.waiting import wait_until

from leveret import Broker
from leveret.celery import UniqueTask

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
SECONDS = 15
LONG_MS = 600_000


@signals.setup_logging.connect
def leave_loggers(**_: object) -> None:
    """Set up nothing: Celery would take the handlers of the root logger away, for all tests that follow."""


class Tasks:
    """An application with a queue that knows keys, and what its tasks were called with."""

    def __init__(self, url: str, **arguments: object) -> None:
        arguments = {"x-deduplicate": "header:task-key", **arguments}
        self.app = app = Celery("unique", broker=url, backend="rpc://", set_as_current=False)
        app.conf.update(
            task_queues=[Queue("celery", queue_arguments=arguments)],
            task_acks_late=True,
            worker_prefetch_multiplier=1,
            broker_connection_retry_on_startup=True,
            broker_transport_options={"confirm_publish": True},
            broker_heartbeat=60,
            broker_heartbeat_checkrate=1200,  # a worker in a thread notices its end at its next timer only
        )
        self.calls: list[object] = []
        self.go = Event()
        task = partial(app.task, base=UniqueTask, shared=False)

        @task(name="sync")
        def sync(account: int, full: bool = False) -> int:
            self.calls.append(account)
            return account

        @task(name="other")
        def other(account: int) -> int:
            return account

        @task(name="keyed", unique_key=lambda _task, args, _kwargs: str(args[0]))
        def keyed(account: int, attempt: int) -> None:
            self.calls.append(attempt)

        @task(name="loose", typing=False)
        def loose(account: int) -> None: ...

        @task(name="wait")
        def wait(account: int) -> None:
            self.calls.append(account)
            assert self.go.wait(SECONDS)

        @task(name="again", bind=True, max_retries=3)
        def again(self_: UniqueTask, attempts: int) -> int:
            if self_.request.retries < attempts:
                raise self_.retry(countdown=0.1)
            return self_.request.retries

        self.sync, self.other, self.keyed, self.loose = sync, other, keyed, loose
        self.wait, self.again = wait, again

    def count(self) -> int:
        """Return the number of tasks in the queue, ready."""
        with self.app.connection_for_read() as connection:
            return connection.default_channel.queue_declare("celery", passive=True).message_count

    @contextmanager
    def worker(self) -> Iterator[None]:
        """Run a worker in a thread, which leaves the loggers of this process as they are."""
        with start_worker(
            self.app, pool="solo", concurrency=1, perform_ping_check=False, shutdown_timeout=SECONDS
        ):
            yield


Make = Callable[..., Tasks]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes an application with further arguments of its queue, at a broker of its own."""
    apps = []
    with Broker() as broker:

        def made(**arguments: object) -> Tasks:
            tasks = Tasks(broker.url, **arguments)
            apps.append(tasks.app)
            return tasks

        yield made
        for app in apps:
            with suppress(AttributeError):  # it has no connection to close where nobody asked for a result
                app.backend.result_consumer.stop()
            app.close()
        pools.reset()  # it keeps connections for the whole process


def test_a_queued_task_is_not_queued_again(make):
    """Equal arguments in whatever form are one task; other arguments, or those of another task, are not."""
    tasks = make()
    tasks.sync.delay(7)
    tasks.sync.delay(account=7)
    tasks.sync.apply_async((7,), {"full": False}, countdown=1)
    assert 1 == tasks.count()
    tasks.sync.delay(8)
    tasks.sync.delay(7, full=True)
    tasks.other.delay(7)
    assert 4 == tasks.count()


def test_a_key_of_its_own(make):
    """A function gives the key of a task, and a header that of one publish."""
    tasks = make()
    tasks.keyed.delay(7, 1)
    tasks.keyed.delay(7, 2)
    assert 1 == tasks.count()
    tasks.keyed.apply_async((7, 3), headers={"task-key": "mine"})
    assert 2 == tasks.count()


def test_arguments_that_are_not_checked(make):
    """A task without checks of its arguments has a key for any."""
    tasks = make()
    for _ in range(2):
        tasks.loose.delay(7, "more")
    assert 1 == tasks.count()


def test_arguments_without_a_key(make):
    """An argument that is no JSON is an error of the publish."""
    with pytest.raises(TypeError, match="JSON"):
        make().sync.apply_async((object(),), serializer="pickle")


def test_a_task_at_work(make):
    """A task that is at work is not queued again; once it has ended, it is."""
    tasks = make()
    with tasks.worker():
        tasks.wait.delay(7)
        wait_until(lambda: tasks.calls == [7])
        tasks.wait.delay(7)
        assert 0 == tasks.count()
        tasks.go.set()
        deadline = time.monotonic() + SECONDS
        while tasks.calls == [7]:  # until the end of the first is known
            assert time.monotonic() < deadline
            tasks.wait.delay(7)
            time.sleep(0.02)
    assert {7} == set(tasks.calls)


def test_a_task_after_its_end(make):
    """With a time of the queue a task does not come back for so long after its end."""
    tasks = make(**{"x-deduplicate-mode": "running", "x-deduplicate-for": LONG_MS})
    with tasks.worker():
        tasks.sync.delay(7).get(timeout=SECONDS)
        tasks.sync.delay(7)
        tasks.sync.delay(8).get(timeout=SECONDS)
    assert [7, 8] == tasks.calls


@pytest.mark.parametrize("mode", ["running", "queued", "window"])
def test_retries_are_no_repeats(make, mode):
    """A task that retries itself comes back in each mode, although its key is known."""
    tasks = make(**{"x-deduplicate-mode": mode, "x-deduplicate-for": LONG_MS})
    with tasks.worker():
        assert 2 == tasks.again.apply_async((2,), headers={"mine": "kept"}).get(timeout=SECONDS)


def test_later_tasks_groups_and_chains(make):
    """A task for later runs then, and those of a group and a chain each."""
    tasks = make(**{"x-deduplicate-mode": "running", "x-deduplicate-for": LONG_MS})
    with tasks.worker():
        assert 1 == tasks.sync.apply_async((1,), countdown=0.3).get(timeout=SECONDS)
        assert [2, 3, 4] == group(tasks.sync.s(number) for number in (2, 3, 4))().get(timeout=SECONDS)
        assert 5 == chain(tasks.sync.s(5), tasks.other.s())().get(timeout=SECONDS)


def test_without_celery(tmp_path):
    """Without Celery the error says what to install."""
    program = "import sys; sys.modules['celery'] = None; import leveret.celery"
    done = execute([sys.executable, "-c", program], cwd=tmp_path)
    assert 1 == done.returncode
    assert "pip install celery" in done.stderr.splitlines()[-1]

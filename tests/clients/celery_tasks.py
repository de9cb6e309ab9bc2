"""The tasks that the worker of test_celery.py runs, in a process of its own; not a test itself."""

import os
import time
from pathlib import Path

from celery import Celery, Task
from celery.exceptions import Reject
from kombu import Queue

app = Celery("celery_tasks", broker=os.environ.get("CELERY_TEST_URL"), backend="rpc://")
app.conf.update(
    task_default_queue=os.environ.get("CELERY_TEST_QUEUE", "celery"),
    broker_connection_retry_on_startup=True,
    worker_send_task_events=True,
    worker_prefetch_multiplier=4,
    result_expires=60,
)
if dead := os.environ.get(
    "CELERY_TEST_DEAD"
):  # a worker that takes one task at a time, the most urgent first
    arguments = {"x-max-priority": 9, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    if header := os.environ.get("CELERY_TEST_HOLD"):
        arguments["x-hold-until-header"] = header
    app.conf.update(
        task_queues=[Queue(app.conf.task_default_queue, queue_arguments=arguments)],
        task_acks_late=True,
        worker_prefetch_multiplier=1,
    )


@app.task(shared=False)
def add(x: int, y: int) -> int:
    """Return the sum of two numbers."""
    return x + y


@app.task(shared=False)
def total(numbers: list[int]) -> int:
    """Return the sum of many numbers."""
    return sum(numbers)


@app.task(shared=False, bind=True, max_retries=3)
def succeed_at(self: Task, attempt: int) -> int:
    """Fails until tried that many times again."""
    if self.request.retries < attempt:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task(shared=False, acks_late=True)
def late(x: int) -> int:
    """Acknowledged after it has run."""
    return 2 * x


@app.task(shared=False, acks_late=True, reject_on_worker_lost=True)
def hold(path: str) -> bool:
    """Creates a file and works on; whether the file was there before."""
    try:
        with open(path, "x", encoding="utf-8"):  # noqa: PTH123 - "x" is the point
            pass
    except FileExistsError:
        return True
    time.sleep(60)
    return False


@app.task(shared=False)
def fail() -> None:
    """Raise an error."""
    raise ValueError("on purpose")


@app.task(shared=False)
def wait_for(path: str) -> None:
    """Works until there is a file."""
    Path(path + ".waiting").touch()
    while not Path(path).exists():
        time.sleep(0.01)


@app.task(shared=False)
def stamp() -> float:
    """Return when the task ran."""
    return time.monotonic()


@app.task(shared=False, acks_late=True)
def refuse() -> None:
    """Does not want to be run, here or elsewhere."""
    raise Reject("on purpose", requeue=False)

"""The tasks that the worker of test_celery.py runs, in a process of its own; not a test itself."""

import os
import time

from celery import Celery, Task

app = Celery("celery_tasks", broker=os.environ.get("CELERY_TEST_URL"), backend="rpc://")
app.conf.update(
    task_default_queue=os.environ.get("CELERY_TEST_QUEUE", "celery"),
    broker_connection_retry_on_startup=True,
    worker_send_task_events=True,
    worker_prefetch_multiplier=4,
    result_expires=60,
)


@app.task
def add(x: int, y: int) -> int:
    """The sum of two."""
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    """The sum of many."""
    return sum(numbers)


@app.task(bind=True, max_retries=3)
def succeed_at(self: Task, attempt: int) -> int:
    """Fails until tried that many times again."""
    if self.request.retries < attempt:
        raise self.retry(countdown=0.1)
    return self.request.retries


@app.task(acks_late=True)
def late(x: int) -> int:
    """Acknowledged after it has run."""
    return 2 * x


@app.task(acks_late=True, reject_on_worker_lost=True)
def hold(path: str) -> bool:
    """Creates a file and works on; whether the file was there before."""
    try:
        with open(path, "x", encoding="utf-8"):  # noqa: PTH123 - "x" is the point
            pass
    except FileExistsError:
        return True
    time.sleep(60)
    return False


@app.task
def fail() -> None:
    """Raises."""
    raise ValueError("on purpose")

"""Views of internal state, and of the process, that only tests need."""

import contextlib
import os

from leveret.storage.message import Message
from leveret.storage.queues.memory_queue import MemoryQueue
from leveret.storage.store.environment import Environment


def ready_messages(queue: MemoryQueue) -> list[Message]:
    """Return the ready messages of a queue in order, without taking them."""
    requeued = [message for _, message in sorted(queue._requeued, key=lambda entry: entry[0])]
    return [*requeued, *queue._ready]


def has_unfinished(environment: Environment) -> bool:
    """Return whether the next commit has sweeps to continue, of paged messages too, or files to report."""
    return bool(environment.has_unfinished_durable or environment.paged.unfinished)


def stored_body(environment: Environment, msg_id: int) -> bytes | str:
    """Return a content that is stored apart from its records, or the kind of its damage."""
    return environment.bodies.content(msg_id, environment.store.row_of_body(msg_id))


def descriptors() -> int:
    """Return the number of open descriptors, also where there is no /proc."""
    found = 0
    for number in range(1024):
        with contextlib.suppress(OSError):
            os.fstat(number)
            found += 1
    return found

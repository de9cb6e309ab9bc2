"""Mutant: a requeued message is delivered after all others."""

from leveret.storage.queues.requeued import NONE_REQUEUED
from leveret.storage.queues.variable_queue import VariableQueue

_fetch = VariableQueue.fetch


def fetch(queue, count, *, ack_required):
    returned = queue.returned
    if not returned or not (queue.q4 or queue.q3):
        return _fetch(queue, count, ack_required=ack_required)
    queue.returned = NONE_REQUEUED
    try:
        return _fetch(queue, count, ack_required=ack_required)
    finally:
        queue.returned = returned


VariableQueue.fetch = fetch

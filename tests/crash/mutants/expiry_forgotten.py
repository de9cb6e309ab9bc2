"""Messages that are found on disk do not expire."""

from leveret.storage.queues.variable_queue import VariableQueue

_recover = VariableQueue.recover


def recover(queue, found):
    _recover(queue, found)
    queue.expiring = False


VariableQueue.recover = recover

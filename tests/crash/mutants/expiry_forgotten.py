"""Messages that are found on disk do not expire."""

from leveret.storage.queues.variable_queue import VariableQueue

_recover = VariableQueue.recover


def recover(queue, *arguments, **options):
    _recover(queue, *arguments, **options)
    queue.expiring = False


VariableQueue.recover = recover

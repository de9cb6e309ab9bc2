"""Mutant: a deleted queue takes with it what is still being written to files for other queues."""

from leveret.broker.queue.queue import Queue

_delete = Queue.delete


def delete(queue, *, discards=True):
    queue.moving = 0
    return _delete(queue, discards=discards)


Queue.delete = delete

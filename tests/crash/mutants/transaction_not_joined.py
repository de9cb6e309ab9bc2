"""Mutant: a message that a transaction acks is confirmed to its publisher before the transaction is safe."""

from leveret.broker.queue.queue import Queue


def join(self, keys):
    return []


Queue.join = join

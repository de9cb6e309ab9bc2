"""Mutant: a message that comes back after a crash counts as never delivered."""

from leveret.storage.queues.variable_queue import VariableQueue

_recover = VariableQueue.recover


def recover(queue, found):
    _recover(queue, found._replace(redelivered_below=0))


VariableQueue.recover = recover

"""What comes back after a crash counts as never delivered."""

from storage.variable_queue import VariableQueue

_recover = VariableQueue.recover


def recover(queue, count, first, stop, *, redelivered_below, octets=0):
    _recover(queue, count, first, stop, redelivered_below=0 * redelivered_below, octets=octets)


VariableQueue.recover = recover

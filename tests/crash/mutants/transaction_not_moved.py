"""Mutant: on a full disk the inputs of a transaction are removed though there is no room for its outputs."""

from leveret.storage.queues.variable_queue import VariableQueue

_ack = VariableQueue.ack


def ack(self, seq_ids, *, moved=False, dropped=False):
    _ack(self, seq_ids, dropped=dropped)


VariableQueue.ack = ack

"""Mutant: ids are in memory only."""

from leveret.broker.queue.id_log import IdLog


def write(self):
    self._changed, self._ended = {}, {}


IdLog._write = write

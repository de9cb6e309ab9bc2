"""Mutant: a commit may begin between two pieces of a transaction."""

from leveret.broker.scheduling.turn import Turn


def is_split(self):
    return bool(self._stored) or any(queue.stores_input for queue in self._not_stored)


Turn.is_split = property(is_split)

"""Mutant: a repeat is confirmed at once, while the first message is not safe yet."""

from leveret.broker.queue import deduplication
from leveret.broker.queue.deduplication import Deduplication

_tell = Deduplication._tell


def tell(self, waiting, *, also_files=False):
    if also_files:
        deduplication._told(waiting, True)
    else:
        _tell(self, waiting)


Deduplication._tell = tell

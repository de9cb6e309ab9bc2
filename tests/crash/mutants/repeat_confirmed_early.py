"""Mutant: a repeat is confirmed at once, while the first message is not safe yet."""

from leveret.broker.queue.deduplication import Deduplication
from leveret.broker.queue.id_notes import told

_tell = Deduplication._tell


def tell(self, waiting, *, also_files=False):
    if also_files:
        told(waiting, True)
    else:
        _tell(self, waiting)


Deduplication._tell = tell

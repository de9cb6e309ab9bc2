"""Mutant: a repeat is confirmed at once, while the first message is not safe yet."""

from leveret.broker.queue import id_notes
from leveret.broker.queue.id_notes import IdNotes

_tell = IdNotes.tell


def tell(self, waiting, *, also_files=False):
    if also_files:
        id_notes.told(waiting, True)
    else:
        _tell(self, waiting)


IdNotes.tell = tell

"""A message that is acked while its record is being written is deleted at once, and then the record is there."""

from leveret.storage.journal.blocks import GONE, WRITING
from leveret.storage.journal.journal import Journal

_dead = Journal.dead


def dead(journal, entry, *, moved=False):
    if entry.state == WRITING:
        entry.state = GONE
        return
    _dead(journal, entry, moved=moved)


Journal.dead = dead

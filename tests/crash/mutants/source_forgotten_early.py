"""What moves to another queue is deleted where it was one commit before it is written there."""

from storage.journal import Journal

_cut = Journal.cut
_kept = set()


def cut(journal):
    queues = journal._queues
    if id(journal) in _kept or not queues or not any(block.moving for block in journal._dirty):
        _kept.discard(id(journal))
        return _cut(journal)
    _kept.add(id(journal))
    journal._queues = []
    batch = _cut(journal)
    journal._queues = queues
    journal.urgent = True
    return batch


Journal.cut = cut

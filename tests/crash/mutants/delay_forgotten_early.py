"""A delayed message that is due is deleted one commit before it is written into its queues."""

from storage.journal import Journal

_cut = Journal.cut
_kept = set()


def cut(journal):
    queues = journal._queues
    if (
        id(journal) in _kept
        or not queues
        or not any(table == "delayed" and value is None for table, _, value in journal._rows)
    ):
        _kept.discard(id(journal))
        return _cut(journal)
    _kept.add(id(journal))
    journal._queues = []
    batch = _cut(journal)
    journal._queues = queues
    journal.urgent = True
    return batch


Journal.cut = cut

"""Mutant: publishes are confirmed when a batch is cut, not when it is on disk."""

from leveret.broker.persistence.committer import Committer
from leveret.storage.journal.blocks import STORED, WRITING
from leveret.storage.journal.journal import Journal

_cut = Journal.cut
_commit = Committer._commit


def cut(journal, page):
    batch = _cut(journal, page)
    for _, entries in batch.entries:
        for entry in entries:
            if entry.durable:
                entry.message.accepted()
    return batch


def settle_entries(_journal, queue, entries, _state):
    for entry in entries:
        if entry.state == WRITING:
            entry.state = STORED
            if entry.evict:
                queue.stored([entry])


def commit(task):
    _commit(task)
    task._host.run_turn()


Journal.cut = cut
Journal._settle_entries = settle_entries
Committer._commit = commit

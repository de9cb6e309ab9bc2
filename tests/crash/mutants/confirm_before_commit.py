"""Publishers are told when a batch is cut, not when it is on disk."""

from broker.commit_task import CommitTask
from storage.blocks import STORED, WRITING
from storage.journal import Journal

_cut = Journal.cut
_commit = CommitTask._commit


def cut(journal):
    batch = _cut(journal)
    for _, entries in batch.entries:
        for entry in entries:
            if entry.durable:
                entry.message.accepted()
    return batch


def settle_entries(queue, entries):
    for entry in entries:
        if entry.state == WRITING:
            entry.state = STORED
            if entry.evict:
                queue.stored([entry])


def commit(task):
    _commit(task)
    task._host.run_turn()


Journal.cut = cut
Journal._settle_entries = staticmethod(settle_entries)
CommitTask._commit = commit

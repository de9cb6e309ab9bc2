"""Shared by some mutants: a commit that would delete something and write it elsewhere is made two."""

from collections.abc import Callable

from leveret.storage.journal.journal import Journal

_cut = Journal.cut


def forget_first(forgets: Callable[[Journal], bool]) -> None:
    """Make a journal of which this is true commit without its queues' messages; they go with the next commit."""
    kept = set()

    def cut(journal, page):
        queues = journal._queues
        if id(journal) in kept or not queues or not forgets(journal):
            kept.discard(id(journal))
            return _cut(journal, page)
        kept.add(id(journal))
        journal._queues = []
        batch = _cut(journal, page)
        journal._queues = queues
        journal.urgent = True
        return batch

    Journal.cut = cut

"""Mutant: the rows of ids are rewritten without some of them."""

from leveret.broker.queue import deduplication
from leveret.storage.message_ids import ENTRY, KnownIds

deduplication.FEW_CHANGES = -(1 << 40)
deduplication.FEW_ROWS = 1 << 20
_part = KnownIds.part


def part(self, at, most, now, others=()):
    entries, following = _part(self, at, most, now, others)
    return entries[ENTRY:], following


KnownIds.part = part

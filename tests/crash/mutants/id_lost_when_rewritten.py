"""Mutant: the rows of ids are rewritten without some of them."""

from leveret.broker.queue import id_log
from leveret.storage.message_ids import ENTRY, KnownIds

id_log.FEW_CHANGES = -(1 << 40)
id_log.FEW_ROWS = 1 << 20
_part = KnownIds.part


def part(self, at, most, now):
    entries, following = _part(self, at, most, now)
    return entries[ENTRY:], following


KnownIds.part = part

"""Mutant: the table of ids is copied without some of them."""

from leveret.broker.queue import id_log
from leveret.storage.message_ids import ENTRY, KnownIds

id_log.FEW_CHANGES = -(1 << 40)
id_log.FEW_ROWS = 1 << 20
_part = KnownIds.part


def part(self, at, octets):
    bucket = self._buckets[at]
    self._buckets[at] = bucket[ENTRY - self._told(at) :]
    try:
        return _part(self, at, octets)
    finally:
        self._buckets[at] = bucket


KnownIds.part = part

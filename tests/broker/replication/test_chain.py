"""Entries of the log, as whoever can write to the database may forge them: the hash that chains them has no key."""

from dataclasses import replace

import pytest

from leveret.broker.replication.chain import BATCHES, CHUNK, EMPTY, BadEntryError, check_entry, make_entry
from leveret.broker.replication.engine import ORIGIN, Entry

HOLDER = b"h" * 16


def entry(kind: int = EMPTY, settled: int = 0) -> Entry:
    return make_entry(ORIGIN, 1, HOLDER, settled, kind, b"")


@pytest.mark.parametrize("kind", [EMPTY, BATCHES, CHUNK])
def test_an_entry_of_a_known_kind_is_taken(kind: int) -> None:
    """The kinds that are applied, and the one that has nothing to apply, pass."""
    check_entry(ORIGIN, entry(kind))


@pytest.mark.parametrize(
    "forged",
    [
        entry(3),
        entry(255),
        replace(entry(), kind=256),
        replace(entry(), kind=-1),
        replace(entry(), settled=-1),
        replace(entry(), settled=1),
        replace(entry(), index=2),
        replace(entry(), epoch=-1),
        replace(entry(), payload=b"x"),
        replace(entry(), hash=b""),
    ],
)
def test_sec_52_an_entry_that_cannot_be_applied_is_never_left_out(forged: Entry) -> None:
    """An intact entry of an unknown kind is damage, not an empty entry: the copy would lack what all others have."""
    with pytest.raises(BadEntryError):
        check_entry(ORIGIN, forged)

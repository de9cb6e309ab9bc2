"""A commit writes the data of its batch."""

import pytest

from leveret.storage.errors import DiskFullError, Done
from leveret.storage.journal.batch import Batch, Changes


@pytest.mark.parametrize(
    ("durable", "paged", "octets"),
    [
        (Done.ALL, Done.NOTHING, 100),
        (Done.ALL, Done.DELETIONS, 100),
        (Done.DELETIONS, Done.ALL, 20),
        (Done.NOTHING, Done.NOTHING, 0),
    ],
)
def test_octets_that_found_room(durable: Done, paged: Done, octets: int) -> None:
    """The octets counted are those of the environments that have taken everything; all of them if none was full."""
    pages = Changes()
    pages.octets = 20
    batch = Batch(Changes(), pages, [], [], [], [], [], [], 1, 120, pages=True)

    assert octets == batch.written(DiskFullError("full", durable=durable, paged=paged))
    assert 120 == batch.written(None)

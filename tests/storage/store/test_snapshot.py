"""A snapshot of a data directory holds back the pages of both environments while it is open, and no longer."""

from pathlib import Path

import pytest
from writer import Writer

from leveret.storage.errors import StorageError
from leveret.storage.store.environment import Environment


def test_a_snapshot_that_cannot_be_opened_holds_back_no_pages(tmp_path: Path) -> None:
    """If the second environment cannot be read, the transaction that was opened in the first one ends."""
    environment = Environment(tmp_path)
    environment.paged.env.close()
    with pytest.raises(StorageError) as caught:
        environment.snapshot()
    Writer(environment).write(1)

    assert 0 == environment.store.lag()
    assert caught.value.__traceback__ is not None  # which keeps all that the snapshot had opened

    environment.close()

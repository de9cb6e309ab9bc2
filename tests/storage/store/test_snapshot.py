"""A snapshot of a data directory holds back the pages of both environments while it is open, and no longer."""

import threading
from pathlib import Path
from typing import Any

import pytest
from writer import QID, Writer

from leveret.storage.errors import StorageError
from leveret.storage.journal.reads import Range
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


def test_a_snapshot_that_is_closed_during_a_read_ends_with_the_read(tmp_path: Path, monkeypatch) -> None:
    """Whoever gives up waiting for a read, such as a request that takes too long, does not end what the read uses."""
    environment = Environment(tmp_path)
    Writer(environment).write(1)
    snapshot = environment.snapshot()
    begun, may_go_on = threading.Event(), threading.Event()
    read = environment.store.read

    def slow(*arguments: Any, **options: Any) -> Any:
        begun.set()
        assert may_go_on.wait(30)
        return read(*arguments, **options)

    monkeypatch.setattr(environment.store, "read", slow)
    found: list[int] = []
    ranges = [Range(QID, 0, 1 << 60)]
    thread = threading.Thread(target=lambda: found.append(len(snapshot.read(ranges, 1 << 20).blocks)))
    thread.start()
    assert begun.wait(30)
    snapshot.close()
    Writer(environment).write(2)
    assert environment.store.lag() > 0
    may_go_on.set()
    thread.join(30)

    assert [1] == found
    assert 0 == environment.store.lag()
    with pytest.raises(StorageError, match="closed"):
        snapshot.read(ranges, 1 << 20)
    snapshot.close()
    environment.close()

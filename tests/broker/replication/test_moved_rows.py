"""The definitions of virtual hosts that were moved to another log."""

import pytest

from leveret.broker.replication.engine import Moved
from leveret.broker.replication.moves import is_elsewhere, rows_elsewhere
from leveret.storage.store.metadata_rows import (
    BindingRow,
    ExchangeRow,
    PermissionRow,
    QueueRow,
    Row,
    UserRow,
    VHostRow,
    encode,
)

OLD, NEW = (3 << 32) + 1, (3 << 32) + 2
LATER = (4 << 32) + 1
LEFT = Moved(NEW, 3, "new", "log", is_here=False)
CAME = Moved(NEW, 3, "new", "log", is_here=True)


@pytest.mark.parametrize(
    ("vhost", "in_old", "in_new"), [(OLD, True, False), (NEW, False, True), (LATER, True, True)]
)
def test_a_virtual_host_of_the_time_before_is_in_one_log(vhost: int, in_old: bool, in_new: bool) -> None:
    """Later ones stay where they were made; a log without moves has everything."""
    assert in_old is not is_elsewhere(vhost, [LEFT])
    assert in_new is not is_elsewhere(vhost, [CAME])
    assert not is_elsewhere(vhost, [])


def rows(*more: Row) -> dict[bytes, Row]:
    made = [
        *(VHostRow(OLD, b"old"), VHostRow(NEW, b"new"), UserRow(b"u", b"", b"", [])),
        *(PermissionRow(b"u", name, b"", b"", b"") for name in (b"old", b"new")),
        *(QueueRow(vhost + 10, vhost, b"q", False, b"") for vhost in (OLD, NEW)),
        *(ExchangeRow(vhost + 20, vhost, b"e", b"direct", False, False, b"") for vhost in (OLD, NEW)),
        *(BindingRow(vhost + 20, vhost + 10, b"", b"", b"") for vhost in (OLD, NEW)),
        *more,
    ]
    return {row.key(): row for row in made}


@pytest.mark.parametrize("moved", [LEFT, CAME])
def test_all_that_it_has_goes_with_it(moved: Moved) -> None:
    """Queues, exchanges, bindings and permissions; users are in both logs."""
    found = rows()
    gone = rows_elsewhere([(key, encode(row)) for key, row in found.items()], [moved])
    number, name = (NEW, b"new") if moved is LEFT else (OLD, b"old")
    expected = {
        key
        for key, row in found.items()
        if number in {getattr(row, "id", 0), getattr(row, "vhost", 0), getattr(row, "source", 0) - 20}
        or getattr(row, "vhost", b"") == name
    }
    assert 5 == len(gone)
    assert expected == gone


def test_rights_are_of_the_later_one_of_two_with_a_name() -> None:
    """A virtual host that was made again keeps its permissions; damaged rows are left to the start."""
    found = rows(VHostRow(LATER, b"new"))
    stored = [(key, encode(row)) for key, row in found.items()]
    gone = rows_elsewhere([*stored, (b"V" + bytes(8), b"damaged")], [LEFT])

    assert not [found[key] for key in gone if isinstance(found[key], PermissionRow)]
    assert [NEW] == [found[key].id for key in gone if isinstance(found[key], VHostRow)]

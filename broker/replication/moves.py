"""Virtual hosts that were moved from one log to another: the definitions of a copy that no longer count. Pure.

The new log begins as a copy of the old one. Both have a record of the move from the transaction in which that was made,
so each virtual host is in exactly one of them: a node that begins to lead leaves out, and deletes, what is not in its
log. A record never applies to a virtual host that is created later, also one of the same name: ids begin with an epoch.
"""

from collections.abc import Iterable, Sequence

from leveret.broker.replication.engine import Moved
from leveret.storage.errors import DamagedError
from leveret.storage.store.metadata_rows import (
    BindingRow,
    ExchangeRow,
    PermissionRow,
    QueueRow,
    Row,
    TopicPermissionRow,
    VHostLimitsRow,
    VHostRow,
    decode,
)

_EPOCH_BITS = 32  # an id is an epoch, and a number in it


def is_elsewhere(vhost: int, moved: Iterable[Moved]) -> bool:
    """Return whether the virtual host of an id is in another log."""
    return any(
        vhost != each.vhost and vhost >> _EPOCH_BITS <= each.epoch if each.is_here else vhost == each.vhost
        for each in moved
    )


def rows_elsewhere(stored: Sequence[tuple[bytes, bytes]], moved: Sequence[Moved]) -> set[bytes]:
    """Return the keys of the definitions that belong to virtual hosts of other logs; damaged ones count as of this."""
    rows = [row for row in map(_decoded, stored) if row is not None] if moved else []
    gone = {row.id for row in rows if isinstance(row, VHostRow) and is_elsewhere(row.id, moved)}
    if not gone:
        return set()
    names = {row.name for row in rows if isinstance(row, VHostRow) and row.id in gone}
    names -= {row.name for row in rows if isinstance(row, VHostRow) and row.id not in gone}
    things = {row.id for row in rows if isinstance(row, ExchangeRow | QueueRow) and row.vhost in gone}
    found = set()
    for row in rows:
        if isinstance(row, VHostRow):
            is_gone = row.id in gone
        elif isinstance(row, BindingRow):
            is_gone = row.source in things or row.destination in things
        elif isinstance(row, PermissionRow | TopicPermissionRow | VHostLimitsRow):
            is_gone = row.vhost in names
        else:
            is_gone = getattr(row, "vhost", None) in gone
        if is_gone:
            found.add(row.key())
    return found


def _decoded(item: tuple[bytes, bytes]) -> Row | None:
    try:
        return decode(*item)
    except DamagedError:
        return None  # the start reports it

"""An append under an epoch that is over is taken: only the index is compared."""

from leveret.broker.replication import postgresql_schema as sql

_append = sql.append


def append(segment: int) -> str:
    return _append(segment).replace("where epoch = %(epoch)s and holder = %(holder)s and", "where")


sql.append = append

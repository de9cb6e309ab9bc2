"""A commit is answered before it is on a disk or a standby has it."""

from leveret.broker.replication import postgresql_schema as sql

sql.SESSION = sql.SESSION.replace("else 'on' end", "else 'off' end").replace(
    "then 'remote_apply'", "then 'off'"
)

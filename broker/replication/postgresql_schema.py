"""The tables of the log in PostgreSQL, and the statements on them. Needs PostgreSQL 11 or newer.

The lease is one row, which is updated in place (no index but that of its constant key, room in its page). Entries are
in segments: tables of their own, which a trim drops whole; the lease names the one that is written, so that the lock
on its row also decides that. So are the chunks of each snapshot: a delete would write as much as they have, all at
once. A role needs the right to create tables in its schema, and owns what it has created. Several logs are in a schema
each; the statements find the tables by the search path.
"""
# ruff: noqa: S608 - statements are put together from the constants and numbers of this module

from typing import Any

from leveret.broker.replication.engine import Entry

VERSION = 2

PART_OCTETS = 256 * 1024  # bytes of a row: a larger entry is several rows of one transaction

LEASE = "epoch, holder, counter, last, settled, total, name, address"
TIMELINE = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"
"""The timeline of a primary, without delay."""
PROOF = f"current_setting('synchronous_standby_names'), {TIMELINE}"
"""Standbys that must have a commit before it is answered; and the timeline."""

SESSION = """
select set_config(name, case name when 'client_min_messages' then 'notice' when 'synchronous_commit' then
    case setting when 'remote_apply' then 'remote_apply' else 'on' end else '0' end, false)
from pg_settings where name in ('client_min_messages', 'synchronous_commit', 'statement_timeout', 'lock_timeout',
    'transaction_timeout', 'idle_in_transaction_session_timeout', 'idle_session_timeout')
"""
"""No commit is answered before the standbys have it, and the server cancels nothing: a cancelled wait for standbys
reports success."""

EXISTS = "select exists (select from pg_class where relname = %s and pg_table_is_visible(oid))"
"""Not by `to_regclass`, which remembers in a transaction that there was no such table."""
LOCK = "lock table leveret_snapshot in share row exclusive mode"
"""Lets one node at a time replace snapshots, while all read. Not an advisory lock, which any role could hold."""
TABLES = (
    "create table leveret_schema (version int not null)",
    f"insert into leveret_schema values ({VERSION})",
    """create table leveret_lease (id int primary key, epoch bigint not null, holder bytea not null,
        counter bigint not null, last bigint not null, settled bigint not null, total bigint not null,
        name text not null, address text not null, segment bigint not null)
        with (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000)""",
    "insert into leveret_lease values (1, 0, '', 0, 0, 0, 0, '', '', 1)",
    """create table leveret_segments (number bigint primary key, first bigint not null,
        epoch bigint not null, hash bytea not null)""",
    "insert into leveret_segments values (1, 1, 0, decode(repeat('00', 32), 'hex'))",
    """create table leveret_members (name text primary key, address text not null, epoch bigint not null,
        index bigint not null, hash bytea not null, counter bigint not null)""",
    """create table leveret_snapshot (id bytea primary key, epoch bigint not null, index bigint not null,
        hash bytea not null, chunks int not null, total bigint not null, digest bytea not null,
        log_size bigint not null)""",
)

MOVES = """
create table {}.leveret_moves (vhost bigint not null, epoch bigint not null, name text not null,
    log text not null, is_here boolean not null)
"""
"""The virtual hosts that have gone to another log, and the one for which this was made; from the first move on."""
MOVED = "select vhost, epoch, name, log, is_here from leveret_moves order by epoch"

DIRECTORY = """
create table leveret_directory (id int primary key, epoch bigint not null, number bigint not null,
    vhosts bytea[] not null, wanted text not null, wanted_epoch bigint not null, wanted_until timestamptz not null)
"""
"""The virtual hosts of the log as its leader has published them, and the node that an operator wants to lead."""
DESCRIBE = """
insert into leveret_directory as d values (1, %s, %s, %s, '', 0, '-infinity') on conflict (id) do update
set epoch = excluded.epoch, number = excluded.number, vhosts = excluded.vhosts
where (d.epoch, d.number) < (excluded.epoch, excluded.number)
"""
USERS = "create table leveret_users (key bytea not null, value bytea, number bigint not null)"
"""Rows of users that other logs share, under the number of the description with which they came: without a value for
one that was deleted. Without an index, as keys may be longer than it takes."""
FORGET_USERS = "delete from leveret_users where key = any(%s) or %s"
PUT_USERS = "insert into leveret_users select unnest(%s::bytea[]), unnest(%s::bytea[]), %s"
CLOSING_NUMBER = 2**63 - 1
"""A description of this number is the last one of its epoch."""
WANTED = """
select wanted from leveret_directory d, leveret_lease l where d.wanted_epoch = l.epoch and wanted_until > now()
"""

LOGS = """
select nspname, quote_ident(nspname), nspname = current_schema() from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where relname = %s and pg_get_userbyid(relowner) = current_user order by nspname
"""
"""The schemas of logs, which have a table of this name."""
LED = "select {}, case when holder = '' then '' else name end from {}.leveret_lease"

SEE = f"select {LEASE} from leveret_lease"
TAKE = f"""
update leveret_lease set epoch = epoch + 1, holder = %s, counter = counter + 1, name = %s, address = %s
where epoch = %s and holder = %s and counter = %s and last = %s returning {LEASE}, {PROOF}
"""
RENEW = f"""
update leveret_lease set counter = counter + 1, settled = greatest(settled, %s)
where epoch = %s and holder = %s returning {PROOF}
"""
RELEASE = f"""
with l as (update leveret_lease set counter = counter + 1, settled = greatest(settled, %s), holder = '', name = %s,
    address = '' where epoch = %s and holder = %s returning {PROOF})
select l.*, pg_notify(%s, '')::text from l
"""
SEGMENT = "select segment from leveret_lease"
SEGMENTS = "select number, first, epoch, hash from leveret_segments order by number"
ROLL = """
with l as (update leveret_lease set segment = %s where epoch = %s and holder = %s and last = %s and segment = %s
    returning id)
insert into leveret_segments select %s, %s, {before}.epoch, {before}.hash from l, {before}
where {before}.index = %s and {before}.part = 1
"""
REPORT = """
insert into leveret_members values (%s, %s, %s, %s, %s, 1) on conflict (name) do update set address = excluded.address,
    epoch = excluded.epoch, index = excluded.index, hash = excluded.hash, counter = leveret_members.counter + 1
"""
MEMBERS = "select name, address, epoch, index, hash, counter from leveret_members order by name"
FORGET = "delete from leveret_members where name = %s"
SNAPSHOT = "select id, epoch, index, hash, chunks, total, digest, log_size from leveret_snapshot"
ALL_CHUNKS = r"""
select relname from pg_class where relkind = 'r' and relname ~ '^leveret\_chunks\_[0-9a-f]{32}$'
    and pg_table_is_visible(oid)
"""
KEEP = "insert into leveret_snapshot values (%s, %s, %s, %s, %s, %s, %s, %s)"


def create_schema(log: str) -> str:
    """Return the statement that creates the schema of a log, if it is not there."""
    # "create schema if not exists" needs the right to create one also where there is nothing to create.
    return f"""do $$ begin
        if not exists (select from pg_namespace where nspname = '{log}') then create schema "{log}"; end if; end $$"""


def use_schema(log: str) -> str:
    """Return the statement by which a session finds the tables of a log."""
    return f'set search_path = "{log}"'


def released(log: str) -> str:
    """Return the channel that notifies the nodes of a log of the return of its lease."""
    return f"leveret_released_{log}" if log else "leveret_released"


def table(segment: int) -> str:
    """Return the name of the table of a segment."""
    return f"leveret_log_{segment}"


def create(segment: int) -> str:
    """Return the statement that creates the table of a segment."""
    return f"""create table {table(segment)} (index bigint, part int, epoch bigint not null, holder bytea not null,
        settled bigint not null, kind int not null, hash bytea not null, data bytea not null,
        primary key (index, part))"""


def store_outside(segment: int) -> str:
    """Return the statement by which payloads are not compressed: they are read in pieces, and written often."""
    return f"alter table {table(segment)} alter column data set storage external"


def chunks(snapshot: bytes) -> str:
    """Return the name of the table of the chunks of a snapshot, by its id."""
    return f"leveret_chunks_{snapshot.hex()}"


def create_chunks(name: str) -> tuple[str, str]:
    """Return the statements that create a table of chunks. Chunks are hashed when they come, not read again."""
    return (
        f"create table {name} (number int primary key, hash bytea not null, data bytea not null)",
        f"alter table {name} alter column data set storage external",
    )


def put(name: str) -> str:
    """Return the statement that keeps a chunk."""
    return f"""insert into {name} select c.number, sha256(c.data), c.data
        from (select %s::int as number, %s::bytea as data) c
        on conflict (number) do update set hash = excluded.hash, data = excluded.data"""


def get(name: str) -> str:
    """Return the query for a chunk."""
    return f"select data from {name} where number = %s"


def digest(name: str) -> str:
    """Return the query for the number of chunks up to one, their size, and the hash over their hashes."""
    return f"""select count(*), sum(octet_length(data)), sha256(string_agg(hash, ''::bytea order by number))
        from {name} where number < %s"""


def append(segment: int) -> str:
    """Return the statement that appends an entry in parts, if the lease is right: the update locks it.

    The payload is one parameter, which the server cuts: both ends would copy the bytes of a list of parts twice more.
    """
    return f"""
    with l as (update leveret_lease set last = %(index)s, counter = counter + 1,
            settled = greatest(settled, %(settled)s), total = total + %(limit)s
        where epoch = %(epoch)s and holder = %(holder)s and last = %(index)s - 1 and segment = {segment} returning id),
    i as (insert into {table(segment)} select %(index)s, p.part, %(epoch)s, %(holder)s, %(settled)s, %(kind)s, %(hash)s,
            substring(%(data)b::bytea from (p.part - 1) * {PART_OCTETS} + 1 for {PART_OCTETS})
            from l, generate_series(1, %(parts)s) as p (part))
    select {PROOF} from l
    """


def place(segment: int) -> str:
    """Return the query for the place behind an entry."""
    return f"select epoch, hash from {table(segment)} where index = %s and part = 1"


def entries(segment: int) -> str:
    """Return the query for the parts of entries behind an index, up to the one that reaches a number of bytes."""
    return f"""
    with next as (select index, part, octet_length(data) as size from {table(segment)} where index > %(after)s
            order by index, part limit 1000),
    total as (select index, sum(size) over (order by index, part) as size from next)
    select index, epoch, holder, settled, kind, hash, data from {table(segment)} where index > %(after)s and index <=
        (select coalesce(min(index) filter (where size >= %(limit)s), max(index)) from total)
    order by index, part
    """


def whole(rows: Any) -> list[Entry]:
    """Return the entries of rows that the query of `entries` has found, each made of its parts."""
    found: list[Entry] = []
    parts: list[bytes] = []
    last: Any = None
    for row in [*rows, None]:
        if last is not None and (row is None or row[0] != last[0]):
            index, epoch, holder, settled, kind, chained, _ = last
            found.append(Entry(index, epoch, bytes(holder), settled, kind, b"".join(parts), bytes(chained)))
            parts = []
        if row is not None:
            parts.append(bytes(row[6]))
        last = row
    return found

"""The copy of a log in PostgreSQL, for a virtual host that goes on in it (driver).

All is a part of the transaction in which the leader gives its lease back, so that it is done, or nothing is: a kill of
either side ends the connection, and the server undoes it. No node leads the old log meanwhile, because the row of its
lease is locked, nor the new one, because it cannot be seen.
"""
# ruff: noqa: S608 - statements are put together from the constants of the schema, and checked names

import asyncio
from collections.abc import Callable
from typing import Any, Final

import psycopg

from leveret.broker.metadata.recorder import octets
from leveret.broker.replication import postgresql_schema as sql
from leveret.broker.replication.engine import Move
from leveret.broker.replication.postgresql_servers import Servers

VERSION: Final = sql.VERSION + 1  # of tables with moves, which an older node would not obey

_WATCH: Final = """
select set_config(name, '1000', true) from pg_settings where name = 'client_connection_check_interval'
"""
"""Has the server look whether the client is there while it copies; from PostgreSQL 14 on."""
_SOURCE: Final = """
select quote_ident(nspname), epoch from leveret_lease, pg_class c join pg_namespace n on n.oid = c.relnamespace
where relname = 'leveret_lease' and pg_table_is_visible(c.oid)
"""
_LOCK_SEGMENTS: Final = "lock table leveret_segments in share mode"  # no trim drops what is being copied
_FILLED: Final = ("leveret_lease", "leveret_segments", "leveret_snapshot")
_MOVE_AWAY: Final = f"""
insert into leveret_directory as d values (1, %(epoch)s, {sql.CLOSING_NUMBER}, '{{}}', '', 0, '-infinity')
on conflict (id) do update
set epoch = excluded.epoch, number = excluded.number, vhosts = array_remove(d.vhosts, %(vhost)s)
"""
"""Under the last number, because the leader may be publishing what it had before."""
_HAS_LOG: Final = "select exists (select from pg_namespace where nspname = %s)"


async def copy_log(connection: Any, move: Move) -> None:
    """Make the new log, in the transaction of a connection whose search path has the old one; raises psycopg.Error."""
    await connection.execute(_WATCH)
    await connection.execute(sql.LOCK)
    await connection.execute(_LOCK_SEGMENTS)
    (has_moves,) = await (await connection.execute(sql.EXISTS, ("leveret_moves",))).fetchone()
    source, epoch = await (await connection.execute(_SOURCE)).fetchone()
    segments = await (await connection.execute("select number from leveret_segments")).fetchall()
    snapshots = await (await connection.execute("select id from leveret_snapshot")).fetchall()
    tables = [sql.table(number) for (number,) in segments]
    chunks = [sql.chunks(bytes(id_)) for (id_,) in snapshots]
    if not (await (await connection.execute(sql.EXISTS, ("leveret_directory",))).fetchone())[0]:
        await connection.execute(sql.DIRECTORY)
    await connection.execute(_MOVE_AWAY, {"epoch": epoch, "vhost": octets(move.name)})
    for statement in (
        f'create schema "{move.log}"',
        f'set local search_path = "{move.log}"',
        *sql.TABLES,
        sql.DIRECTORY,
        *(f"delete from {each}" for each in _FILLED),
        *(each for (number,) in segments for each in (sql.create(number), sql.store_outside(number))),
        *(each for name in chunks for each in sql.create_chunks(name)),
        *(f"insert into {each} select * from {source}.{each}" for each in (*_FILLED, *tables, *chunks)),
    ):
        await connection.execute(statement)
    await connection.execute(sql.DESCRIBE, (epoch, 0, [octets(move.name)]))
    for schema, is_here in ((source, False), (f'"{move.log}"', True)):
        if is_here or not has_moves:  # not "if not exists", of which the server would tell
            await connection.execute(sql.MOVES.format(schema))
        values = (move.vhost, epoch, move.name, move.log, is_here)
        await connection.execute(f"insert into {schema}.leveret_moves values (%s, %s, %s, %s, %s)", values)
        await connection.execute(f"update {schema}.leveret_schema set version = {VERSION}")


def look_for_log(servers: Servers, name: str, done: Callable[[str], object]) -> None:
    """Call back with the reason for which no log of a name can be made; '' if one can. From the event loop."""
    looking = asyncio.ensure_future(_problem(servers, name))
    looking.add_done_callback(lambda found: done(found.result()))


async def _problem(servers: Servers, name: str) -> str:
    try:
        async with (await servers.connect()).connection as connection:
            (found,) = await (await connection.execute(_HAS_LOG, (name,))).fetchone()
    except (psycopg.Error, OSError) as error:
        return f"the database does not answer: {type(error).__name__}"
    return f"there is a log, or another schema, '{name}': a virtual host needs a new one" if found else ""

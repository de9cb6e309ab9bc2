"""The logs of a database in PostgreSQL, read by brokers that are nodes of none (driver).

A log is a schema with the tables of `postgresql_schema`, and counts if the role of the connection owns them: any other
could attract the clients of a virtual host. What is read is of one moment, in which each virtual host that is moved is
in one log.
"""

import asyncio
from typing import Any, Final

import psycopg

from leveret.broker.replication import postgresql_schema as sql
from leveret.broker.replication.directory import LogFacts
from leveret.broker.replication.engine import Member, NoAnswerError, Position
from leveret.broker.replication.postgresql_servers import Servers

ANSWER_SECONDS: Final = 5.0
HANDOVER_SECONDS: Final = 30  # time for which a leader obeys a wish, as long as it is that of the same epoch
_LOG: Final = """
select epoch, case when holder = '' then '' else name end,
    coalesce((select vhosts from {0}.leveret_directory), '{{}}') from {0}.leveret_lease
"""
_MEMBERS: Final = "select name, address, epoch, index, hash, counter from {}.leveret_members order by name"
_USERS: Final = "select key, value from {}.leveret_users where number > %s"
_NUMBER: Final = "select epoch, number from {}.leveret_directory"
_WANT: Final = """
update {}.leveret_directory set wanted = %s, wanted_epoch = %s, wanted_until = now() + make_interval(secs => %s)
"""


Users = tuple[int, int, list[tuple[bytes, bytes | None]], bool]
"""Epoch and number of the description; keys and values, or None, of rows; True if these are all."""


class LogReader:
    """A connection to a database, made when it is needed."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._connection: Any = None

    async def read(self) -> list[LogFacts]:
        """Return all logs, by name. Raises NoAnswerError."""
        found: list[LogFacts] = await self._do(self._read)
        return found

    async def want(self, log: LogFacts, successor: str) -> None:
        """Have the leader of a log hand over, unless it leads no more. Raises NoAnswerError."""

        async def write() -> None:
            statement = _WANT.format(psycopg.sql.Identifier(log.name).as_string(None))
            await self._connection.execute(statement, (successor, log.epoch, HANDOVER_SECONDS))

        await self._do(write)

    async def users(self, log: str, since: tuple[int, int]) -> Users | None:
        """Return what a log has published of its users since a description; None for nothing. Raises NoAnswerError.

        `since` is the epoch and number of the last description that was read: there are all rows unless this goes on.
        """

        async def read() -> Users | None:
            execute = self._connection.execute
            await execute("begin isolation level repeatable read read only")
            found = await (await execute(sql.LOGS, ("leveret_users",))).fetchall()
            quoted = {name: each for name, each, _ in found}.get(log)
            users: Users | None = None
            if quoted is not None:
                epoch, number = await (await execute(_NUMBER.format(quoted))).fetchone()
                is_whole = epoch != since[0] or number < since[1]  # of a backup that was restored
                rows = await execute(_USERS.format(quoted), (-1 if is_whole else since[1],))
                users = epoch, number, await rows.fetchall(), is_whole
            await execute("commit")
            return users

        found: Users | None = await self._do(read)
        return found

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    async def _do(self, work: Any) -> Any:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                if self._connection is None:
                    self._connection = (await self._servers.connect()).connection
                    await self._connection.execute(sql.SESSION)
                return await work()
        except (psycopg.Error, OSError) as error:  # TimeoutError, too
            await self.close()
            raise NoAnswerError(str(error).partition("\n")[0] or "it does not answer") from error
        except BaseException:
            await self.close()
            raise

    async def _read(self) -> list[LogFacts]:
        execute = self._connection.execute
        await execute("begin isolation level repeatable read read only")
        found = []
        for name, quoted, _ in await (await execute(sql.LOGS, ("leveret_directory",))).fetchall():
            if (row := await (await execute(_LOG.format(quoted))).fetchone()) is None:
                continue  # it is being restored
            epoch, leader, vhosts = row
            rows = await (await execute(_MEMBERS.format(quoted))).fetchall()
            members = tuple(
                Member(node, address, Position(at, index, bytes(hash_)), counter)
                for node, address, at, index, hash_, counter in rows
            )
            found.append(LogFacts(name, epoch, leader, tuple(map(bytes, vhosts)), members))
        await execute("commit")
        return found

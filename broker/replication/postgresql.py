"""The log in PostgreSQL (driver): one connection, on which one request follows the other.

Statements and tables: `postgresql_schema`. Each request that changes something is one statement with autocommit, or a
short transaction, so that a node that stops holds no lock. Needs the extra `leveret[postgresql]`.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import psycopg
from psycopg import IsolationLevel

from leveret.broker.replication import engine, postgresql_schema as sql
from leveret.broker.replication.postgresql_moves import VERSION as MOVED_VERSION, copy_log
from leveret.broker.replication.postgresql_servers import Servers

log = logging.getLogger("leveret.replication")

SEGMENT_OCTETS = 64 * 1024 * 1024
SEGMENT_ENTRIES = 100_000
DROP_LOCK = "200ms"  # time for which a drop waits for readers of the table, and others wait behind it
LOOK_SECONDS = 5.0
"""Time without an answer after which a newer server is looked for: a primary that another one has replaced waits for
its standbys for ever."""


class SchemaVersionError(Exception):
    """The tables were made by a version whose format this one does not know."""


class News:
    """The news of one connection: another session has given the lease back.

    The server sends a notification at once, also while no request is under way. The event loop watches the socket then.
    Data on it, or its end, cause the next request, which reads them; `told` is called.
    """

    def __init__(self, told: Callable[[], object]) -> None:
        self._told = told
        self._watched = -1  # descriptor of the socket that is watched; negative for none

    async def begin(self, connection: Any, channel: str) -> None:
        """Have the server notify a new connection."""
        connection.add_notify_handler(lambda _: self._told())  # those that come with the answer to a request
        await connection.execute(f"listen {channel}")

    def watch(self, connection: Any) -> None:
        """Watch the socket of a connection without a request under way."""
        self._watched = connection.fileno()
        asyncio.get_running_loop().add_reader(self._watched, self._heard)

    def rest(self) -> None:
        """Watch nothing: before each request, which reads from the socket, and before the connection is closed."""
        if self._watched >= 0:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = -1

    def _heard(self) -> None:
        self.rest()
        self._told()


class PostgreSQLDriver:
    """A connection to the log in PostgreSQL, made when it is needed; an `engine.Engine`.

    All drivers of a node have the same `servers`, so that all leave one that is replaced. `log` names one of several
    logs in a database.
    """

    def __init__(self, servers: Servers, log: str = "", *, segment_octets: int = SEGMENT_OCTETS) -> None:
        self._servers = servers
        self._log = log
        self._released = sql.released(log)
        self._timeline = 0  # of the server that it is connected to
        self._segment_octets = segment_octets
        self._connection: Any = None
        self._under_way: asyncio.Task[engine.Answer] | None = None
        self._was_warned = False
        self._news: News | None = None
        self._segment = 0
        self._octets = 0
        self._entries = 0

    async def perform(self, request: engine.Request) -> engine.Answer:
        """Perform a request. It goes on if the caller is cancelled: an append is never cancelled in the server.

        Raises NoAnswerError: the connection broke, the server reported an error, or warned of anything, or another one
        has replaced it, and it does not answer; SchemaVersionError: see there.
        """
        self._under_way = task = asyncio.create_task(self._perform(request))
        while self._servers.are_several:
            await asyncio.wait([task], timeout=LOOK_SECONDS)
            if task.done():
                break
            await self._servers.look()
            if self._is_replaced:
                await self._disconnect()
        return await asyncio.shield(task)

    @property
    def _is_replaced(self) -> bool:
        return self._timeline < self._servers.newest

    def listen(self, told: Callable[[], object]) -> None:
        """Call back when the lease was given back; before the first request."""
        self._news = News(told)

    async def close(self) -> None:
        """Close the connection; a request under way may still be performed."""
        await self._disconnect()
        if self._under_way is not None:
            await asyncio.wait([self._under_way])
            await self._disconnect()  # it may have been connecting
            if not self._under_way.cancelled():
                self._under_way.exception()  # nobody waits for it any more

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if self._news is not None:
            self._news.rest()
        if connection is not None:
            await connection.close()

    async def _perform(self, request: engine.Request) -> engine.Answer:
        try:
            if self._connection is not None and self._is_replaced:
                await self._disconnect()
            if self._connection is None or self._connection.closed:
                await self._connect()
            self._was_warned = False
            if self._news is not None:
                self._news.rest()
            answer = await self._dispatch(request)
        except (psycopg.Error, OSError) as error:
            await self._disconnect()
            raise engine.NoAnswerError(type(error).__name__) from error
        if self._was_warned:
            await self._disconnect()
            raise engine.NoAnswerError("the server warned: the answer may be one that no standby has")
        if self._news is not None and self._connection is not None and not self._connection.closed:
            self._news.watch(self._connection)
        return answer

    async def _connect(self) -> None:
        self._connection, self._timeline = await self._servers.connect()
        self._connection.add_notice_handler(self._note_warning)
        await self._connection.execute(sql.SESSION)
        if self._log:
            with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateSchema):
                await self._connection.execute(
                    sql.create_schema(self._log)
                )  # or another node does at this moment
            await self._connection.execute(sql.use_schema(self._log))
        if not await self._has_table("leveret_schema"):
            # Another node may be making them: the second one waits for the first, and fails then.
            with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
                async with self._connection.transaction():
                    for statement in (*sql.TABLES, sql.create(1), sql.store_outside(1)):
                        await self._connection.execute(statement)
        (version,) = await self._row("select version from leveret_schema")
        if version not in {sql.VERSION, MOVED_VERSION}:
            where = f"the tables of log {self._log}" if self._log else "the tables"
            raise SchemaVersionError(f"{where} have version {version}, this one knows {sql.VERSION}")
        await self._find_segment()
        if self._news is not None:
            await self._news.begin(self._connection, self._released)

    def _note_warning(self, _diagnostic: object) -> None:
        self._was_warned = True

    async def _row(self, statement: str, values: Any = ()) -> Any:
        cursor = await self._connection.execute(statement, values, binary=True)
        return await cursor.fetchone()

    async def _rows(self, statement: str, values: Any = ()) -> Any:
        cursor = await self._connection.execute(statement, values, binary=True)
        return await cursor.fetchall()

    async def _lease(self) -> engine.Lease:
        return engine.Lease(*await self._row(sql.SEE))

    async def _dispatch(self, request: engine.Request) -> engine.Answer:  # noqa: PLR0911 - one for each request
        match request:
            case engine.Append(entry):
                return await self._append(entry)
            case engine.Take(seen, holder, name, address):
                taking = (holder, name, address, seen.epoch, seen.holder, seen.counter, seen.last)
                answer = await self._change(sql.TAKE, taking, _taken)
                if isinstance(answer, engine.Taken):
                    return answer._replace(moved=await self._moved())
                return answer
            case engine.Renew(epoch, holder, settled):
                return await self._change(sql.RENEW, (settled, epoch, holder), _renewed)
            case engine.Release():
                return await self._release(request)
            case engine.Read():
                return await self._read(request)
            case engine.Trim():
                return await self._trim(request)
            case engine.Report(member):
                place = member.position
                values = (member.name, member.address, place.epoch, place.index, place.hash)
                await self._connection.execute(sql.REPORT, values)
                return await self._members()
            case engine.Forget(name):
                await self._connection.execute(sql.FORGET, (name,))
                return await self._members()
            case _:
                return await self._others(request)

    async def _change(
        self, statement: str, values: Any, answer: Callable[[Any], engine.Answer]
    ) -> engine.Answer:
        """Change the lease, which is refused if it is not as the statement says."""
        row = await self._row(statement, values)
        return engine.Refused(await self._lease()) if row is None else answer(row)

    async def _release(self, request: engine.Release) -> engine.Answer:
        """Give the lease back, and make the new log of a move; if the server cannot do that, not that."""
        values = (request.settled, request.successor, request.epoch, request.holder, self._released)
        async with self._connection.transaction():
            answer = await self._change(sql.RELEASE, values, _renewed)
            if request.move is not None and isinstance(answer, engine.Renewed):
                try:
                    async with self._connection.transaction():
                        await copy_log(self._connection, request.move)
                except psycopg.Error as error:
                    if self._connection.closed:
                        raise
                    what = "replication: virtual host '%s' stays where it is, log '%s' cannot be made: %s"
                    log.error(what, request.move.name, request.move.log, error)  # noqa: TRY400 - of the server
        return answer

    async def _has_table(self, name: str) -> bool:
        return bool((await self._row(sql.EXISTS, (name,)))[0])

    async def _describe(self, request: engine.Describe) -> bool:
        if not await self._has_table("leveret_directory"):
            with contextlib.suppress(psycopg.errors.UniqueViolation, psycopg.errors.DuplicateTable):
                await self._connection.execute(sql.DIRECTORY)
        values = (request.epoch, request.number, list(request.vhosts))
        async with self._connection.transaction():
            changed: int = (await self._connection.execute(sql.DESCRIBE, values)).rowcount
            if changed == 1 and (request.rows or request.is_whole):
                await self._put_users(request)
        return changed == 1

    async def _put_users(self, request: engine.Describe) -> None:
        if not await self._has_table("leveret_users"):
            await self._connection.execute(sql.USERS)
        keys, values = [key for key, _ in request.rows], [value for _, value in request.rows]
        await self._connection.execute(sql.FORGET_USERS, (keys, request.is_whole))
        await self._connection.execute(sql.PUT_USERS, (keys, values, request.number))

    async def _wanted(self) -> str:
        if not await self._has_table("leveret_directory"):
            return ""
        row = await self._row(sql.WANTED)
        return "" if row is None else str(row[0])

    async def _moved(self) -> tuple[engine.Moved, ...]:
        if not await self._has_table("leveret_moves"):
            return ()
        return tuple(engine.Moved(*row) for row in await self._rows(sql.MOVED))

    # -- the log ----------------------------------------------------------------------------------------------------

    async def _find_segment(self) -> None:
        (self._segment,) = await self._row(sql.SEGMENT)
        counted = (
            f"select count(*), coalesce(sum(octet_length(data)), 0)::bigint from {sql.table(self._segment)}"  # noqa: S608 - a number
        )
        self._entries, self._octets = await self._row(counted)

    async def _append(self, entry: engine.Entry) -> engine.Answer:
        if self._octets >= self._segment_octets or self._entries >= SEGMENT_ENTRIES:
            await self._roll(entry)
        payload = entry.payload
        values = {
            "index": entry.index,
            "settled": entry.settled,
            "limit": len(payload),
            "epoch": entry.epoch,
            "holder": entry.holder,
            "kind": entry.kind,
            "hash": entry.hash,
            "data": payload,
            "parts": max(1, -(-len(payload) // sql.PART_OCTETS)),
        }
        row = await self._row(sql.append(self._segment), values)
        if row is None:
            before = self._segment
            await self._find_segment()
            if self._segment == before:
                return engine.Refused(await self._lease())
            row = await self._row(sql.append(self._segment), values)  # another leader has begun it
            if row is None:
                return engine.Refused(await self._lease())
        self._octets += len(payload)
        self._entries += 1
        return engine.Appended(engine.Proof(*row))

    async def _roll(self, entry: engine.Entry) -> None:
        """Begin the next segment with an entry, if the lease is that of the entry."""
        number = self._segment + 1
        statement = sql.ROLL.format(before=sql.table(self._segment))
        lease = (number, entry.epoch, entry.holder, entry.index - 1, self._segment)
        async with self._connection.transaction():
            await self._connection.execute(sql.create(number))
            await self._connection.execute(sql.store_outside(number))
            cursor = await self._connection.execute(statement, (*lease, number, entry.index, entry.index - 1))
            if cursor.rowcount != 1:
                raise psycopg.Rollback
        await self._find_segment()

    async def _read(self, request: engine.Read) -> engine.Found:
        await self._connection.set_isolation_level(IsolationLevel.REPEATABLE_READ)
        try:
            async with self._connection.transaction():
                *lease, _, timeline = await self._row(f"select {sql.LEASE}, {sql.PROOF} from leveret_lease")  # noqa: S608 - constants
                segments = await self._rows(sql.SEGMENTS)
                base = engine.Position(segments[0][2], segments[0][1] - 1, bytes(segments[0][3]))
                previous = await self._place(request.after, base, segments)
                found: list[engine.Entry] = []
                if previous is not None:
                    (number,) = [each[0] for each in segments if each[1] <= request.after + 1][-1:]
                    values = {"after": request.after, "limit": request.octets}
                    found = sql.whole(await self._rows(sql.entries(number), values))
        finally:
            await self._connection.set_isolation_level(None)
        return engine.Found(engine.Lease(*lease), previous, tuple(found), base.index, timeline)

    async def _place(self, index: int, base: engine.Position, segments: Any) -> engine.Position | None:
        if index <= base.index:
            return base if index == base.index else None
        number = [each[0] for each in segments if each[1] <= index][-1]
        row = await self._row(sql.place(number), (index,))
        return None if row is None else engine.Position(row[0], index, bytes(row[1]))

    async def _trim(self, request: engine.Trim) -> engine.Answer:
        try:
            async with self._connection.transaction():
                await self._connection.execute(f"set local lock_timeout = '{DROP_LOCK}'")
                lease = await self._lease()
                if (lease.epoch, lease.holder) != (request.epoch, request.holder):
                    return engine.Refused(lease)
                snapshot = await self._row(sql.SNAPSHOT + " for share")
                if snapshot is not None and request.through <= snapshot[2]:
                    segments = await self._rows(sql.SEGMENTS)
                    for each, following in pairwise(segments):
                        if following[1] - 1 <= request.through:
                            await self._connection.execute(f"drop table {sql.table(each[0])}")
                            await self._connection.execute(
                                "delete from leveret_segments where number = %s", (each[0],)
                            )
        except psycopg.errors.LockNotAvailable:
            pass  # somebody reads it; the next trim comes
        (first,) = await self._row("select min(first) from leveret_segments")
        return engine.Trimmed(first - 1)

    # -- members, snapshots -----------------------------------------------------------------------------------------

    async def _members(self) -> engine.Members:
        return engine.Members(
            tuple(
                engine.Member(name, address, engine.Position(epoch, index, bytes(hash_)), counter)
                for name, address, epoch, index, hash_, counter in await self._rows(sql.MEMBERS)
            ),
            await self._moved(),
            await self._wanted(),
            await self._logs() if self._log else (),
        )

    async def _logs(self) -> tuple[engine.Led, ...]:
        found = await self._rows(sql.LOGS, ("leveret_lease",))
        queries = (sql.LED.format(at, quoted) for at, (_, quoted, _) in enumerate(found))
        leaders = dict(await self._rows(" union all ".join(queries)))
        return tuple(  # a log that is being restored has no lease yet
            engine.Led(name, leaders.get(at, ""), is_here) for at, (name, _, is_here) in enumerate(found)
        )

    async def _others(self, request: engine.Request) -> engine.Answer:
        match request:
            case engine.Describe():
                return engine.Kept(kept=await self._describe(request))
            case engine.PutChunk():
                return engine.Kept(kept=await self._put(request))
            case engine.GetChunk(id_, number):
                try:
                    row = await self._row(sql.get(sql.chunks(id_)), (number,))
                except psycopg.errors.UndefinedTable:
                    row = None
                return engine.Chunk(None if row is None else bytes(row[0]))
            case engine.FindSnapshot():
                return engine.Known(await self._snapshot())
            case engine.Complete(snapshot):
                return engine.Kept(kept=await self._complete(snapshot))
            case _:
                raise TypeError(type(request))

    async def _snapshot(self) -> engine.Snapshot | None:
        row = await self._row(sql.SNAPSHOT)
        if row is None:
            return None
        id_, epoch, index, hash_, chunks, octets, digest, log_octets = row
        place = engine.Position(epoch, index, bytes(hash_))
        return engine.Snapshot(bytes(id_), place, chunks, octets, bytes(digest), log_octets)

    async def _put(self, request: engine.PutChunk) -> bool:
        name = sql.chunks(request.id)
        if not request.number and not await self._has_table(name):
            async with self._connection.transaction():
                for statement in sql.create_chunks(name):
                    await self._connection.execute(statement)
        try:
            await self._connection.execute(sql.put(name), (request.number, request.data))
        except psycopg.errors.UndefinedTable:
            return False
        return True

    async def _complete(self, snapshot: engine.Snapshot) -> bool:
        try:
            async with self._connection.transaction():
                is_kept = await self._replace(snapshot)
        except psycopg.errors.UndefinedTable:  # it was replaced, and so dropped
            return False
        if is_kept:
            await self._drop_others()
        return is_kept

    async def _replace(self, snapshot: engine.Snapshot) -> bool:
        """Make a snapshot the one that counts, unless its chunks are not all there, or it is old, or does not fit."""
        await self._connection.execute(sql.LOCK)
        found = await self._row(sql.digest(sql.chunks(snapshot.id)), (snapshot.chunks,))
        if tuple(found) != (snapshot.chunks, snapshot.octets, snapshot.hash):
            return False
        known = await self._snapshot()
        place = snapshot.position
        if known is not None and known.position.index > place.index:
            return False
        segments = await self._rows(sql.SEGMENTS)
        base = engine.Position(segments[0][2], segments[0][1] - 1, bytes(segments[0][3]))
        if place != (engine.ORIGIN if not place.index else await self._place(place.index, base, segments)):
            return False
        await self._connection.execute("delete from leveret_snapshot")
        values = (snapshot.id, place.epoch, place.index, place.hash)
        counted = (snapshot.chunks, snapshot.octets, snapshot.hash, snapshot.log_octets)
        await self._connection.execute(sql.KEEP, (*values, *counted))
        return True

    async def _drop_others(self) -> None:
        """Drop the chunks of snapshots that do not count, which another node may change, unless a reader has them."""
        for (name,) in await self._rows(sql.ALL_CHUNKS):
            with contextlib.suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UndefinedTable):
                async with self._connection.transaction():
                    await self._connection.execute(sql.LOCK)
                    known = await self._snapshot()
                    if known is not None and name != sql.chunks(known.id):
                        await self._connection.execute(f"set local lock_timeout = '{DROP_LOCK}'")
                        await self._connection.execute(f"drop table {name}")


def _taken(row: Any) -> engine.Taken:
    return engine.Taken(engine.Lease(*row[:8]), engine.Proof(*row[8:]))


def _renewed(row: Any) -> engine.Renewed:
    return engine.Renewed(engine.Proof(*row[:2]))

"""The driver of PostgreSQL: it passes the conformance suite with a real server, and believes no warning."""

import asyncio

import pytest
from processes.postgresql_server import postgresql
from replicated.conformance import *  # noqa: F403 - the suite
from replicated.conformance import DEADLINE, HOLDER, OTHER, append, ask, fill, follow, keep_snapshot, take

from leveret.broker.replication import engine as protocol
from leveret.broker.replication.chain import BATCHES, make_entry

psycopg = pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from leveret.broker.replication import postgresql_schema as sql  # noqa: E402
from leveret.broker.replication.postgresql import PostgreSQLDriver, SchemaVersionError  # noqa: E402
from leveret.broker.replication.postgresql_servers import Servers, with_timeouts  # noqa: E402


class PostgreSQLSetup:
    """A database of its own, for the suite."""

    def __init__(self, server, name, log=""):
        self.server = server
        self.name = name
        self.log = log
        self.drivers = []

    def url(self, name=None):
        return f"postgresql:///{name or self.name}{self.server}"

    async def connect(self, **settings):
        driver = PostgreSQLDriver(Servers(self.url()), **{"log": self.log, **settings})
        self.drivers.append(driver)
        return driver

    async def close(self):
        async with asyncio.timeout(DEADLINE):
            for driver in self.drivers:
                await driver.close()

    async def sql(self, *statements):
        async with await psycopg.AsyncConnection.connect(self.url("postgres"), autocommit=True) as connection:
            for statement in statements:
                cursor = await connection.execute(statement)
            return await cursor.fetchall() if cursor.description else None

    async def save(self):
        await self.close()
        await self.sql(f"create database {self.name}_saved template {self.name}")

    async def restore(self, _backup):
        await self.close()
        await self.sql(
            f"drop database {self.name} with (force)",
            f"create database {self.name} template {self.name}_saved",
        )

    async def lose_answer(self, engine, request):
        await engine.perform(request)
        await engine.close()


@pytest.fixture(scope="module")
def server():
    with postgresql() as found:
        yield found


@pytest.fixture
async def setup(server, request):
    name = f"t{abs(hash(request.node.name))}"
    made = PostgreSQLSetup(server, name)
    await made.sql(f"create database {name}")
    yield made
    await made.close()
    await made.sql("alter system reset all", "select pg_reload_conf()", f"drop database {name} with (force)")


async def until(condition):
    async with asyncio.timeout(DEADLINE):
        while not await condition():
            await asyncio.sleep(0.02)


async def test_logs_share_a_database(setup):
    """Each log has its own lease and entries, and tells its own nodes alone that the lease was given back."""
    engines = {log: await setup.connect(log=log) for log in ("", "one", "user")}
    heard = {log: asyncio.Event() for log in engines}
    followers = {log: await setup.connect(log=log) for log in engines}
    for number, (log, engine) in enumerate(engines.items(), 1):
        followers[log].listen(heard[log].set)
        await ask(followers[log], protocol.Read(0, 1))
        lease = await take(engine)
        assert 1 == lease.epoch
        await fill(engine, lease, number)

    for number, follower in enumerate(followers.values(), 1):
        assert number == (await ask(follower, protocol.Read(0, 10_000))).lease.last
    await ask(engines["one"], protocol.Release(1, HOLDER, 0, "b"))
    async with asyncio.timeout(DEADLINE):
        await heard["one"].wait()
    await ask(followers[""], protocol.Read(0, 1))  # the server has sent by then what it had to send
    assert [False, True, False] == [each.is_set() for each in heard.values()]


MOVE = protocol.Move(7, "orders", "other")
ME = protocol.Report(protocol.Member("me", "", protocol.ORIGIN))


async def test_a_move_makes_a_log_that_is_a_copy(setup):
    """It has the snapshot and the entries, is free, and both logs have the record of the move; the old one goes on."""
    engine = await setup.connect(log="old", segment_octets=100)
    lease = await take(engine)
    entries = await fill(engine, lease, 40)
    kept = await keep_snapshot(engine, entries[30].position)
    trimmed = await ask(engine, protocol.Trim(lease.epoch, HOLDER, 31))
    assert trimmed.through

    assert isinstance(await ask(engine, protocol.Release(1, HOLDER, 40, "", MOVE)), protocol.Renewed)

    copy = await setup.connect(log="other")
    for each in (engine, copy):
        assert protocol.Known(kept) == await ask(each, protocol.FindSnapshot())
        assert b"last" == (await ask(each, protocol.GetChunk(kept.id, 1))).data
        found = await ask(each, protocol.Read(trimmed.through, 0))
        assert (b"", 40, 40) == (found.lease.holder, found.lease.last, found.lease.settled)
        assert (entries[trimmed.through],) == found.entries
        moved = protocol.Moved(7, 1, "orders", "other", each is copy)
        assert (moved,) == (await ask(each, ME)).moved
        taken = await ask(each, protocol.Take(found.lease, HOLDER, "me", ""))
        assert ((moved,), 2) == (taken.moved, taken.lease.epoch)
        assert 41 == (await append(each, entries[-1].position, taken.lease, b"next")).index
    assert isinstance(
        await ask(engine, protocol.Release(2, HOLDER, 41, "", MOVE._replace(log="third"))), protocol.Renewed
    )
    assert ["other", "third"] == [each.log for each in (await ask(engine, ME)).moved]
    third = await setup.connect(log="third")
    assert [("third", 2, True)] == [
        (each.log, each.epoch, each.is_here) for each in (await ask(third, ME)).moved
    ]


async def test_a_move_that_is_impossible_leaves_the_log_as_it_is(setup):
    """The lease is given back all the same; nothing is moved where the schema exists, or another one leads."""
    engine = await setup.connect(log="old")
    await take(await setup.connect(log="other"))
    lease = await take(engine)
    await fill(engine, lease, 3)

    assert isinstance(await ask(engine, protocol.Release(1, OTHER, 3, "", MOVE)), protocol.Refused)
    assert isinstance(await ask(engine, protocol.Release(1, HOLDER, 3, "", MOVE)), protocol.Renewed)

    found = await ask(engine, protocol.Read(0, 0))
    assert (b"", 3) == (found.lease.holder, found.lease.last)
    assert () == (await ask(engine, ME)).moved
    assert 0 == (await ask(await setup.connect(log="other"), protocol.Read(0, 0))).lease.last
    assert isinstance(await ask(engine, protocol.Release(1, HOLDER, 3, "", MOVE)), protocol.Refused)


async def test_a_schema_that_is_there_needs_no_right_to_create_one(setup):
    """A role that may create nothing but tables uses the schema that an administrator has made for it."""
    async with await psycopg.AsyncConnection.connect(setup.url(), autocommit=True) as connection:
        await connection.execute(f"create role r_{setup.name} login")
        try:
            await connection.execute(f"create schema ready authorization r_{setup.name}")
            url = f"{setup.url()}&user=r_{setup.name}"
            ready, missing = (PostgreSQLDriver(Servers(url), log) for log in ("ready", "missing"))
            setup.drivers += [ready, missing]
            assert 1 == (await take(ready)).epoch
            with pytest.raises(protocol.NoAnswerError, match="InsufficientPrivilege"):
                await missing.perform(protocol.Read(0, 1))
        finally:
            await setup.close()
            await connection.execute(f"drop owned by r_{setup.name} cascade")
            await connection.execute(f"drop role r_{setup.name}")


async def test_a_cancelled_wait_for_a_standby_is_no_answer(setup):
    """An append whose wait for standbys is cancelled counts as unanswered, although the server reports success."""
    engine = await setup.connect()
    lease = await take(engine)
    entry = follow(protocol.ORIGIN, lease, b"alone")
    under_way = asyncio.create_task(asyncio.sleep(0))

    async def waits():
        nonlocal entry, under_way
        if under_way.done():  # the server has not noticed the setting yet: another one
            if await under_way is not None:
                entry = follow(entry.position, lease, b"alone")
            under_way = asyncio.create_task(engine.perform(protocol.Append(entry)))
        return await setup.sql("select 1 from pg_stat_activity where wait_event = 'SyncRep'")

    await setup.sql("alter system set synchronous_standby_names = 'nobody'", "select pg_reload_conf()")
    await until(waits)
    await setup.sql("select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
    with pytest.raises(protocol.NoAnswerError):
        async with asyncio.timeout(DEADLINE):
            await under_way

    await setup.sql("alter system reset synchronous_standby_names", "select pg_reload_conf()")
    again = await ask(engine, protocol.Append(entry))
    assert isinstance(again, protocol.Refused)
    assert entry.index == again.lease.last


async def test_a_cancelled_caller_cancels_no_append(setup):
    """An append goes on, and is found, after the task that waits for it was cancelled."""
    engine, other = await setup.connect(), await setup.connect()
    lease = await take(engine)
    entry = follow(protocol.ORIGIN, lease, b"x" * 3_000_000)

    task = asyncio.create_task(engine.perform(protocol.Append(entry)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def is_found():
        return (await ask(other, protocol.Read(0, 10_000_000))).entries == (entry,)

    await until(is_found)


async def test_segments_are_dropped_whole(setup):
    """Entries go into table after table; a trim drops those that a snapshot covers, and the log continues."""
    engine = await setup.connect(segment_octets=100)
    reader = await setup.connect()
    lease = await take(engine)
    entries = await fill(engine, lease, 40)

    read, after = [], 0
    while found := (await ask(reader, protocol.Read(after, 1_000_000))).entries:
        read += found
        after = read[-1].index
    assert entries == read
    await keep_snapshot(engine, entries[30].position)
    trimmed = await ask(engine, protocol.Trim(lease.epoch, HOLDER, 31))

    assert isinstance(trimmed, protocol.Trimmed)
    assert 10 < trimmed.through <= 31
    found = await ask(reader, protocol.Read(trimmed.through, 0))
    assert (entries[trimmed.through - 1].position, trimmed.through) == (found.previous, found.trimmed)
    assert None is (await ask(reader, protocol.Read(1, 0))).previous
    await append(await setup.connect(segment_octets=100), entries[-1].position, lease, b"next")
    assert 41 == (await ask(reader, protocol.Read(0, 0))).lease.last


async def test_a_large_entry_is_several_rows_of_one_statement(setup):
    """An entry above the size of a row comes back whole."""
    engine = await setup.connect()
    lease = await take(engine)
    entry = make_entry(protocol.ORIGIN, lease.epoch, HOLDER, 0, BATCHES, bytes(range(256)) * 4000)
    await ask(engine, protocol.Append(entry))

    assert (entry,) == (await ask(engine, protocol.Read(0, 10))).entries
    async with await psycopg.AsyncConnection.connect(setup.url()) as connection:
        cursor = await connection.execute("select count(*) from leveret_log_1")
        assert (4,) == await cursor.fetchone()


async def test_payloads_are_sent_as_they_are(setup):
    """An append sends a few hundred bytes more than its entry has: nothing is turned into text."""
    payload = bytes(range(256)) * 1024
    values = {"index": 1, "settled": 0, "limit": 1, "epoch": 1, "holder": HOLDER, "kind": BATCHES}
    await (await setup.connect()).perform(protocol.FindSnapshot())
    async with await psycopg.AsyncConnection.connect(setup.url()) as connection:
        cursor = connection.cursor()
        await cursor.execute(sql.append(1), {**values, "hash": b"h", "data": payload, "parts": 1})
        sent = sum(len(each) for each in cursor._query.params if each is not None)
    assert len(payload) < sent < len(payload) + 500


async def test_a_snapshot_that_counts_is_the_only_one_with_a_table(setup):
    """Chunks of snapshots that were given up, or are replaced, go with their tables: no row is deleted."""
    engine = await setup.connect()
    entries = await fill(engine, await take(engine), 3)
    await ask(engine, protocol.PutChunk(b"u" * 16, 0, b"given up"))
    await keep_snapshot(engine, entries[0].position)
    await keep_snapshot(engine, entries[2].position, id_=b"t" * 16)

    async with await psycopg.AsyncConnection.connect(setup.url()) as connection:
        cursor = await connection.execute(
            "select relname from pg_class where relname like 'leveret_chunks%' and relkind = 'r'"
        )
        assert [("leveret_chunks_" + (b"t" * 16).hex(),)] == await cursor.fetchall()


async def test_a_snapshot_that_is_read_is_replaced_all_the_same(setup):
    """A table that somebody reads for long is left until the next snapshot; the new one counts, and appends go on."""
    engine = await setup.connect()
    lease = await take(engine)
    entries = await fill(engine, lease, 3)
    await keep_snapshot(engine, entries[0].position)
    name = "leveret_chunks_" + (b"s" * 16).hex()
    async with await psycopg.AsyncConnection.connect(setup.url()) as reader:
        await reader.execute(f"select count(*) from {name}")
        new = await keep_snapshot(engine, entries[1].position, id_=b"t" * 16)
        assert protocol.Known(new) == await ask(engine, protocol.FindSnapshot())
        await append(engine, entries[-1].position, lease, b"goes on")
    await keep_snapshot(engine, entries[2].position, id_=b"u" * 16)

    assert not (await engine._row(sql.EXISTS, (name,)))[0]


async def paused(driver, method, monkeypatch):
    """Have a driver wait within a method; returns an event for that, and one that lets it go on."""
    reached, go_on = asyncio.Event(), asyncio.Event()
    original = getattr(driver, method)

    async def wait_before(*arguments):
        reached.set()
        await go_on.wait()
        return await original(*arguments)

    monkeypatch.setattr(driver, method, wait_before)
    return reached, go_on


async def test_a_snapshot_that_was_completed_meanwhile_keeps_its_table(setup, monkeypatch):
    """A node that stands still before it drops the tables of other snapshots leaves the newer one of another node."""
    slow, fast = await setup.connect(), await setup.connect()
    entries = await fill(slow, await take(slow), 2)
    reached, go_on = await paused(slow, "_drop_others", monkeypatch)
    keeping = asyncio.ensure_future(keep_snapshot(slow, entries[0].position))
    async with asyncio.timeout(DEADLINE):
        await reached.wait()
        new = await keep_snapshot(fast, entries[1].position, id_=b"t" * 16)
        go_on.set()
        await keeping

    assert protocol.Known(new) == await ask(fast, protocol.FindSnapshot())
    assert protocol.Chunk(b"last") == await ask(fast, protocol.GetChunk(new.id, 1))


async def test_of_two_snapshots_at_one_place_one_has_its_chunks(setup, monkeypatch):
    """Two nodes that complete snapshots of one place at the same time leave one that can be read."""
    slow, fast = await setup.connect(), await setup.connect()
    entries = await fill(slow, await take(slow), 1)
    reached, go_on = await paused(slow, "_replace", monkeypatch)
    keeping = asyncio.ensure_future(keep_snapshot(slow, entries[0].position))
    async with asyncio.timeout(DEADLINE):
        await reached.wait()
        await keep_snapshot(fast, entries[0].position, id_=b"t" * 16)
        go_on.set()
        await asyncio.wait([keeping])
        known = await ask(fast, protocol.FindSnapshot())
        keeping.exception()  # the slow one may have been refused

    assert isinstance(known, protocol.Known)
    assert known.snapshot is not None
    assert protocol.Chunk(b"last") == await ask(fast, protocol.GetChunk(known.snapshot.id, 1))


async def test_sec_50_a_role_without_rights_holds_nobody_up(setup):
    """A role that may only log in to the database keeps no node waiting: it holds no lock that a node needs."""
    role = f"stranger_{setup.name}"
    await setup.sql(f"create role {role} login")
    stranger = await psycopg.AsyncConnection.connect(
        setup.url().replace("user=leveret", f"user={role}"), autocommit=True
    )
    try:
        await stranger.execute("select pg_advisory_lock(7310597160149055860)")
        engine = await setup.connect()
        entries = await fill(engine, await take(engine), 1)
        async with asyncio.timeout(DEADLINE / 3):
            for name in ("lease", "snapshot", "schema", "members", "segments", "log_1"):
                for mode in ("access share", "row share", "access exclusive"):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        async with stranger.transaction():
                            await stranger.execute(f"lock table leveret_{name} in {mode} mode")
            kept = await keep_snapshot(engine, entries[0].position)
            assert protocol.Known(kept) == await ask(engine, protocol.FindSnapshot())
    finally:
        await stranger.close()
        await setup.sql(f"drop role {role}")


async def test_nodes_that_start_together_make_the_tables_once(setup):
    """Of several nodes that find an empty database each one can use the tables that one of them has made."""
    engines = [await setup.connect() for _ in range(4)]
    async with asyncio.timeout(DEADLINE):
        found = await asyncio.gather(*[engine.perform(protocol.Read(0, 1000)) for engine in engines])

    assert 1 == len(set(found))


async def test_sessions_wait_for_standbys_and_cancel_nothing(setup):
    """A session has no time limits and a synchronous commit, whatever the database is set to."""
    await setup.sql(
        f"alter database {setup.name} set synchronous_commit = off",
        f"alter database {setup.name} set statement_timeout = '5s'",
    )
    engine = await setup.connect()
    await ask(engine, protocol.Read(0, 0))

    for name, expected in (("synchronous_commit", "on"), ("statement_timeout", "0"), ("lock_timeout", "0")):
        assert (expected,) == await engine._row(f"select current_setting('{name}')")


async def test_tables_of_another_version_are_refused(setup):
    """A driver does nothing with tables whose format it does not know."""
    await ask(await setup.connect(), protocol.Read(0, 0))
    async with await psycopg.AsyncConnection.connect(setup.url(), autocommit=True) as connection:
        await connection.execute("update leveret_schema set version = 99")

    with pytest.raises(SchemaVersionError):
        await (await setup.connect()).perform(protocol.Read(0, 0))


@pytest.mark.parametrize(
    "url", ["postgresql://u:hunter2/x@h/db", "postgresql://u:hunter2%zz@h/db", "postgresql://h:hunter2"]
)
def test_a_url_that_makes_no_sense_is_not_quoted(url):
    """A slash in a password makes a port of its beginning, which libpq would quote in each line of the log."""
    with pytest.raises(ValueError, match=r"libpq|quoting") as caught:
        with_timeouts(url)

    assert "hunter2" not in str(caught.value)


def test_several_hosts_and_ports_are_taken():
    """As libpq takes them, and a URL without any."""
    for url in (
        "postgresql://u:p@a:1,b:2/db",
        "postgresql://a,b:2/db",
        "postgresql:///db",
        "postgresql:///db?host=/tmp",
    ):
        assert "keepalives_idle" in with_timeouts(url)


async def test_passwords_and_certificates_are_those_of_libpq(tmp_path):
    """A password may be in libpq's file; a wrong one, and a server without TLS, give no answer and show no secret."""
    (tmp_path / "pass").write_text("*:*:*:leveret:hidden\n")
    (tmp_path / "pass").chmod(0o600)
    with postgresql(password="hidden") as server:
        for more, is_known in (
            (f"&passfile={tmp_path / 'pass'}", True),
            ("&password=hidden", True),
            ("&password=hidden2", False),
            ("&password=hidden&sslmode=require&host=127.0.0.1&port=1", False),
        ):
            driver = PostgreSQLDriver(Servers(with_timeouts(f"postgresql:///postgres{server}{more}")))
            if is_known:
                assert protocol.Known(None) == await driver.perform(protocol.FindSnapshot())
            else:
                with pytest.raises(protocol.NoAnswerError) as caught:
                    await driver.perform(protocol.FindSnapshot())
                assert "hidden" not in f"{caught.value} {caught.value.__cause__}"
            await driver.close()

"""The directory of logs in PostgreSQL: who may write it, and what readers see of a move and of a takeover."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from processes.postgresql_server import postgresql
from replicated.conformance import DEADLINE, HOLDER, OTHER, ask, take

from leveret.broker.replication import engine as protocol

psycopg = pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from leveret.broker.replication.postgresql import PostgreSQLDriver  # noqa: E402
from leveret.broker.replication.postgresql_directory import LogReader  # noqa: E402
from leveret.broker.replication.postgresql_servers import Servers  # noqa: E402

ME = protocol.Report(protocol.Member("n1", "host:1", protocol.ORIGIN))


class Place:
    """A database with the engines of several logs, and a reader."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.reader = LogReader(Servers(url))
        self._open: list[PostgreSQLDriver] = []

    def engine(self, log: str) -> PostgreSQLDriver:
        self._open.append(PostgreSQLDriver(Servers(self.url), log))
        return self._open[-1]

    async def sql(self, *statements: str) -> None:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                await connection.execute(statement)

    async def logs(self) -> dict[str, tuple[str, tuple[bytes, ...]]]:
        """Return leader and virtual hosts of each log."""
        return {each.name: (each.leader, each.vhosts) for each in await self.reader.read()}

    async def close(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self.reader.close()
            for each in self._open:
                await each.close()


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as found:
        yield found


@pytest.fixture
async def place(server: str, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    name = f"t{abs(hash(request.node.name))}"
    await Place(f"postgresql:///postgres{server}").sql(f"create database {name}")
    made = Place(f"postgresql:///{name}{server}")
    yield made
    await made.close()


async def test_a_log_is_as_its_leader_has_published(place: Place) -> None:
    """A log without a leader keeps its virtual hosts; a log that has published nothing is not listed."""
    one, two = place.engine("one"), place.engine("two")
    assert {} == await place.logs()
    for engine in (one, two):
        assert 1 == (await take(engine, name="n1")).epoch
        await ask(engine, ME)
    names = (b"a", b"\xff\x00", "ü".encode())
    assert protocol.Kept(True) == await ask(one, protocol.Describe(1, 1, names))

    assert {"one": ("n1", names)} == await place.logs()
    assert ["host:1"] == [each.address for log in await place.reader.read() for each in log.members]
    await ask(one, protocol.Release(1, HOLDER, 0, "n2"))
    assert {"one": ("", names)} == await place.logs()


async def test_a_former_leader_publishes_nothing(place: Place) -> None:
    """A description that comes late, of an earlier epoch or of the same, changes nothing."""
    one = place.engine("one")
    assert protocol.Kept(True) == await ask(one, protocol.Describe(2, 1, (b"new",)))
    for epoch, number in ((1, 9), (2, 1), (2, 0)):
        assert protocol.Kept(False) == await ask(one, protocol.Describe(epoch, number, (b"late",)))
    assert {"one": ("", (b"new",))} == await place.logs()
    assert protocol.Kept(True) == await ask(one, protocol.Describe(2, 2, ()))


@pytest.mark.parametrize("is_described", [True, False])
async def test_a_move_changes_both_logs(place: Place, is_described: bool) -> None:
    """In its transaction, and for good: the leader that moved it cannot publish it again, nor if that was never done."""
    one = place.engine("one")
    await take(one)
    if is_described:
        await ask(one, protocol.Describe(1, 1, (b"orders", b"other")))

    await ask(one, protocol.Release(1, HOLDER, 0, "", protocol.Move(7, "orders", "two")))

    rest = (b"other",) if is_described else ()
    assert {"one": ("", rest), "two": ("", (b"orders",))} == await place.logs()
    assert protocol.Kept(False) == await ask(one, protocol.Describe(1, 2, (b"orders", b"other")))
    assert protocol.Kept(True) == await ask(one, protocol.Describe(2, 1, (b"other",)))
    assert protocol.Kept(True) == await ask(place.engine("two"), protocol.Describe(2, 1, (b"orders",)))


async def test_a_schema_of_another_role_is_no_log(place: Place) -> None:
    """It would attract the clients of a virtual host."""
    await ask(place.engine("one"), protocol.Describe(1, 1, (b"orders",)))
    await ask(place.engine("foreign"), protocol.Describe(1, 1, (b"orders",)))
    await place.sql(
        "drop role if exists stranger",
        "create role stranger",
        'alter table "foreign".leveret_directory owner to stranger',
    )

    assert ["one"] == list(await place.logs())
    await place.sql("drop owned by stranger", "drop role stranger")


async def test_a_wish_is_for_the_leader_of_now(place: Place) -> None:
    """The leader reads it with its reports; once another one leads, or after its time, it is void."""
    one = place.engine("one")
    lease = await take(one, name="n1")
    await ask(one, protocol.Describe(1, 1, (b"a",)))
    (log,) = await place.reader.read()
    assert "" == (await ask(one, ME)).wanted

    await place.reader.want(log, "n2")

    assert "n2" == (await ask(one, ME)).wanted
    await ask(one, protocol.Describe(1, 2, (b"a", b"b")))
    assert "n2" == (await ask(one, ME)).wanted
    await place.sql("update one.leveret_directory set wanted_until = now()")
    assert "" == (await ask(one, ME)).wanted
    await place.reader.want(log, "n2")
    await ask(one, protocol.Take(lease, OTHER, "n3", ""))
    assert "" == (await ask(one, ME)).wanted


async def test_a_database_that_is_away_is_an_error(place: Place) -> None:
    """The reader connects again once it answers."""
    await ask(place.engine("one"), protocol.Describe(1, 1, (b"a",)))
    assert ["one"] == list(await place.logs())
    await place.sql(
        "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
        "and pid <> pg_backend_pid()"
    )
    with pytest.raises(protocol.NoAnswerError):
        await place.reader.read()
    assert ["one"] == list(await place.logs())


async def test_a_node_is_told_who_leads_each_log(place: Place) -> None:
    """With its reports, also of a log that nobody leads; a node of a log that is alone is told nothing."""
    one, two = place.engine("one"), place.engine("two")
    await take(one, name="n1")
    await ask(two, ME)

    assert (protocol.Led("one", "n1", False), protocol.Led("two", "", True)) == (await ask(two, ME)).logs
    await ask(one, protocol.Release(1, HOLDER, 0, ""))
    assert (protocol.Led("one", "", True), protocol.Led("two", "", False)) == (await ask(one, ME)).logs
    assert () == (await ask(place.engine(""), ME)).logs


async def test_a_log_that_is_being_restored_troubles_no_other(place: Place) -> None:
    """Its tables are there before their rows: its lease is nobody's, and readers pass over it."""
    one = place.engine("one")
    await take(one, name="n1")
    await ask(one, protocol.Describe(1, 1, (b"vhost",)))
    await place.sql(
        "create schema half",
        *(f"create table half.{each} (like one.{each})" for each in ("leveret_lease", "leveret_directory")),
    )

    assert (protocol.Led("half", "", False), protocol.Led("one", "n1", True)) == (await ask(one, ME)).logs
    assert {"one": ("n1", (b"vhost",))} == await place.logs()


async def test_users_are_read_as_the_leader_has_published_them(place: Place) -> None:
    """First all, then what has changed since, deletions too; all again in a new epoch; nothing of a former leader."""
    one = place.engine("one")
    assert await place.reader.users("one", (0, -1)) is None
    await ask(one, protocol.Describe(1, 1, (), [(b"u1", b"a"), (b"u2", b"b")], is_whole=True))
    assert (1, 1, [(b"u1", b"a"), (b"u2", b"b")], True) == await place.reader.users("one", (0, -1))
    await ask(one, protocol.Describe(1, 2, (), [(b"u1", None), (b"u3", b"c")]))
    assert (1, 2, [(b"u1", None), (b"u3", b"c")], False) == await place.reader.users("one", (1, 1))
    await ask(one, protocol.Describe(1, 3, (b"vhost",)))
    assert (1, 3, [], False) == await place.reader.users("one", (1, 2))

    assert protocol.Kept(True) == await ask(one, protocol.Describe(2, 1, (), [(b"u3", b"c")], is_whole=True))
    assert protocol.Kept(False) == await ask(one, protocol.Describe(1, 4, (), [(b"u2", b"late")]))

    for since in ((1, 3), (2, 2)):  # the second one from before a restore of the database
        assert (2, 1, [(b"u3", b"c")], True) == await place.reader.users("one", since)
    assert await place.reader.users("another", (0, -1)) is None
    await place.sql(
        "drop role if exists stranger",
        "create role stranger",
        "alter table one.leveret_users owner to stranger",
    )
    assert await place.reader.users("one", (0, -1)) is None
    await place.sql("drop owned by stranger", "drop role stranger")

"""The choice between the servers that a URL lists."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
import psycopg
from replicated.database import Database, database_in_folder

from leveret.broker.replication import postgresql, postgresql_servers
from leveret.broker.replication.engine import ORIGIN, Member, NoAnswerError, Read, Report, Take, Taken
from leveret.broker.replication.postgresql import PostgreSQLDriver
from leveret.broker.replication.postgresql_servers import Servers, single_servers, with_timeouts

SECONDS = 60.0
HOLDER = bytes(16)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u@a/d", ["postgresql://u@a/d"]),
        ("postgresql://u@a:1,b:2/d", ["user=u dbname=d host=a port=1", "user=u dbname=d host=b port=2"]),
        ("host=/x,/y port=7 dbname=d", ["host=/x port=7 dbname=d", "host=/y port=7 dbname=d"]),
    ],
)
def test_a_url_is_taken_apart(url: str, expected: list[str]) -> None:
    """A server for each host, with its port; a URL of one stays as it is."""
    assert [set(each.split()) for each in expected] == [set(each.split()) for each in single_servers(url)]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://u:hunter2@db.example/x", "db.example"),
        ("postgresql://a,b:1,127.0.0.1/x?sslmode=require", "a, b"),
        ("postgresql://localhost/x?hostaddr=192.0.2.1", "192.0.2.1"),
        ("postgresql://a/x?sslmode=verify-full", ""),
        ("postgresql://a/x?sslmode=verify-ca", ""),
        ("postgresql://a/x?channel_binding=require", ""),
        ("postgresql://127.0.0.2,[::1],localhost/x", ""),
        ("postgresql:///x?host=/tmp", ""),
        ("postgresql:///x", ""),
    ],
)
def test_sec_51_a_server_that_is_not_verified_is_warned_about(url: str, expected: str, caplog: Any) -> None:
    """A log on another host whose certificate is not checked causes a warning, which has no password."""
    Servers(with_timeouts(url))

    assert (f"the server {expected} is not verified" in caplog.text) is bool(expected)
    assert bool(caplog.records) is bool(expected)
    assert "hunter2" not in caplog.text


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """A former primary that has come back beside the one that was promoted, and is the first in the URL."""
    with database_in_folder("leveret-h-") as (_, made):
        asyncio.run(led(made))
        former = made.primary
        made.lose_primary()
        made.start(former)
        yield made


async def led(database: Database) -> None:
    driver = PostgreSQLDriver(Servers(database.url))
    await driver.perform(Read(0, 0))
    await driver.close()


async def test_a_server_that_was_replaced_is_left_out(database: Database) -> None:
    """Though it is the first in the URL and takes connections for writing, which is what libpq looks for."""
    async with asyncio.timeout(SECONDS):
        servers = Servers(database.url)
        driver = PostgreSQLDriver(servers)
        found = await driver.perform(Read(0, 0))
        assert (servers.newest, found.timeline) == (2, 2)
        taken = await driver.perform(Take(found.lease, HOLDER, "n", ""))
        assert isinstance(taken, Taken)
        await driver.close()


async def test_a_server_that_was_replaced_since_is_left(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whoever waits for its answer, and by the other driver of the node."""
    monkeypatch.setattr(postgresql, "LOOK_SECONDS", 0.5)
    async with asyncio.timeout(SECONDS):
        servers = Servers(database.url)
        known, servers._each = servers._each, servers._each[:1]
        drivers = PostgreSQLDriver(servers), PostgreSQLDriver(servers)
        for each in drivers:
            assert (await each.perform(Read(0, 0))).timeline == 1
        servers._each = known

        with pytest.raises(NoAnswerError):
            await drivers[0].perform(Report(Member("n", "", ORIGIN)))
        for each in drivers:
            assert (await each.perform(Read(0, 0))).timeline == 2
            await each.close()


async def test_no_server_is_waited_for_once_another_answers(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than for a moment: it may be a machine that is gone."""
    monkeypatch.setattr(postgresql_servers, "OTHERS_SECONDS", 0.1)
    asked = postgresql_servers._asked

    async def silent(url: str) -> Any:
        if "/s2" in url:
            await asyncio.Event().wait()
        return await asked(url)

    monkeypatch.setattr(postgresql_servers, "_asked", silent)
    async with asyncio.timeout(SECONDS):
        connection, _ = await Servers(database.url).connect()
        await connection.close()


async def silent_pooler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Take a connection, and answer nothing that is asked on it."""
    with contextlib.suppress(asyncio.IncompleteReadError):
        kind = b""
        while kind != b"\0\3":  # the version of the protocol; before, TLS and GSSAPI may be asked for
            size = int.from_bytes(await reader.readexactly(4), "big")
            kind = (await reader.readexactly(size - 4))[:2]
            if kind != b"\0\3":
                writer.write(b"N")
        writer.write(b"R\0\0\0\x08\0\0\0\0" + b"Z\0\0\0\x05I")
        await reader.read()
    writer.close()


async def test_a_server_that_answers_no_query_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pooler takes connections also while its server is gone: one that is reached later would never be found."""
    monkeypatch.setattr(postgresql_servers, "CONNECT_SECONDS", 1)
    listener = await asyncio.start_server(silent_pooler, "127.0.0.1", 0)
    port = listener.sockets[0].getsockname()[1]
    async with asyncio.timeout(SECONDS), listener:
        servers = Servers(f"host=127.0.0.1,/none port={port},1 dbname=d user=u sslmode=disable")
        await servers.look()
        with pytest.raises((psycopg.Error, TimeoutError)):
            await servers.connect()


async def test_no_server_can_be_reached() -> None:
    """The error is one of psycopg, as with one server."""
    async with asyncio.timeout(SECONDS):
        servers = Servers("host=/none1,/none2 dbname=d")
        await servers.look()
        with pytest.raises(psycopg.OperationalError):
            await servers.connect()

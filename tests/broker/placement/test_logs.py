"""The directory of logs as the broker sees it that forwards clients."""

import asyncio
from typing import Any

import pytest

from leveret.broker.placement import database_reads
from leveret.broker.placement.logs import Logs
from leveret.broker.replication.directory import LogFacts
from leveret.broker.replication.engine import ORIGIN, Member, NoAnswerError


class Database:
    """A database that can be away; it counts the reports of its nodes with each read."""

    def __init__(self, *logs: LogFacts) -> None:
        self.logs = list(logs)
        self.is_away = False
        self.reads = 0
        self.wanted: list[tuple[str, str]] = []

    async def read(self) -> list[LogFacts]:
        await asyncio.sleep(0)
        if self.is_away:
            raise NoAnswerError("away")
        self.reads += 1
        members = [tuple(each._replace(counter=self.reads) for each in log.members) for log in self.logs]
        return [log._replace(members=each) for log, each in zip(self.logs, members, strict=True)]

    async def want(self, log: LogFacts, successor: str) -> None:
        await asyncio.sleep(0)
        self.wanted.append((log.name, successor))

    async def close(self) -> None:
        pass


def log(name: str, leader: str, *vhosts: bytes, port: str = ":1") -> LogFacts:
    members = tuple(Member(node, f"{node}{port}", ORIGIN) for node in ("n1", "n2"))
    return LogFacts(name, 1, leader, vhosts, members)


async def addresses(logs: Logs, vhost: str) -> list[str] | None:
    found = await logs.addresses(vhost)
    return None if found is None else [str(each) for each in found]


async def test_the_leader_is_first() -> None:
    """A virtual host is at the nodes of its log, its leader first; a name that is not text, too."""
    logs = Logs(Database(log("a", "n2", b"x", b"\xff"), log("b", "n1", b"y")), is_tls=False)

    assert ["n2:1", "n1:1"] == await addresses(logs, "x")
    assert ["n1:1", "n2:1"] == await addresses(logs, "y")
    assert ["n2:1", "n1:1"] == await addresses(logs, b"\xff".decode(errors="surrogateescape"))


async def test_what_is_not_known_is_not_what_there_is_not() -> None:
    """Before the first answer no virtual host is refused as unknown; a database that goes away changes nothing."""
    database = Database(log("a", "n1", b"x"))
    database.is_away = True
    logs = Logs(database, is_tls=False)
    assert [] == await addresses(logs, "x")
    assert "away" in logs.problem

    database.is_away = False
    await asyncio.sleep(0.3)
    assert ["n1:1", "n2:1"] == await addresses(logs, "x")
    assert await addresses(logs, "z") is None
    assert not logs.problem

    database.is_away = True
    assert ["n1:1", "n2:1"] == await addresses(logs, "x")


async def test_clients_of_unknown_virtual_hosts_share_a_read() -> None:
    """A hundred of them at once cause one."""
    database = Database(log("a", "n1", b"x"))
    logs = Logs(database, is_tls=False)

    await asyncio.gather(*(logs.addresses(f"no{at}") for at in range(100)))

    assert 1 == database.reads


async def test_a_database_that_is_away_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Also before its first answer; and once more after an answer."""
    database = Database(log("a", "n1", b"x"))
    logs = Logs(database, is_tls=False)
    for expected, is_away in ((1, True), (1, True), (1, False), (2, True), (2, True)):
        database.is_away = is_away
        await asyncio.sleep(0.25)
        await addresses(logs, "no")
        assert expected == caplog.text.count("may be out of date")


async def test_an_error_that_nobody_foresaw_does_not_end_the_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory of a front would stay as it is for ever, and nobody would see it."""
    monkeypatch.setattr(database_reads, "READ_SECONDS", 0.01)
    database = Database(log("a", "n1", b"x"))
    logs = Logs(database, is_tls=False)
    database.logs = [None]  # type: ignore[list-item] # a bug
    logs.start()
    try:
        async with asyncio.timeout(10):
            while "an error of Leveret" not in logs.problem:
                await asyncio.sleep(0.01)
            database.logs = [log("a", "n1", b"x")]
            while logs.problem:
                await asyncio.sleep(0.01)
    finally:
        await logs.close()
    assert ["n1:1", "n2:1"] == await addresses(logs, "x")


async def test_a_name_in_two_logs_is_reported() -> None:
    """Clients get to the first log by name."""
    logs = Logs(Database(log("a", "n1", b"/"), log("b", "n2", b"/"), log("c", "")), is_tls=False)

    assert ["n1:1", "n2:1"] == await addresses(logs, "/")
    shown: Any = logs.described()
    assert [
        "virtual host '/' is in log a, which clients get to, and in b",
        "no node leads log c",
    ] == shown["problems"]
    assert {"n1": {"address": "n1:1", "is_up": True}, "n2": {"address": "n2:1", "is_up": True}} == shown[
        "logs"
    ][0]["nodes"]


async def test_addresses_that_cannot_be_used_are_reported() -> None:
    """One without a port, and one without TLS if clients come with TLS."""
    logs = Logs(Database(log("a", "n1", b"x", port=""), log("b", "n1", b"y")), is_tls=True)

    assert [] == await addresses(logs, "x") == await addresses(logs, "y")
    found = " ".join(logs.described()["problems"])
    assert "log a: the address n1 of node n1 must be port, host:port" in found
    assert "log b: the address n2:1 of node n2 is without TLS" in found


async def test_balancing_is_asked_for_in_the_database() -> None:
    """Once the nodes were seen to report; nothing is asked for while the database is away."""
    database = Database(*(log(name, "n1") for name in "abcd"))
    logs = Logs(database, is_tls=False)
    found: list[Any] = []

    async def balance() -> Any:
        done = asyncio.Event()
        logs.balance(lambda answer: (found.append(answer), done.set()))
        await done.wait()
        return found[-1]

    assert [] == await balance()
    moved = [{"log": name, "from": "n1", "to": "n2"} for name in "ab"]
    assert moved == await balance()
    assert [("a", "n2"), ("b", "n2")] == database.wanted
    database.is_away = True
    assert "the database does not answer: away" == await balance()

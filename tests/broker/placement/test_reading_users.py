"""Users of another log, as a node reads them: one read after the other, and none that fails is the last."""

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from leveret.broker.auth.users import Users
from leveret.broker.placement import shared_users
from leveret.broker.placement.shared_users import SharedUsers
from leveret.broker.replication.directory import LogFacts
from leveret.broker.replication.engine import ORIGIN, Member, NoAnswerError
from leveret.storage.store.metadata_rows import UserRow, encode

ANN = UserRow(b"ann", b"hash", b"", [])
CHANGE = [(ANN.key(), encode(ANN))]


class Database:
    """A database whose log `users` has one user; it can fail, and counts the reads of now."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.now = self.most = 0

    async def read(self) -> list[LogFacts]:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        if self.failure is not None:
            raise self.failure
        return [LogFacts("users", 1, "n1", (b"there",), (Member("n1", "host:1", ORIGIN),))]

    async def users(self, _log: str, since: tuple[int, int]) -> Any:
        await asyncio.sleep(0)
        return 1, 1, CHANGE if since == (0, -1) else [], since == (0, -1)

    async def close(self) -> None:
        """Do nothing."""


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def shared(database: Database) -> SharedUsers:
    return SharedUsers(database, "users", is_owner=False)


async def test_reads_follow_each_other(database: Database, shared: SharedUsers) -> None:
    """A node that begins to lead reads beside the task that reads each second, by the same connection."""
    await asyncio.gather(shared.read(), shared.read())

    assert database.most == 1
    assert dict(CHANGE) == shared.rows


async def test_an_error_is_a_problem(
    database: Database, shared: SharedUsers, caplog: pytest.LogCaptureFixture
) -> None:
    """One that nobody foresaw, too: what was read stays, the log has it once, and says when it is over."""
    caplog.set_level(logging.INFO)
    await shared.read()
    database.failure = KeyError("a bug")
    for _ in range(2):
        await shared.read()

    assert "KeyError('a bug')" in shared.problem
    assert dict(CHANGE) == shared.rows
    database.failure = NoAnswerError("away")
    await shared.read()
    assert shared.problem == "the database does not answer: away"
    database.failure = None
    await shared.read()
    assert not shared.problem
    told = [(each.levelname, each.exc_info is not None) for each in caplog.records]
    assert told == [("INFO", False), ("WARNING", True), ("WARNING", False), ("INFO", False)]


async def test_a_change_that_fails_is_made_again(shared: SharedUsers) -> None:
    """By the next read; one that was made is not made twice."""
    made: list[Any] = []

    def fails(_changes: object) -> None:
        raise RuntimeError

    shared.on_change = fails
    await shared.read()
    assert "RuntimeError" in shared.problem
    shared.on_change = made.append
    for _ in range(2):
        await shared.read()

    assert made == [CHANGE]
    assert not shared.problem


def test_a_refusal_says_where_before_the_first_answer(shared: SharedUsers) -> None:
    """There is no address yet, so it says which node it will be."""
    assert shared.refusal == "the users are those of log users: change them at its leader, once there is one"


async def test_rights_end_where_no_log_has_the_virtual_host(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once, nor in those of the node itself, which may not be published yet."""
    users, owner = Users(), SharedUsers(database, "users", is_owner=True)
    for vhost in ("own", "there", "gone"):
        users.set_permissions("ann", vhost, "", "", "")
    loop = SimpleNamespace(run_step=lambda _kind, work: work(), run_and_finish_turn=lambda: None)
    owner.watch(SimpleNamespace(users=users, vhosts=["own"], loop=loop))
    await owner.read()
    assert {"own", "there", "gone"} == users.vhosts()

    monkeypatch.setattr(shared_users, "GONE_SECONDS", 0)
    await owner.read()
    assert {"own", "there"} == users.vhosts()

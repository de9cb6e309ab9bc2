"""Backups in the API: for the operator only, one at a time, cancelled on request."""

from pathlib import Path

import pytest
from api import OPERATOR, Api
from fakes import Node

from leveret.broker.management.node_operations import FORBIDDEN
from leveret.storage.errors import StorageError


class FakeBackup:
    """A backup that does nothing."""

    def __init__(self, dest: Path, rate: int) -> None:
        self.dest, self.rate = dest, rate
        self.state, self.error = "running", ""
        self.octets, self.total, self.seconds, self.files = 10, 20, 1.5, 0
        self.attended = 0

    def attend(self) -> None:
        self.attended += 1

    def cancel(self, reason: str) -> None:
        self.state, self.error = "failed", reason


class FakeBackups:
    """The backups of a broker, one at a time."""

    latest: FakeBackup | None = None

    def start(self, dest: Path, rate: int) -> FakeBackup:
        if self.latest is not None and self.latest.state == "running":
            raise StorageError("a backup is running")
        self.latest = FakeBackup(dest, rate)
        return self.latest


class BackedUpNode(Node):
    """A broker with backups."""

    made = FakeBackups()

    @property
    def backups(self) -> FakeBackups:
        """Its backups."""
        return self.made


@pytest.fixture
def node() -> BackedUpNode:
    """A new broker."""
    made = BackedUpNode()
    made.made = FakeBackups()
    return made


def test_a_backup_is_started_watched_and_cancelled(node):
    """POST starts it, GET shows that somebody is interested and how far it is, DELETE cancels it."""
    api = Api(node, OPERATOR)
    assert 404 == api.request("GET", "leveret/backup").status
    answer = api.post("leveret/backup", {"path": "/backups/x", "rate": 1000})
    progress = {
        "path": "/backups/x",
        "state": "running",
        "copied": 10,
        "total": 20,
        "seconds": 1.5,
        "files": 0,
        "error": "",
    }

    assert (200, progress) == (answer.status, answer.body)
    assert progress == api.get("leveret/backup")
    assert (1, 1000) == (node.made.latest.attended, node.made.latest.rate)
    assert (400, "a backup is running") == refusal(api.post("leveret/backup", {"path": "/backups/y"}))
    assert 404 == api.request("DELETE", "leveret/backup", {"path": "/backups/y"}).status
    assert "failed" == api.request("DELETE", "leveret/backup", {"path": "/backups/x"}).body["state"]
    assert "cancelled" == api.get("leveret/backup")["error"]


def refusal(answer) -> tuple[int, str]:
    return answer.status, answer.body["reason"]


def test_only_the_operator_may(node):
    """An administrator who has logged in gets 401 for each of them: the broker would write where that user may not."""
    api = Api(node)
    for method in ("GET", "POST", "DELETE"):
        assert (401, FORBIDDEN) == refusal(api.request(method, "leveret/backup", {"path": "/x"}))
    assert node.made.latest is None


def test_what_is_refused(node):
    """A body without a path, a negative rate, a broker without data."""
    api = Api(node, OPERATOR)
    assert 400 == api.post("leveret/backup", {"rate": 1}).status
    assert 400 == api.post("leveret/backup", {"path": 1}).status
    assert 400 == api.post("leveret/backup", {"path": "/x", "rate": -1}).status
    assert 400 == Api(Node(), OPERATOR).post("leveret/backup", {"path": "/x"}).status

"""The log and the reports, the nodes of a replicated log, and backups in the API."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.fakes import Node
from services.api import OPERATOR, Api

from leveret.broker.administration.access import Figures
from leveret.broker.config.sections import ExportConfig, ManagementConfig
from leveret.broker.management.node_operations import FORBIDDEN
from leveret.broker.process.logs import RECENT
from leveret.storage.errors import StorageError


@pytest.fixture
def logged() -> Iterator[Api]:
    """The API of a broker whose process keeps its log."""
    logger = logging.getLogger("leveret")
    before = logger.level
    logger.setLevel(logging.INFO)
    RECENT.begin()
    yield Api(Node())
    RECENT.end()
    logger.setLevel(before)


def test_lines_are_read_on_from_the_last(logged):
    """Each once, with its time, level and category."""
    before = logged.get("leveret/logs")["last"]
    logging.getLogger("leveret.queue").warning("%s is full", "orders")
    found = logged.get(f"leveret/logs?after={before}")
    (line,) = found["lines"]

    assert {"number": before + 1, "level": "warning", "category": "queue", "message": "orders is full"} == {
        key: value for key, value in line.items() if key != "time"
    }
    assert (before + 1, 0) == (found["last"], found["missed"])
    assert [] == logged.get(f"leveret/logs?after={found['last']}")["lines"]


def test_levels_and_numbers_of_lines_are_chosen(logged):
    """The newest lines of the level."""
    for number in range(3):
        logging.getLogger("leveret").error("e%d", number)
        logging.getLogger("leveret").info("i%d", number)

    assert ["e1", "e2"] == [
        line["message"] for line in logged.get("leveret/logs?level=error&count=2")["lines"]
    ]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("level=debug", "level must be one of info"), ("level=x", "level must be one of"), ("count=0", "count must be from 1 to 1000"),
        ("count=1001", "count must be from 1 to 1000"), ("after=-1", "after must not be negative"), ("count=x", "not_integer"),
    ],
)  # fmt: skip
def test_wrong_queries_are_refused(logged, query, text):
    """With the reason."""
    answer = logged.request("GET", f"leveret/logs?{query}")

    assert 400 == answer.status
    assert text in str(answer.body["reason"])


def test_a_login_is_logged_without_its_password(logged):
    """The name of the user is there."""
    before = logged.get("leveret/logs")["last"]
    Api(logged.node, "guest:hunter2-wrong").request("GET", "overview")
    lines = logged.get(f"leveret/logs?after={before}")["lines"]

    assert "guest" in lines[-1]["message"]
    assert "hunter2" not in str(lines)


def test_the_address_of_the_reports_and_the_export_are_told():
    """Those of the configuration; null for what is not configured."""
    address = "http://127.0.0.1:15693/"
    node = Node(
        management=ManagementConfig(reports_url=address), export=ExportConfig(dir=Path("/var/export"))
    )

    assert {"url": address, "export": "/var/export"} == Api(node).get("leveret/reports")
    assert {"url": None, "export": None} == Api(Node()).get("leveret/reports")


def test_the_broker_serves_no_report():
    """There is no route to one, whatever lies beside the export."""
    assert Api(Node()).request("GET", "leveret/reports/capacity").status == 404


class Cluster:
    def __init__(self) -> None:
        self.problem = ""
        self.role = 1
        self.told: list[object] = []
        self.state = {"replicated": True, "problems": ["unsafe", "behind"]}

    def figures(self):
        return Figures(self.role, 3, 0, 0.0, 0.001)

    def described(self):
        return self.state

    def transfer_problem(self, successor):
        self.told.append(successor)
        return self.problem

    def transfer(self, successor):
        self.told.append(("transfer", successor))

    def forget_problem(self, name):
        self.told.append(name)
        return self.problem

    def forget(self, name, done):
        self.told.append(("forget", name))
        done(None)

    def look_for_log(self, name, done):
        self.told.append(name)
        done(self.problem)

    def move(self, vhost, name, log):
        self.told.append((name, log))

    def acceptance_problem(self):
        return self.problem

    def accept_log(self):
        self.told.append("accepted")


@pytest.fixture
def cluster(api):
    api.node.cluster = Cluster()
    return api.node.cluster


def test_a_broker_without_a_log_is_one_node(api):
    """It says so, is healthy, and refuses what needs others."""
    assert {"replicated": False} == api.get("leveret/cluster")
    assert {"status": "ok"} == api.get("health/checks/replication")
    answer = api.request("POST", "leveret/cluster/transfer", {})
    assert (400, "this broker is one node: replication.url is not set") == (
        answer.status,
        answer.body["reason"],
    )


def test_the_cluster_is_shown_and_told(api, cluster):
    """As the node sees it; a hand-over is begun, and a member is gone when the answer comes."""
    assert cluster.state == api.get("leveret/cluster")
    assert 202 == api.request("POST", "leveret/cluster/transfer", {"name": "n2"}).status
    assert 204 == api.request("DELETE", "leveret/cluster/members/n%203").status
    assert 204 == api.request("POST", "leveret/cluster/accept-log").status
    assert ["n2", ("transfer", "n2"), "n 3", ("forget", "n 3"), "accepted"] == cluster.told
    assert 404 == api.request("POST", "leveret/cluster/move", {"vhost": "none", "log": "l"}).status
    cluster.problem = "taken"
    answer = api.request("POST", "leveret/cluster/move", {"vhost": "/", "log": "l"})
    assert (400, "taken") == (answer.status, answer.body["reason"])
    assert ["l"] == cluster.told[5:]


def test_what_cannot_be_done_has_a_reason(api, cluster):
    """400 with what the node says, and nothing is done."""
    cluster.problem = "not now"
    for method, path in (
        ("POST", "leveret/cluster/transfer"),
        ("DELETE", "leveret/cluster/members/n3"),
        ("POST", "leveret/cluster/accept-log"),
    ):
        answer = api.request(method, path)
        assert (400, "not now") == (answer.status, answer.body["reason"])
    assert ["", "n3"] == cluster.told


def test_health_is_red_for_what_is_wrong(api, cluster):
    """All problems are told, such as a setting that lets confirmed messages be lost; a waiting node is not in service."""
    answer = api.request("GET", "health/checks/replication")
    assert (503, "unsafe; behind") == (answer.status, answer.body["reason"])
    assert 200 == api.request("GET", "health/checks/is-in-service").status
    cluster.role = 0
    assert 503 == api.request("GET", "health/checks/is-in-service").status


class FakeBackup:
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
    latest: FakeBackup | None = None

    def start(self, dest: Path, rate: int) -> FakeBackup:
        if self.latest is not None and self.latest.state == "running":
            raise StorageError("a backup is running")
        self.latest = FakeBackup(dest, rate)
        return self.latest


class BackedUpNode(Node):
    made = FakeBackups()

    @property
    def backups(self) -> FakeBackups:
        return self.made


@pytest.fixture
def node() -> BackedUpNode:
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


def test_leads_are_balanced_with_a_directory(api):
    """The hand-overs that follow are returned, or a 400 with the reason, and problems are red; without one it refuses."""

    class Logs:
        found: object = "away"
        problems = ("users are old",)

        def described(self):
            return {"replicated": False, "logs": [], "problems": self.problems}

        def balance(self, done):
            done(self.found)

    answer = api.request("POST", "leveret/cluster/balance")
    assert (400, "vhosts.directory is not set") == (answer.status, answer.body["reason"])
    api.node.logs = Logs()
    assert [] == api.get("leveret/cluster")["logs"]
    answer = api.request("GET", "health/checks/replication")
    assert (503, "users are old") == (answer.status, answer.body["reason"])
    answer = api.request("POST", "leveret/cluster/balance")
    assert (400, "away") == (answer.status, answer.body["reason"])
    api.node.logs.found = []
    answer = api.request("POST", "leveret/cluster/balance")
    assert (200, {"handovers": []}) == (answer.status, answer.body)

"""The cluster in the API: what it shows, what it refuses, and that health is red for what is unsafe."""

import pytest

from leveret.broker.administration.access import Figures


class Cluster:
    """A cluster that records what it is told."""

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

    def acceptance_problem(self):
        return self.problem

    def accept_log(self):
        self.told.append("accepted")


@pytest.fixture
def cluster(api):
    """The cluster of the node of the API."""
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

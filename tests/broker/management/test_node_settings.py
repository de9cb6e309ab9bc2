"""The name of the cluster, features, logins, and what is not here, in the API."""

import pytest
from api import Api
from fakes import StoringNode

from leveret.broker import COMPATIBLE_VERSION
from leveret.broker.auth.passwords import Password, check_password


def test_the_cluster_name_is_set_permanently():
    """Clients see it at once, and after a restart."""
    api = Api(StoringNode())
    assert {"name": api.node.config.cluster_name} == api.get("cluster-name")
    assert 204 == api.put("cluster-name", {"name": "a name"})
    assert {"name": "a name"} == api.get("cluster-name")
    assert b"a name" in api.node.start_frame
    assert {"name": "cluster_name", "value": "a name"} in api.get("global-parameters")
    api.node.commit()
    again = api.node.restarted()
    assert "a name" == again.cluster_name
    assert [400, 400] == [api.put("cluster-name", body) for body in ({}, {"name": 5})]


def test_feature_flags_are_enabled(api):
    """Clients look for some of them."""
    flags = {flag["name"]: flag["state"] for flag in api.get("feature-flags")}

    assert {"enabled"} == set(flags.values())
    assert {"stream_queue", "quorum_queue", "classic_queue_type_delivery_support"} <= flags.keys()
    assert [204, 204, 400] == [
        api.put(f"feature-flags/{name}/enable", {}) for name in ("stream_queue", "all", "unknown")
    ]


@pytest.mark.parametrize("login", ["guest:guest", ""])
def test_the_login_page_needs_no_login(api, login):
    """It learns that users log in by name and password."""
    assert {"oauth_enabled": False} == Api(api.node, login).get("auth")


def test_a_login_by_form(api):
    """The answer of a good one is a word, that of a bad one as everywhere."""
    stranger = Api(api.node, "")
    good = stranger.request("POST", "login", b"username=guest&password=guest")
    bad = stranger.request("POST", "login", b"username=guest&password=wrong")

    assert (200, "ok") == (good.status, good.body)
    assert (401, {"error": "not_authorized", "reason": "Not_Authorized"}) == (bad.status, bad.body)
    api.put("users/u", {"password": "x", "tags": ""})
    refused = stranger.request("POST", "login", b"username=u&password=x")
    assert (401, "Not management user") == (refused.status, refused.body["reason"])


def test_logins_are_counted(api):
    """Those of HTTP apart from those of AMQP."""
    Api(api.node, "guest:wrong").request("GET", "whoami")
    path = f"auth/attempts/{api.node.node_name}"
    http, amqp = api.get(path)

    assert ("http", 1, 1) == (http["protocol"], http["auth_attempts_failed"], http["auth_attempts_succeeded"])
    assert ("amqp091", 0) == (amqp["protocol"], amqp["auth_attempts"])
    assert 2 == http["auth_attempts"]
    assert [] == api.get(f"{path}/source")
    assert [204, 204] == [api.delete(path), api.delete(f"{path}/source")]
    assert 404 == api.request("GET", "auth/attempts/other").status


def test_a_password_is_hashed(api):
    """The hash can be given to a user."""
    hashed = api.get("auth/hash_password/se%2Fcret")["ok"]

    assert check_password(Password("se/cret"), hashed)


def test_settings_are_text_without_passwords():
    """As `leveret config` prints them."""
    api = Api(StoringNode())
    answer = api.request("GET", "config/effective")

    assert "text/plain; charset=utf-8" == answer.headers["content-type"]
    assert b"heartbeat = 60\n" in answer.body
    assert b"guest:guest" not in answer.body


@pytest.mark.parametrize(
    "path", ["extensions", "deprecated-features/used", "federation-links", "shovels", "shovels/%2F"]
)
def test_lists_of_what_is_not_here_are_empty(api, path):
    """Dashboards ask for them."""
    assert [] == api.get(path)


@pytest.mark.parametrize("path", ["stream/connections", "tracing", "trace-files", "top/n", "unknown", ""])
def test_plugins_that_are_not_here_are_not_found(api, path):
    """As in a RabbitMQ without them."""
    answer = api.request("GET", path)

    assert (404, {"error": "Object Not Found", "reason": "Not Found"}) == (answer.status, answer.body)


def test_what_has_no_effect_is_accepted(api):
    """On this node."""
    node = api.node.node_name
    assert [204, 204, 404] == [api.delete(path) for path in ("reset", f"reset/{node}", "reset/other")]
    assert 204 == api.post("rebalance/queues").status
    assert COMPATIBLE_VERSION == api.get("version")
    assert {"global_qos"} <= {row["name"] for row in api.get("deprecated-features")}


def test_replicas_of_quorum_queues_are_fixed(api):
    """There is one, the leader; changes are refused as by a RabbitMQ that is configured so."""
    topology = api.node.administration.topology
    topology.declare_queue(None, "/", "q", arguments={"x-queue-type": "quorum"})
    topology.declare_queue(None, "/", "classic")

    (replica,) = api.get("queues/quorum/%2F/q/status")
    assert (api.node.node_name, "leader") == (replica["Node Name"], replica["Raft State"])
    assert [404, 404] == [
        api.request("GET", f"queues/quorum/%2F/{name}/status").status for name in ("none", "classic")
    ]
    for method, path in (
        ("POST", "%2F/q/replicas/add"),
        ("DELETE", "%2F/q/replicas/delete"),
        ("POST", "replicas/on/n/grow"),
        ("DELETE", "replicas/on/n/shrink"),
    ):
        assert 405 == api.request(method, f"queues/quorum/{path}", {}).status, path

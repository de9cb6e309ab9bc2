"""The name of the cluster, features, logins, and what is not here, in the API."""

import pytest
from doubles.fakes import Client, Node, StoringNode, configure
from services.api import Api, respond

from leveret.broker import COMPATIBLE_VERSION
from leveret.broker.auth.passwords import Password, check_password
from leveret.broker.http.call import Request
from leveret.broker.management.routes import ROUTER
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.broker.scheduling.time_slices import at_once


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


def test_logins_are_counted(api):
    """Those of HTTP apart from those of AMQP."""
    Api(api.node, "guest:wrong").request("GET", "whoami")
    path = f"auth/attempts/{api.node.node_name}"
    (only_http,) = api.get(path)
    assert {
        "protocol": "http",
        "auth_attempts": 2,
        "auth_attempts_failed": 1,
        "auth_attempts_succeeded": 1,
    } == only_http
    Client(api.node)
    amqp, http = api.get(path)
    assert [("amqp091", 1), ("http", 3)] == [
        (each["protocol"], each["auth_attempts"]) for each in (amqp, http)
    ]
    sources = api.get(f"{path}/source")
    assert [("amqp091", 1, 0), ("http", 4, 1)] == [
        (each["protocol"], each["auth_attempts"], each["auth_attempts_failed"]) for each in sources
    ]
    assert [("127.0.0.1", "guest")] * 2 == [(each["remote_address"], each["username"]) for each in sources]
    assert 3 == sources[1]["auth_attempts_succeeded"]
    api.delete(f"{path}/source")
    assert [1] == [each["auth_attempts"] for each in api.get(f"{path}/source")]


def test_numbers_of_logins_are_reset(api):
    """Only logins after it are in the numbers, and the counters of the broker go on."""
    path = f"auth/attempts/{api.node.node_name}"
    Api(api.node, "guest:wrong").request("GET", "whoami")
    api.node.context.totals.auth_succeeded += 5
    assert [204, 204] == [api.delete(f"{path}/source"), api.delete(path)]
    (http,) = api.get(path)

    assert ("http", 1, 0) == (http["protocol"], http["auth_attempts"], http["auth_attempts_failed"])
    assert (1, 5) == (api.node.context.totals.auth_failed, api.node.context.totals.auth_succeeded)
    assert [404, 404] == [api.request(each, "auth/attempts/other").status for each in ("GET", "DELETE")]


def test_statistics_are_reset():
    """Samples are forgotten, and what closed channels have done; a channel that is open is counted again."""
    api = Api(Node())
    node, statistics = api.node, api.node.statistics
    open_client, closed_client = Client(node), Client(node)
    open_client.declare("q")
    for client in (open_client, closed_client):
        client.publish("q", b"1")
    closed_client.connection.lost()
    for _ in range(2):
        node.pass_time(5000)
        at_once(statistics.sample())
    before = (
        api.get("overview")["message_stats"]["publish"],
        api.get("vhosts/%2F")["message_stats"]["publish"],
    )
    unfinished = statistics.sample()
    next(unfinished)
    assert 204 == api.delete("reset")
    queue = node.vhosts["/"].queues["q"]
    for _ in unfinished:
        assert statistics.series(queue) is None
    node.pass_time(5000)
    at_once(statistics.sample())

    assert (2, 2) == before
    assert (1, 1) == (
        api.get("overview")["message_stats"]["publish"],
        api.get("vhosts/%2F")["message_stats"]["publish"],
    )
    series = statistics.series(queue)
    assert series is not None
    assert series.since == statistics.ticks.number
    assert 2 == node.context.totals.channels.published + sum(
        channel.published for channel in open_client.connection.channels.values()
    )


def test_a_password_is_hashed(api):
    """The hash can be given to a user."""
    hashed = api.get("auth/hash_password/se%2Fcret")["ok"]

    assert check_password(Password("se/cret"), hashed)


def test_settings_are_text_without_passwords():
    """The fields of the program, as text."""
    api = Api(StoringNode())
    answer = api.request("GET", "config/effective")

    assert "text/plain; charset=utf-8" == answer.headers["content-type"]
    assert b"heartbeat = 60\n" in answer.body
    assert b"guest:guest" not in answer.body


@pytest.mark.parametrize("path", ["extensions", "federation-links", "shovels", "shovels/%2F"])
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


def test_deprecated_features_have_their_state(api):
    """Features that are not here are denied, as are those that the configuration denies."""

    def states() -> dict[str, str]:
        return {row["name"]: row["state"] for row in api.get("deprecated-features")}

    assert ("permitted", "permitted") == (states()["global_qos"], states()["transient_nonexcl_queues"])
    assert ("denied", "removed") == (
        states()["ram_node_type"],
        api.get("deprecated-features")[4]["deprecation_phase"],
    )
    configure(
        api.node,
        "compatibility",
        global_qos="ignored",
        transient_nonexcl_queues="denied",
        queues=QueueCompatibility(arguments="4.3"),
    )
    denied = {"global_qos", "transient_nonexcl_queues", "queue_master_locator"}
    assert {"denied"} == {states()[name] for name in denied}


def test_transient_queues_are_a_deprecated_feature_in_use(api):
    """One that is neither durable nor exclusive is what 4.3 denies; others are not."""
    client = Client(api.node)
    client.declare("kept", durable=True)
    client.declare("own", exclusive=True)
    assert [] == api.get("deprecated-features/used")
    client.declare("replies")

    assert [("transient_nonexcl_queues", "permitted")] == [
        (row["name"], row["state"]) for row in api.get("deprecated-features/used")
    ]


def test_queues_are_looked_at_in_portions(api):
    """A request for the deprecated features in use has a step for each 200 queues, so that others are served between."""
    client = Client(api.node)

    def steps() -> int:
        return len(list(respond(api.node, ROUTER, Request("GET", "/api/deprecated-features/used"))))

    before = steps()
    for number in range(1000):
        client.declare(f"kept {number}", durable=True)

    assert before + 5 == steps()


def test_flags_of_4_3(api):
    """With the profile 4.3 there are the feature flags of that release, and clients may enable them."""
    assert 400 == api.put("feature-flags/rabbitmq_4.3.0/enable")
    before = {row["name"] for row in api.get("feature-flags")}
    configure(api.node, "compatibility", profile="4.3")
    assert {"khepri_db", "rabbitmq_4.3.0"} < {row["name"] for row in api.get("feature-flags")} - before
    assert 204 == api.put("feature-flags/rabbitmq_4.3.0/enable")


def test_features_that_4_3_denies(api):
    """With the profile 4.3 three features are denied by default, as there, and none is in 3.13."""
    before = {row["deprecation_phase"] for row in api.get("deprecated-features")}
    configure(api.node, "compatibility", profile="4.3")
    after = {row["name"]: row["deprecation_phase"] for row in api.get("deprecated-features")}

    assert {"removed", "permitted_by_default"} == before
    denied = {"global_qos", "queue_master_locator", "transient_nonexcl_queues"}
    assert denied == {name for name, phase in after.items() if phase == "denied_by_default"}


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

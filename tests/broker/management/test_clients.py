"""Connections, channels and consumers in the API."""

from urllib.parse import quote

import pytest
from doubles.fakes import Client, Node
from services.api import Api

from leveret.broker.amqp.commands import Basic, make

NAME = "127.0.0.1:50000 -> 127.0.0.1:5672"
PATH = quote(NAME, safe="")


@pytest.fixture
def api() -> Api:
    """The API of a broker with one client, which consumes from `q`."""
    node = Node()
    client = Client(node)
    client.declare("q")
    client.consume("q", "tag")
    client.publish("q", b"hello")
    return Api(node)


def test_a_connection_is_listed_and_shown(api):
    """Its fields are RabbitMQ's."""
    (row,) = api.get("connections")
    assert (NAME, "guest", "/", "running", "AMQP 0-9-1", "network", "PLAIN", 1) == tuple(
        row[key]
        for key in ("name", "user", "vhost", "state", "protocol", "type", "auth_mechanism", "channels")
    )
    assert row["connected_at"] == 1_000_000
    assert row["client_properties"]["capabilities"]["consumer_cancel_notify"] is True
    assert [NAME] == [each["name"] for each in api.get("vhosts/%2F/connections")]
    assert [NAME] == [each["name"] for each in api.get("connections/username/guest")]
    assert [] == api.get("connections/username/nobody")
    assert NAME == api.get(f"connections/{PATH}")["name"]
    for path in (
        "connections/nope",
        "connections/nope/channels",
        "connections/nope/sessions",
        "channels/nope",
        "vhosts/nope/connections",
    ):
        assert 404 == api.request("GET", path).status


def test_a_connection_is_closed_with_a_reason(api):
    """The client gets 320 with the text of the header `X-Reason`."""
    (connection,) = api.node.clients.connections
    assert 204 == api.request("DELETE", f"connections/{PATH}", **{"x-reason": "go away"}).status
    assert b"go away" in bytes(connection.driver.octets)
    assert 404 == api.delete("connections/nope")


def test_the_connections_of_a_user_are_closed(api):
    """Those of others stay."""
    assert 204 == api.delete("connections/username/nobody")
    assert 1 == len(api.get("connections"))
    assert 204 == api.delete("connections/username/guest")
    assert {"closing"} >= {each["state"] for each in api.get("connections")}


def test_a_channel_is_listed_and_shown_with_its_consumers(api):
    """Counts are those of this moment, without a sample."""
    (row,) = api.get("channels")
    assert row == api.get("vhosts/%2F/channels")[0] == api.get(f"connections/{PATH}/channels")[0]
    assert f"{NAME} (1)" == row["name"]
    assert (1, 1, 1) == (
        row["consumer_count"],
        row["messages_unacknowledged"],
        row["message_stats"]["deliver"],
    )
    assert {"name": NAME, "peer_host": "127.0.0.1", "peer_port": 50000} == row["connection_details"]
    shown = api.get(f"channels/{quote(row['name'], safe='')}")
    assert ["tag"] == [each["consumer_tag"] for each in shown["consumer_details"]]


def test_a_connection_has_no_sessions(api):
    """Only those of AMQP 1.0 have, RabbitMQ says."""
    answer = api.request("GET", f"connections/{PATH}/sessions")

    assert (400, "connection does not use AMQP 1.0") == (answer.status, answer.body["reason"])


def test_the_creators_of_queues_are_not_known(api):
    """A list of the queues that a user has declared is refused, rather than empty."""
    answer = api.request("GET", "users/guest/queues")

    assert (400, "who has declared a queue is not recorded") == (answer.status, answer.body["reason"])


@pytest.mark.parametrize("number", ["9" * 5000, "2", "-1", "x", "\u0661" * 5000, ""])
def test_channels_that_are_none_are_not_found(api, number):
    """Also for the name of a connection with more digits than a number may have."""
    assert 404 == api.request("GET", f"channels/{PATH}%20({quote(number)})").status


def test_consumers_are_listed(api):
    """With their queues and channels, also on the page of their queue."""
    (row,) = api.get("consumers")
    assert [row] == api.get("consumers/%2F") == api.get("queues/%2F/q")["consumer_details"]
    assert ("tag", True, {"name": "q", "vhost": "/"}, "up") == tuple(
        row[key] for key in ("consumer_tag", "ack_required", "queue", "activity_status")
    )
    assert {
        "name": f"{NAME} (1)",
        "number": 1,
        "connection_name": NAME,
        "peer_host": "127.0.0.1",
        "peer_port": 50000,
        "user": "guest",
        "node": api.node.node_name,
    } == row["channel_details"]
    assert 404 == api.request("GET", "consumers/nope").status
    api.put("users/m", {"password": "x", "tags": "management"})
    assert [] == Api(api.node, "m:x").get("consumers/%2F")


def test_users_see_their_own_connections_only(api):
    """A monitoring user sees all of them, but cannot close any."""
    for tag in ("management", "monitoring"):
        api.put(f"users/{tag}", {"password": "x", "tags": tag})
        api.node.users.set_permissions(tag, "/", ".*", ".*", ".*")
    plain, monitor = Api(api.node, "management:x"), Api(api.node, "monitoring:x")

    assert [] == plain.get("connections") == plain.get("channels")
    assert 401 == plain.request("GET", f"connections/{PATH}").status
    assert 1 == len(monitor.get("connections")) == len(monitor.get("channels"))
    assert 401 == monitor.delete(f"connections/{PATH}")


def test_the_overview_counts_everything(api):
    """Totals are those of this moment, and other users see only what is theirs."""
    api.node.run_turn()
    shown = api.get("overview")
    assert {"channels": 1, "connections": 1, "consumers": 1, "exchanges": 7, "queues": 1} == shown[
        "object_totals"
    ]
    assert (1, 0, 1) == tuple(
        shown["queue_totals"][key] for key in ("messages", "messages_ready", "messages_unacknowledged")
    )
    assert (1, 1, 1) == tuple(shown["message_stats"][key] for key in ("publish", "deliver", "deliver_get"))
    assert 1 == shown["churn_rates"]["connection_created"]
    assert {"rate": 0.0} == shown["message_stats"]["publish_details"]
    assert api.node.node_name == shown["node"]
    api.put("users/m", {"password": "x", "tags": "management"})
    other = Api(api.node, "m:x").get("overview")
    assert {"channels": 0, "connections": 0, "consumers": 0, "exchanges": 0, "queues": 0} == other[
        "object_totals"
    ]
    assert "node" not in other
    assert 0 == other["message_stats"]["publish"]


def test_the_node_and_its_memory_are_shown(api):
    """To monitoring users; each figure that RabbitMQ has is there as a number."""
    name = api.node.node_name
    (row,) = api.get("nodes")
    assert row["name"] == name == api.get(f"nodes/{name}")["name"]
    for key in ("mem_used", "fd_used", "sockets_used", "proc_used", "disk_free", "io_sync_count", "uptime"):
        assert isinstance(row[key], int), key
    assert api.get(f"nodes/{name}/memory")["memory"]["total"]["rss"] == row["mem_used"]
    assert 100 == api.get(f"nodes/{name}/memory/relative")["memory"]["total"]
    assert api.get(f"nodes/{name}?memory=true")["memory"] == api.get(f"nodes/{name}/memory")["memory"]
    assert {"ets_tables_memory": {"total": 0}} == api.get(f"nodes/{name}/memory/ets")
    for path in ("nodes/nope", "nodes/nope/memory"):
        assert 404 == api.request("GET", path).status
    api.put("users/m", {"password": "x", "tags": "management"})
    assert 401 == Api(api.node, "m:x").request("GET", "nodes").status


def test_rates_come_from_samples(api):
    """Between two samples a queue, its channel, exchange and vhost, and the broker have rates; later they have none."""
    node = api.node
    (connection,) = node.clients.connections
    client = connection.driver

    def tick(milliseconds: int) -> None:
        node.pass_time(milliseconds)
        for _ in node.statistics.sample():
            pass

    del client
    publisher = Client(node, port=50001)
    tick(0)
    for number in range(20):
        publisher.publish("q", b"%d" % number)
    publisher.send(make(Basic.Get, 0, "nothing", False))
    tick(5000)

    queue = api.get("queues/%2F/q")
    assert (21, 4.0) == (queue["message_stats"]["publish"], queue["message_stats"]["publish_details"]["rate"])
    assert 4.0 == queue["messages_details"]["rate"]
    assert "idle_since" not in queue
    assert 4.0 == api.get("overview")["message_stats"]["publish_details"]["rate"]
    assert 4.0 == api.get("exchanges/%2F/amq.default")["message_stats"]["publish_in_details"]["rate"]
    rates = [each["message_stats"]["deliver_get_details"]["rate"] for each in api.get("channels")]
    assert 4.0 in rates
    assert (
        4.0
        == api.get("queues?sort=message_stats.publish_details.rate&columns=message_stats")[0][
            "message_stats"
        ]["publish_details"]["rate"]
    )
    ranged = api.get("queues/%2F/q?msg_rates_age=5&msg_rates_incr=5")["message_stats"]["publish_details"]
    assert [21, 1] == [each["sample"] for each in ranged["samples"]]
    assert (4.0, 4.0, 11.0) == (ranged["rate"], ranged["avg_rate"], ranged["avg"])

    api.put("queues/%2F/replicated", {"durable": True, "arguments": {"x-queue-type": "quorum"}})
    node.pass_time(20_000)
    assert 0.0 == api.get("queues/%2F/q")["message_stats"]["publish_details"]["rate"]
    tick(0)
    tick(5000)
    tick(5000)
    idle = api.get("queues/%2F/q")
    assert (0.0, "1970-01-01T00:16:45.000+00:00") == (
        idle["message_stats"]["publish_details"]["rate"],
        idle["idle_since"],
    )
    assert "idle_since" not in api.get("queues/%2F/replicated")  # as RabbitMQ's quorum queues


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("lengths_age=10&lengths_incr=0", 400),
        ("lengths_age=10000&lengths_incr=1", 400),
        ("lengths_age=x&lengths_incr=1", 200),
        ("lengths_age=10", 200),
        ("msg_rates_age=600&msg_rates_incr=5", 200),
    ],
)
def test_ranges_are_checked(api, query, status):
    """They must be positive, with at most 500 samples; the error has one name for objects and one for lists."""
    for path, error in (("queues/%2F/q", "bad_request"), ("queues", "invalid_range_parameters")):
        answer = api.request("GET", f"{path}?{query}")
        assert status == answer.status
        assert 200 == status or error == answer.body["error"]

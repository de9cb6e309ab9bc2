"""Ids that queues know in the API: listed, looked up and forgotten."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.fakes import Client, Node, node_in, settle
from services.api import OPERATOR, Api

from leveret.broker.amqp.commands import Exchange, Queue, make

IDS = "leveret/queues/%2F/q/ids"


@pytest.fixture(params=["memory", "disk"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Node]:
    """A broker with two queues that know the ids 1 and 2, and have dropped one repeat, and one that takes all."""
    with node_in(request.param, tmp_path) as made:
        client = Client(made)
        for name, mode in (("q", "window"), ("r", "running")):
            arguments = {"x-deduplicate": ("longstr", "message_id"), "x-deduplicate-mode": ("longstr", mode)}
            client.declare(name, durable=True, arguments=arguments)
            settle(made)
            for number in ("1", "2", "1"):
                client.publish(name, b"m", message_id=number, delivery_mode=2)
        client.declare("plain", durable=True)
        settle(made)
        yield made


def test_the_queues_are_listed(node):
    """Each queue that takes messages once has a line: what the id is, how long it is known, how many there are."""
    rows = Api(node, OPERATOR).get("leveret/ids/%2F")
    assert rows == Api(node, OPERATOR).get("leveret/ids")
    assert [
        {
            "vhost": "/",
            "queue": name,
            "exchange": "",
            "deduplicate": "message_id",
            "mode": mode,
            "for": time,
            "ids": 2,
            "repeated": 1,
        }
        for name, mode, time in (("q", "window", 600_000), ("r", "running", 0))
    ] == rows
    found = Api(node, OPERATOR).get("queues/%2F/q")
    assert (2, 1) == (found["ids_known"], found["messages_repeated"])
    lines = Api(node, OPERATOR).get("leveret/explain/queue/%2F/q")["lines"]
    assert "takes each message once (window): knows 2 ids, dropped 1 repeat" in lines


def test_an_id_is_looked_up(node):
    """The answer says whether it is known, and until when; null as long as its message is there."""
    api = Api(node, OPERATOR)
    found = api.get(f"{IDS}?id=1")
    assert ("1", True) == (found["id"], found["known"])
    assert 0 <= found["until"] - node.wall_clock() - 600_000 < 16
    assert {"id": "3", "known": False, "until": None} == api.get(f"{IDS}?id=3")
    assert {"id": "1", "known": True, "until": None} == api.get("leveret/queues/%2F/r/ids?id=1")


def test_ids_are_forgotten(node):
    """One that is forgotten, or all, may be published again."""
    api = Api(node, OPERATOR)
    for path, count in ((f"{IDS}?id=1", 1), (f"{IDS}?id=1", 0), (IDS, 1)):
        assert {"forgotten": count} == api.request("DELETE", path).body
    assert [0, 2] == [row["ids"] for row in api.get("leveret/ids")]
    assert 3 == sum(row["messages"] for row in api.get("queues") if row["name"] != "r") + 1


def test_an_empty_id_does_not_stand_for_all(node):
    """No queue knows it, and a script that has lost its id must not have all ids forgotten."""
    api = Api(node, OPERATOR)
    assert 400 == api.request("DELETE", f"{IDS}?id=").status
    assert [2, 2] == [row["ids"] for row in api.get("leveret/ids")]


def test_who_may_do_what(node):
    """Looking needs read, forgetting configure; a queue that takes all has nothing to look at."""
    api = Api(node, OPERATOR)
    assert 400 == api.request("GET", "leveret/queues/%2F/plain/ids?id=1").status
    assert 400 == api.request("GET", IDS).status
    assert 404 == api.request("GET", "leveret/queues/%2F/none/ids?id=1").status
    api.put("users/ann", {"password": "ann", "tags": "management"})
    api.put("permissions/%2F/ann", {"configure": "", "write": ".*", "read": ".*"})
    settle(node)
    other = Api(node, "ann:ann")
    assert 200 == other.request("GET", f"{IDS}?id=1").status
    assert 401 == other.delete(IDS)
    assert [2, 2] == [row["ids"] for row in api.get("leveret/ids")]


def test_the_ids_of_an_exchange(node):
    """An exchange is listed, asked and told like a queue, and explained where a publish to it is."""
    client, api = Client(node), Api(node, OPERATOR)
    arguments = {"x-deduplicate": ("longstr", "header:task")}
    client.send(make(Exchange.Declare, 0, "e", "fanout", False, True, False, False, False, arguments))
    settle(node)
    client.send(make(Queue.Bind, 0, "plain", "e", "", False, {}))
    settle(node)
    for text in "121":
        client.publish("", b"m", exchange="e", headers={"task": ("longstr", text)}, delivery_mode=2)
    settle(node)
    (row,) = [row for row in api.get("leveret/ids/%2F") if row["exchange"]]
    assert ("e", "", "window", 2, 1) == tuple(
        row[key] for key in ("exchange", "queue", "mode", "ids", "repeated")
    )
    path = "leveret/exchanges/%2F/e/ids"
    assert api.get(f"{path}?id=1")["known"]
    explain = "leveret/explain/publish/%2F/e"
    lines = api.post(explain, {"routing_key": "", "headers": {"task": "1"}}).body["lines"]
    assert any("not routed: duplicate of a message of " in line for line in lines)
    assert {"forgotten": 1} == api.request("DELETE", f"{path}?id=1").body
    lines = api.post(explain, {"routing_key": "", "headers": {"task": "1"}}).body["lines"]
    assert "  the exchange takes each message once (header:task): knows 1 id, dropped 1 repeat" in lines
    assert 400 == api.request("GET", "leveret/exchanges/%2F/amq.fanout/ids?id=1").status
    assert 404 == api.request("GET", "leveret/exchanges/%2F/none/ids?id=1").status

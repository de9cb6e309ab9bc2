"""Explanations in the API."""

import pytest
from doubles.fakes import Client, Node
from services.api import Api

from leveret.broker.amqp.tables import Table


@pytest.fixture
def api() -> Api:
    """The API of a new broker with a queue, used by its administrator."""
    api = Api(Node())
    api.put("queues/%2F/q", {"arguments": {"x-max-lenght": 5}})
    return api


def test_a_queue_is_explained(api):
    """Facts for programs, and lines for people."""
    found = api.get("leveret/explain/queue/%2F/q")

    assert ["unknown argument 'x-max-lenght' has no effect: did you mean 'x-max-length'?"] == found[
        "warnings"
    ]
    assert "queue 'q' in vhost '/' (classic, transient)" == found["lines"][0]
    answer = api.request("GET", "leveret/explain/queue/%2F/none")
    assert (404, "no queue 'none' in vhost '/'") == (answer.status, answer.body["reason"])


def test_a_publish_is_explained(api):
    """The default exchange is amq.default; headers are an object."""
    found = api.post(
        "leveret/explain/publish/%2F/amq.default", {"routing_key": "q", "headers": {"a": 1}}
    ).body

    assert [True, ["q"]] == [found["routed"], [each["name"] for each in found["queues"]]]
    assert 0 == api.get("queues/%2F/q")["messages"]
    assert 400 == api.post("leveret/explain/publish/%2F/amq.default", {}).status
    assert (
        400 == api.post("leveret/explain/publish/%2F/amq.default", {"routing_key": "q", "headers": 5}).status
    )
    assert 404 == api.post("leveret/explain/publish/%2F/none", {"routing_key": "q"}).status


def test_a_message_is_explained(api):
    """A message is named by its queue, its number and its state."""
    client = Client(api.node)
    client.publish("q", b"one")
    found = api.get("leveret/explain/message/%2F/q/1")

    assert ("one", 1) == (found["message"]["payload"], found["message"]["number"])
    assert "the queue has no consumer" in found["lines"]
    for path, status in (("2", 404), ("1?state=unacked", 404), ("1?state=x", 400), ("0", 400), ("one", 400)):
        assert status == api.request("GET", f"leveret/explain/message/%2F/q/{path}").status


def test_a_death_at_no_time_is_explained(api):
    """A client may write any `x-death`: a time that no calendar has is left out, in explanations and lists."""
    for time in (("timestamp", 2**63), ("long", -(2**62)), ("double", 1.5)):
        death: Table = {
            "queue": ("longstr", "p"),
            "reason": ("longstr", "rejected"),
            "count": ("long", 1),
            "time": time,
        }
        Client(api.node).publish("q", b"", headers={"x-death": ("array", [("table", death)])})
    for number in (1, 2, 3):
        found = api.get(f"leveret/explain/message/%2F/q/{number}")
        assert "died once in queue 'p': rejected by a consumer" in found["lines"]
    (row,) = api.get("leveret/dead-letters/%2F")
    assert (3, None, None) == (row["dead_letters"], row["oldest"], row["newest"])


def test_headers_that_are_too_deep_are_refused(api):
    """Headers that no table can have are refused, when a publish is explained and when it is made."""
    deep: dict = {}
    for _ in range(300):
        deep = {"a": deep}
    body = {"routing_key": "q", "headers": deep}
    answer = api.post("leveret/explain/publish/%2F/amq.default", body)
    assert (400, "'headers' is nested deeper than 64 levels") == (answer.status, answer.body["reason"])
    body = {"routing_key": "q", "payload": "", "payload_encoding": "string", "properties": {"headers": deep}}
    answer = api.post("exchanges/%2F/amq.default/publish", body)
    assert (400, "'properties' is nested deeper than 64 levels") == (answer.status, answer.body["reason"])

"""Messages of a queue in the API, without consuming them."""

import base64

import pytest
from api import Api
from fakes import Client, Node

from leveret.broker.amqp.tables import Table

PATH = "leveret/queues/%2F/q/messages"


@pytest.fixture
def api() -> Api:
    """The API of a new broker with a queue, used by its administrator."""
    api = Api(Node())
    api.put("queues/%2F/q", {"durable": True})
    return api


def publish(api: Api, payload: bytes = b"hi", **headers: object) -> None:
    """Publish a message to `q`."""
    body = {
        "routing_key": "q",
        "properties": {"headers": headers},
        "payload": base64.b64encode(payload).decode(),
        "payload_encoding": "base64",
    }
    assert api.post("exchanges/%2F/amq.default/publish", body).status == 200


def test_messages_are_shown_and_stay(api):
    """Messages have the keys that fetching has, their state and their place; all of them are still there."""
    publish(api, n=1)
    publish(api, b"\xff\x00")

    one, two = api.get(PATH)["messages"]

    assert {
        "number": 1,
        "state": "ready",
        "redelivered": False,
        "exchange": "",
        "routing_key": "q",
        "age": one["age"],
        "expires": None,
        "due": None,
        "consumer_tag": None,
        "channel": None,
        "unacked_for": None,
        "properties": {"headers": {"n": 1}},
        "payload_bytes": 2,
        "payload": "hi",
        "payload_encoding": "string",
        "truncated": False,
    } == one
    assert ("/wA=", "base64", {}) == (two["payload"], two["payload_encoding"], two["properties"])
    assert ("aGk=", "base64") == tuple(
        api.get(f"{PATH}?encoding=base64")["messages"][0][key] for key in ("payload", "payload_encoding")
    )
    assert 2 == api.get("queues/%2F/q")["messages_ready"]


def test_messages_are_chosen(api):
    """A condition, a count, the end to begin at and the length of bodies are parameters."""
    for number in range(20):
        publish(api, b"%04d" % number, n=number)

    assert list(range(1, 11)) == [each["number"] for each in api.get(PATH)["messages"]]
    assert [20, 19] == [each["number"] for each in api.get(f"{PATH}?count=2&from=tail")["messages"]]
    found = api.get(f"{PATH}?where=headers.n%20%3E%3D%2018&truncate=3")["messages"]
    assert [("001", 19, True), ("001", 20, True)] == [
        (each["payload"], each["number"], each["truncated"]) for each in found
    ]


def test_unacked_messages_are_shown_with_their_consumer(api):
    """A message that a consumer has is in the list."""
    client = Client(api.node)
    client.consume("q", "worker")
    publish(api)

    (found,) = api.get(PATH)["messages"]

    assert ("unacked", "worker", None) == (found["state"], found["consumer_tag"], found["number"])


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("where=size%20%3D%201", "where: column 6: unexpected &apos;=&apos;: equality is &apos;==&apos;"),
        ("count=0", "count must be from 1 to 1000"),
        ("count=many", "not_integer"),
        ("from=middle", "from must be head or tail"),
        ("truncate=-1", "truncate must be from 0"),
        ("after=there", "'after' is not a value that a search has returned"),
        ("encoding=hex", "encoding must be auto or base64"),
    ],
)
def test_wrong_parameters(api, query, reason):
    """A wrong parameter is named in the error."""
    answer = api.request("GET", f"{PATH}?{query}")

    assert answer.status == 400
    assert reason.replace("&apos;", "'") in str(answer.body["reason"]).replace("&#39;", "'")


def test_a_missing_queue_and_a_missing_permission(api):
    """A missing queue is not found; a user who may not read the queue is refused."""
    api.put("users/ann", {"password": "p", "tags": "management"})
    api.put("permissions/%2F/ann", {"configure": ".*", "write": ".*", "read": "^mine$"})

    assert 404 == api.request("GET", "leveret/queues/%2F/none/messages").status
    Client(api.node, port=50009).declare("own", exclusive=True)
    refused = api.request("GET", "leveret/queues/%2F/own/messages")
    assert (400, True) == (refused.status, "exclusive" in refused.body["reason"])
    answer = Api(api.node, "ann:p").request("GET", PATH)
    assert (401, True) == (answer.status, "read access to queue 'q'" in answer.body["reason"])


def test_headers_that_are_not_text_are_shown(api):
    """A header that is not UTF-8 is shown as RabbitMQ's sentence, beside others of all types, by peek and explain."""
    headers: Table = {
        "x-\udcff": ("longstr", "\udcfe"),
        "inner": (
            "array",
            [("table", {"text": ("longstr", "\udcff")}), ("binary", b"\xff"), ("decimal", (1, 15))],
        ),
        "when": ("timestamp", 2**64 - 1),
    }
    Client(api.node).publish("q", b"hi", headers=headers)
    expected = {
        "Not UTF-8, base64 is: eC3/": "Not UTF-8, base64 is: /g==",
        "inner": [{"text": "Not UTF-8, base64 is: /w=="}, "/w==", "1.5"],
        "when": 2**64 - 1,
    }

    for path in (PATH, "leveret/explain/message/%2F/q/1"):
        answer = api.request("GET", path)
        found = answer.body["messages"][0] if "messages" in answer.body else answer.body["message"]
        assert (200, expected) == (answer.status, found["properties"]["headers"])


@pytest.mark.parametrize("query", ["count=--5", "truncate=--1", "count=-", "count=1e3"])
def test_a_number_that_is_none_is_refused(api, query):
    """A parameter that is no number is refused with its text."""
    answer = api.request("GET", f"{PATH}?{query}")
    assert (400, ["not_integer", query.partition("=")[2]]) == (answer.status, answer.body["reason"])

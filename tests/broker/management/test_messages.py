"""Publishing to an exchange and fetching from a queue in the API."""

import base64
from pathlib import Path
from typing import Any

import pytest
from api import Api
from fakes import Client, DiskNode, Node

PLAIN: dict[str, Any] = {"properties": {}, "payload": "hi", "payload_encoding": "string"}


@pytest.fixture
def api() -> Api:
    """The API of a new broker with a queue, used by its administrator."""
    api = Api(Node())
    api.put("queues/%2F/q", {"durable": True})
    return api


def publish(api: Api, exchange: str = "amq.default", **body: Any) -> Any:
    """Publish a message to `q`."""
    return api.post(f"exchanges/%2F/{exchange}/publish", {"routing_key": "q", **PLAIN, **body})


def get(api: Api, ack_mode: str = "ack_requeue_true", **body: Any) -> Any:
    """Fetch messages from `q`."""
    return api.post("queues/%2F/q/get", {"count": 10, "ackmode": ack_mode, "encoding": "auto", **body})


def test_a_message_comes_back_as_it_was_published(api):
    """Properties, headers and payload, as text or base64, are those of the publish; unknown properties are ignored."""
    properties = {
        "delivery_mode": 2,
        "priority": 3,
        "timestamp": 5,
        "message_id": "m",
        "headers": {"a": 1, "l": [1], "n": {"x": True}},
    }
    assert {"routed": True} == publish(api).body
    assert {"routed": True} == publish(
        api, properties={**properties, "odd": 1}, payload="/wBo", payload_encoding="base64"
    ).body

    assert [
        {
            "payload_bytes": 2,
            "redelivered": False,
            "exchange": "",
            "routing_key": "q",
            "message_count": 1,
            "properties": [],
            "payload": "hi",
            "payload_encoding": "string",
        },
        {
            "payload_bytes": 3,
            "redelivered": False,
            "exchange": "",
            "routing_key": "q",
            "message_count": 0,
            "properties": properties,
            "payload": "/wBo",
            "payload_encoding": "base64",
        },
    ] == get(api).body


@pytest.mark.parametrize(
    ("ack_mode", "left"),
    [
        ("ack_requeue_true", 2),
        ("reject_requeue_true", 2),
        ("ack_requeue_false", 1),
        ("reject_requeue_false", 1),
    ],
)
def test_ack_modes_decide_whether_a_message_remains(api, ack_mode, left):
    """Two of them requeue, and mark the message as redelivered."""
    publish(api)
    publish(api)

    assert 1 == len(get(api, ack_mode, count=1).body)
    shown = api.get("queues/%2F/q")
    assert (left, 0) == (shown["messages_ready"], shown["messages_unacknowledged"])
    assert [left == 2, False][:left] == [each["redelivered"] for each in get(api).body]


def test_a_payload_is_cut_off(api):
    """`truncate` limits what is returned, not `payload_bytes`; numbers may be texts; base64 can be asked for."""
    publish(api)

    found = get(api, encoding="base64", truncate="1", count="5").body
    assert [(2, "aA==", "base64")] == [
        (each["payload_bytes"], each["payload"], each["payload_encoding"]) for each in found
    ]
    assert [] == get(api, count=0).body


def test_base64_may_have_line_breaks(api):
    """The lines that the command `base64` prints are one payload."""
    content = bytes(range(256))
    answer = publish(api, payload=base64.encodebytes(content).decode(), payload_encoding="base64")

    assert (200, {"routed": True}) == (answer.status, answer.body)
    assert [content] == [base64.b64decode(each["payload"]) for each in get(api, encoding="base64").body]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"payload": {"a": 1}}, "payload_not_string"),
        ({"payload": "h!", "payload_encoding": "base64"}, ["not_base64", "h!"]),
        ({"payload_encoding": "hex"}, ["unsupported_encoding", "hex"]),
        ({"properties": {"priority": "x"}}, ["not_int", "priority"]),
        ({"properties": {"headers": {"h": [{"k": None}]}}}, "null_not_allowed"),
        ({"properties": {"message_id": 7}}, ["not_string", "message_id"]),
        (
            {"properties": {"user_id": "other"}},
            "406 PRECONDITION_FAILED - user_id property set to 'other' but authenticated user was 'guest'",
        ),
    ],
)
def test_invalid_publishes_are_refused(api, body, reason):
    """The reasons are RabbitMQ's."""
    answer = publish(api, **body)

    assert (400, reason) == (answer.status, answer.body["reason"])


def test_publishing_reports_what_became_of_the_message(api):
    """Unroutable is no error; a missing or internal exchange and a full queue are."""
    assert {"routed": False} == publish(api, routing_key="nobody").body
    missing = publish(api, "nope")
    assert (400, "404 NOT_FOUND - no exchange 'nope' in vhost '/'") == (
        missing.status,
        missing.body["reason"],
    )
    assert "403 ACCESS_REFUSED" in publish(api, "amq.rabbitmq.trace").body["reason"]
    assert 401 == api.post("exchanges/nope/x/publish", {"routing_key": "q", **PLAIN}).status
    api.put("queues/%2F/full", {"arguments": {"x-max-length": 1, "x-overflow": "reject-publish"}})
    assert {"routed": True} == publish(api, routing_key="full").body
    refused = publish(api, routing_key="full")
    assert (400, "rejected Unable to publish message. Check queue limits.") == (
        refused.status,
        refused.body["reason"],
    )


def test_fetching_is_refused_as_to_a_client(api):
    """Missing queues, other connections' exclusive queues, users without the permission, and invalid parameters."""
    Client(api.node).declare("mine", exclusive=True)
    body = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}

    missing = api.post("queues/%2F/nope/get", body)
    assert (404, "NOT_FOUND - no queue 'nope' in vhost '/'") == (missing.status, missing.body["reason"])
    assert api.post("queues/%2F/mine/get", body).body["reason"].startswith("405 RESOURCE_LOCKED - ")
    assert 401 == api.post("queues/nope/q/get", body).status
    assert 400 == get(api, "nonsense").status
    assert ["not_integer", "x"] == get(api, count="x").body["reason"]
    assert "Unsupported encoding. Please use auto or base64." == get(api, encoding="x").body["reason"]
    api.put("users/w", {"password": "w", "tags": "management"})
    api.node.users.set_permissions("w", "/", "", ".*", "")
    writer = Api(api.node, "w:w")
    assert "403 ACCESS_REFUSED" in writer.post("queues/%2F/q/get", body).body["reason"]
    assert {"routed": True} == publish(writer).body


def test_what_was_fetched_counts_in_the_totals(api):
    """The channels of requests count like those of clients."""
    publish(api)
    get(api, "ack_requeue_false")
    totals = api.node.context.totals.channels

    assert (1, 1, 1) == (totals.published, totals.confirmed, totals.got_auto)


def test_messages_on_disk_are_fetched(tmp_path: Path):
    """A request waits for the read of messages of an earlier run."""
    node = DiskNode(tmp_path)
    client = Client(node)
    client.declare("q", durable=True)
    node.commit()
    for number in range(3):
        client.publish("q", b"%d" % number, delivery_mode=2)
    node.commit()
    api = Api(node.killed())

    assert ["0", "1", "2"] == [each["payload"] for each in get(api, "ack_requeue_false").body]
    assert [] == get(api).body

"""Messages in the API: published, fetched, looked at in their queue, and followed as they are published."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, DiskNode, Node, configure
from services.api import OPERATOR, Api

from leveret.broker.administration import tailing as module
from leveret.broker.amqp.tables import Table
from leveret.broker.http.call import Request, Stream
from leveret.broker.http.dispatch import admit, answer
from leveret.broker.management.routes import ROUTER
from leveret.broker.process.shares import Shares

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


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("exchanges/%2F/nope/publish", {"routing_key": "q", **PLAIN}, "exchange_not_found"),
        ("exchanges/nope/x/publish", {"routing_key": "q", **PLAIN}, "vhost_not_found"),
        ("queues/%2F/nope/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, "queue_not_found"),
        ("queues/nope/q/get", {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}, "vhost_not_found"),
    ],
)  # fmt: skip
def test_what_is_missing_is_404_in_4_3(api, path, body, reason):
    """With the profile 4.3 a publish to a missing exchange and a fetch from a missing queue have short reasons."""
    configure(api.node, "compatibility", profile="4.3")
    answer = api.post(path, body)

    assert (404, {"error": "not_found", "reason": reason}) == (answer.status, answer.body)


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


PATH = "leveret/queues/%2F/q/messages"


def publish_octets(api: Api, payload: bytes = b"hi", **headers: object) -> None:
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
    publish_octets(api, n=1)
    publish_octets(api, b"\xff\x00")

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
        publish_octets(api, b"%04d" % number, n=number)

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
    publish_octets(api)

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


class Reader:
    def __init__(self, tailed: Api, exchange: str = "amq.topic", **query: str) -> None:
        headers = {} if tailed.login is None else {"authorization": "Basic " + encoded(tailed.login)}
        request = Request("GET", f"/api/leveret/exchanges/%2F/{exchange}/tail", query, headers, tailed.peer)
        admitted = admit(tailed.node, ROUTER, request)
        self.status = getattr(admitted, "status", 0)
        self.stream: Stream | None = None
        if self.status:
            return
        steps = answer(tailed.node, admitted, b"")  # type: ignore[arg-type]
        with pytest.raises(StopIteration) as done:
            next(steps)
        response = done.value.value
        self.status, self.stream = response.status, response.stream
        self.reason = b"".join(piece for piece in response.pieces if piece)

    def read(self) -> list[dict[str, Any]]:
        """Return the lines up to the moment, without the empty ones."""
        assert self.stream is not None
        octets = bytearray()
        for piece in self.stream.pieces:
            if piece == b"":
                break
            octets += piece or b""
        return [json.loads(line) for line in octets.splitlines() if line]


def encoded(login: str) -> str:
    return base64.b64encode(login.encode()).decode()


@pytest.fixture
def tailed() -> Api:
    """The API of a new broker."""
    return Api(Node())


def test_a_message_is_shown_with_what_is_known(tailed):
    """Its time, address, queues, publisher, properties and body; nothing is bound, and a client notices nothing."""
    client = Client(tailed.node)
    client.declare("q")
    reader = Reader(tailed, "amq.default")
    assert [] == reader.read()
    client.publish("q", b"one", headers={"n": ("signedint", 1)}, content_type="text/plain")
    (shown,) = reader.read()

    assert {
        "time": tailed.node.wall_clock(),
        "exchange": "",
        "routing_key": "q",
        "routed_queues": ["q"],
        "user": "guest",
        "connection": client.connection.name,
        "channel": 1,
        "due": None,
        "properties": {"content_type": "text/plain", "headers": {"n": 1}},
        "payload_bytes": 3,
        "payload": "one",
        "payload_encoding": "string",
        "truncated": False,
    } == shown
    assert [] == reader.read()
    assert [{"source": "", "destination": "q"}] == [
        {key: each[key] for key in ("source", "destination")} for each in tailed.get("bindings")
    ]


def test_held_messages_are_chosen_by_their_time(tailed):
    """A condition knows until when a queue holds a message, and the reader is told."""
    client = Client(tailed.node)
    client.declare("later", arguments={"x-allow-hold": ("bool", True)})
    reader = Reader(tailed, "amq.default", where="due > 1h")
    assert [] == reader.read()
    for hours in (0, 1, 2):
        client.publish("later", b"x", headers={"x-delay": ("long", 3_600_000 * hours)})
    assert [tailed.node.wall_clock() + 7_200_000] == [each["due"] for each in reader.read()]


def test_some_messages_are_chosen(tailed):
    """By pattern and condition, up to a count, after which the stream ends; bodies are cut."""
    client = Client(tailed.node)
    reader = Reader(tailed, pattern="a.*", where="headers.n > 1", count="2", truncate="2", encoding="base64")
    assert [] == reader.read()
    for number in range(6):
        client.publish(
            "a.b" if number != 3 else "b", b"body", exchange="amq.topic", headers={"n": ("long", number)}
        )
    shown = reader.read()

    assert [(2, "Ym8=", True), (4, "Ym8=", True)] == [
        (each["properties"]["headers"]["n"], each["payload"], each["truncated"]) for each in shown
    ]
    assert [] == list(reader.stream.pieces)  # type: ignore[union-attr]


def test_a_tail_ends_with_the_rights_of_its_user(tailed):
    """A user who is deleted or no longer administrator, and a virtual host that is deleted, end it with the reason."""
    for name in ("ann", "bob"):
        tailed.put(f"users/{name}", {"password": "x", "tags": "administrator"})
    readers = [Reader(Api(tailed.node, f"{name}:x")) for name in ("ann", "bob")]
    assert [[], []] == [reader.read() for reader in readers]
    tailed.put("users/ann", {"password": "x", "tags": "management"})
    tailed.delete("users/bob")
    assert [[{"end": "Not administrator user"}]] * 2 == [reader.read() for reader in readers]
    operators = Reader(Api(tailed.node, OPERATOR))
    assert [] == operators.read()
    Api(tailed.node, OPERATOR).delete("vhosts/%2F")
    assert [{"end": "virtual host '/' was deleted"}] == operators.read()


def test_tails_are_limited_and_forgotten(tailed, monkeypatch):
    """Only so many are open at once; one that is closed, twice even, makes room and costs publishers nothing more."""
    tailed.node.administration.tailing = module.Tailing(tailed.node)
    tailed.node.administration.tailing._places = Shares(2, 2)
    tapping = tailed.node.vhosts["/"].taps
    readers = [Reader(tailed) for _ in range(2)]
    assert [[], []] == [reader.read() for reader in readers]
    third = Reader(tailed)
    assert (400, b"2 exchanges are tailed already") == (
        third.status,
        json.loads(third.reason)["reason"].encode(),
    )
    for _ in range(2):
        readers[0].stream.close()  # type: ignore[union-attr]
    assert 1 == len(tapping.tails)
    last = Reader(tailed)
    assert (200, []) == (last.status, last.read())
    assert 2 == len(tapping.tails)


@pytest.mark.parametrize(
    ("exchange", "query", "status"),
    [
        ("none", {}, 404),
        ("amq.topic", {"where": "headers."}, 400),
        ("amq.topic", {"count": "0"}, 400),
        ("amq.topic", {"count": "x"}, 400),
        ("amq.topic", {"truncate": "-1"}, 400),
        ("amq.topic", {"encoding": "utf"}, 400),
        ("amq.topic", {"pattern": "a" * 256}, 400),
    ],
)
def test_wrong_requests_are_refused(tailed, exchange, query, status):
    """With a status, and without a tail."""
    assert status == Reader(tailed, exchange, **query).status
    assert () == tailed.node.vhosts["/"].taps.tails

"""The stream of published messages, as its reader gets it; `http/test_answer_writer` has the sockets."""

import json
from typing import Any

import pytest
from api import OPERATOR, Api
from fakes import Client, Node

from leveret.broker.administration import tailing as module
from leveret.broker.http.call import Request, Stream
from leveret.broker.http.dispatch import admit, answer
from leveret.broker.management.routes import ROUTER
from leveret.broker.process.shares import Shares


class Reader:
    """A reader of a tail."""

    def __init__(self, api: Api, exchange: str = "amq.topic", **query: str) -> None:
        headers = {} if api.login is None else {"authorization": "Basic " + encoded(api.login)}
        request = Request("GET", f"/api/leveret/exchanges/%2F/{exchange}/tail", query, headers, api.peer)
        admitted = admit(api.node, ROUTER, request)
        self.status = getattr(admitted, "status", 0)
        self.stream: Stream | None = None
        if self.status:
            return
        steps = answer(api.node, admitted, b"")  # type: ignore[arg-type]
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
    """Return a login as a header has it."""
    import base64

    return base64.b64encode(login.encode()).decode()


@pytest.fixture
def api() -> Api:
    """The API of a new broker."""
    return Api(Node())


def test_a_message_is_shown_with_what_is_known(api):
    """Its time, address, queues, publisher, properties and body; nothing is bound, and a client notices nothing."""
    client = Client(api.node)
    client.declare("q")
    reader = Reader(api, "amq.default")
    assert [] == reader.read()
    client.publish("q", b"one", headers={"n": ("signedint", 1)}, content_type="text/plain")
    (shown,) = reader.read()

    assert {
        "time": api.node.wall_clock(),
        "exchange": "",
        "routing_key": "q",
        "routed_queues": ["q"],
        "user": "guest",
        "connection": client.connection.name,
        "channel": 1,
        "properties": {"content_type": "text/plain", "headers": {"n": 1}},
        "payload_bytes": 3,
        "payload": "one",
        "payload_encoding": "string",
        "truncated": False,
    } == shown
    assert [] == reader.read()
    assert [{"source": "", "destination": "q"}] == [
        {key: each[key] for key in ("source", "destination")} for each in api.get("bindings")
    ]


def test_some_messages_are_chosen(api):
    """By pattern and condition, up to a count, after which the stream ends; bodies are cut."""
    client = Client(api.node)
    reader = Reader(api, pattern="a.*", where="headers.n > 1", count="2", truncate="2", encoding="base64")
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


def test_a_tail_ends_with_the_rights_of_its_user(api):
    """A user who is deleted or no longer administrator, and a virtual host that is deleted, end it with the reason."""
    for name in ("ann", "bob"):
        api.put(f"users/{name}", {"password": "x", "tags": "administrator"})
    readers = [Reader(Api(api.node, f"{name}:x")) for name in ("ann", "bob")]
    assert [[], []] == [reader.read() for reader in readers]
    api.put("users/ann", {"password": "x", "tags": "management"})
    api.delete("users/bob")
    assert [[{"end": "Not administrator user"}]] * 2 == [reader.read() for reader in readers]
    operators = Reader(Api(api.node, OPERATOR))
    assert [] == operators.read()
    Api(api.node, OPERATOR).delete("vhosts/%2F")
    assert [{"end": "virtual host '/' was deleted"}] == operators.read()


def test_tails_are_limited_and_forgotten(api, monkeypatch):
    """Only so many are open at once; one that is closed, twice even, makes room and costs publishers nothing more."""
    api.node.administration.tailing = module.Tailing(api.node)
    api.node.administration.tailing._places = Shares(2, 2)
    tapping = api.node.vhosts["/"].tapping
    readers = [Reader(api) for _ in range(2)]
    assert [[], []] == [reader.read() for reader in readers]
    third = Reader(api)
    assert (400, b"2 exchanges are tailed already") == (
        third.status,
        json.loads(third.reason)["reason"].encode(),
    )
    for _ in range(2):
        readers[0].stream.close()  # type: ignore[union-attr]
    assert 1 == len(tapping.tails)
    last = Reader(api)
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
def test_wrong_requests_are_refused(api, exchange, query, status):
    """With a status, and without a tail."""
    assert status == Reader(api, exchange, **query).status
    assert () == api.node.vhosts["/"].tapping.tails


@pytest.mark.parametrize("tag", ["management", "policymaker", "monitoring"])
def test_only_administrators_may(api, tag):
    """As with RabbitMQ's tracing: it shows the messages of everybody."""
    api.put("users/ann", {"password": "x", "tags": tag})
    api.put("permissions/%2F/ann", {"configure": ".*", "write": ".*", "read": ".*"})
    assert 401 == Reader(Api(api.node, "ann:x")).status

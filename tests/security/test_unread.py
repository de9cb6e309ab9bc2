"""SEC-45: answers with bodies of messages are small in memory, made in pieces, and count until they are read."""

import base64
import contextlib
import json
import socket
import tracemalloc

import pytest
from doubles.fakes import Client, Node
from hypothesis import given, settings, strategies as st
from processes.waiting import until
from services.api import Api
from services.served_api import as_user, serving

from leveret.broker.http import listing
from leveret.broker.http.listing import LargeText, encoded_pieces, text_of

LARGE = 1024 * 1024
BODIES = {
    "text": 'aä€😀\n"\\'.encode() * (LARGE // 14),
    "octets": bytes(range(256)) * (LARGE // 256) + b"x",
    "truncated text": "ä".encode() * (LARGE // 2) + b"\xc3",
}
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}


def drained(steps):
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


@pytest.mark.parametrize("kind", BODIES)
@pytest.mark.parametrize("path", ["get", "peek"])
def test_sec_45_large_bodies_are_whole(kind, path):
    """A large body is the same as a small one would be: text if it is UTF-8, otherwise base64."""
    node = Node()
    client = Client(node)
    client.declare("q")
    client.publish("q", BODIES[kind])
    if path == "get":
        (row,) = Api(node).post("queues/%2F/q/get", GET).body
    else:
        (row,) = Api(node).get(f"leveret/queues/%2F/q/messages?truncate={2 * LARGE}")["messages"]

    name = "string" if kind == "text" else "base64"
    assert (name, len(BODIES[kind])) == (row["payload_encoding"], row["payload_bytes"])
    body = row["payload"].encode() if kind == "text" else base64.b64decode(row["payload"], validate=True)
    assert BODIES[kind] == body


@given(octets=st.one_of(st.binary(max_size=64), st.text(max_size=32).map(str.encode)), data=st.data())
@settings(deadline=None)
def test_sec_45_pieces_are_the_text(octets, data):
    """Whatever the parts of a body are, and whatever else is in the answer, the pieces together are its JSON."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(octets)), max_size=4)))
    parts = [octets[a:b] for a, b in zip([0, *cuts], [*cuts, len(octets)], strict=True)]
    is_base64 = data.draw(st.booleans())
    step, listing.TEXT_STEP = listing.TEXT_STEP, 5
    try:
        text, name = drained(text_of(lambda: parts, len(octets), is_base64=is_base64))
        found = json.loads(b"".join(encoded_pieces({"a": [text, "b"], "surrogate": "x"})))
    finally:
        listing.TEXT_STEP = step
    try:
        expected = None if is_base64 else octets.decode()
    except UnicodeDecodeError:
        expected = None

    assert len(octets) <= 5 or isinstance(text, LargeText)
    assert ("string" if expected is not None else "base64") == name
    assert {
        "a": [base64.b64encode(octets).decode() if expected is None else expected, "b"],
        "surrogate": "x",
    } == found


def test_sec_45_a_body_is_not_copied():
    """The pieces of a large body take little memory beside the body, of which there is no copy."""
    body = bytes(16 * LARGE)
    tracemalloc.start()
    try:
        text, _ = drained(text_of(lambda: (memoryview(body),), len(body), is_base64=True))
        count = sum(map(len, encoded_pieces([text])))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert count > 20 * LARGE
    assert peak < LARGE


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "queues/%2F/q/get", GET),
        ("GET", "leveret/queues/%2F/q/messages", None),
    ],
)
def test_sec_45_the_memory_alarm_refuses_bodies(method, path, body):
    """While memory is short, messages are shown without bodies only; in the disk alarm as always."""
    node = Node()
    client = Client(node)
    client.declare("q")
    client.publish("q", b"body")
    api = Api(node)
    for alarm, status in (("low on memory", 503), ("low on memory & disk", 503), ("low on disk", 200)):
        node.alarm = alarm
        assert status == api.request(method, path, body).status
    node.alarm = "low on memory"
    refused = api.request(method, path, body)
    assert "truncate=0" in refused.body["reason"]
    if body is None:
        assert 200 == api.request(method, f"{path}?truncate=0").status
    else:
        assert 200 == api.request(method, path, {**body, "truncate": 0}).status


@contextlib.contextmanager
def unread(address, count):
    """Have so many requests for a message whose answers are not read."""
    with contextlib.ExitStack() as opened:
        content = json.dumps(GET).encode()
        for _ in range(count):
            sock = opened.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(address)
            sock.sendall(
                b"POST /api/queues/%2F/q/get HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: "
                + as_user("ann")["authorization"].encode()
                + b"\r\nContent-Length: %d\r\n\r\n" % len(content)
                + content
            )
        yield


async def test_sec_45_unread_answers_are_few_and_count():
    """Of one user one answer with bodies is in memory until it is read; all count towards `limits.unsent_bytes`."""
    async with serving() as (node, server, client):
        publisher = Client(node, user="guest")
        publisher.declare("q")
        publisher.publish("q", bytes(16 * LARGE))
        with unread(server.address, 8):
            await until(lambda: server._answers.held)
            for _ in range(1000):
                await until(lambda: True)
            assert [True] == [16 * LARGE <= octets < 17 * LARGE for octets in server._answers.held.values()]
            headers = as_user("root")
            url = f"http://127.0.0.1:{server.address[1]}/api/queues/%2F/q/get"
            async with client.post(url, headers=headers, json={**GET, "truncate": 10}) as answer:
                assert 200 == answer.status
            node.gate.unsent_limit = 16 * LARGE
            node.gate.limit_unsent()
            (before,) = server._answers.held
            await until(lambda: before not in server._answers.held)

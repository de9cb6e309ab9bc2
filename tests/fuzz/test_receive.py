"""`Connection.receive` without a socket answers or closes and never raises, for any octets, however they are cut."""

import logging
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from conformance.codec import BODY, METHOD, frame
from doubles.fakes import Client, Node, frames_of, publish_frames
from fuzz.grammar import LOOSE_VHOST, PASSWORD, STRICT_VHOST, USER, Script
from fuzz.replies import Replies
from fuzz.sessions import Case
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.commands import Basic, make
from leveret.broker.config.config import UserConfig

ALL = (".*", ".*", ".*")
USERS = (UserConfig(USER, PASSWORD, (), {STRICT_VHOST: ALL, LOOSE_VHOST: ALL}),)
GENERATED = re.compile(r"amq\.(gen-|ctag-|rabbitmq\.reply-to\.)[\w.=+/-]+")


def _client() -> Client:
    return Client(Node(users=USERS, vhosts=("/", STRICT_VHOST, LOOSE_VHOST)), connect=False)


def _sent(script: Script, chunks: list[bytes]) -> tuple[list[str], dict[int, int]]:
    """Return a session's answers, confirms apart: of those, how far each channel's publishes are confirmed."""
    client = _client()
    for chunk in chunks:
        client.receive(chunk)
    replies = Replies()
    replies.feed(bytes(client.driver.octets))
    lines = [line for line in client.sent() if line.split()[1] != "basic.ack"]
    return [GENERATED.sub("amq.generated", line) for line in lines], replies.confirmed


@contextmanager
def _no_internal_error() -> Iterator[None]:
    """Fail if an exception is logged."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                records.append(record)

    log, handler = logging.getLogger("leveret.connection"), Keep()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
    assert [] == [(record.getMessage(), record.exc_info) for record in records]


def _assert_nothing_left(client: Client) -> None:
    """Assert that a connection holds nothing once its socket is gone."""
    client.connection.lost()
    node = client.node
    assert set() == node.clients.connections
    assert 0 == node.clients.channel_count
    for vhost in node.vhosts.values():
        assert 0 == vhost.connection_count
        assert {} == vhost.reply_queues
        assert [] == [
            queue.name
            for queue in vhost.queues.values()
            if queue.exclusive_owner is not None or queue.consumers
        ]


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.data())
def test_a_valid_stream_is_answered_alike_however_it_is_cut(seed, data):
    """A whole session in one read and in pieces of any size leads to the same answers."""
    script = Script(Random(seed), "s1", loose=False)
    stream = b"".join(script.frames)
    cuts = sorted(data.draw(st.lists(st.integers(1, len(stream) - 1), max_size=30)))
    pieces = [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert _sent(script, [stream]) == _sent(script, pieces)


@settings(max_examples=60)
@given(st.integers(0, 2**32))
def test_a_valid_stream_is_answered_in_full(seed):
    """Every method gets its answer, and every message of a channel in confirm mode its confirm."""
    script = Script(Random(seed), "s1", loose=False)
    lines, confirms = _sent(script, script.frames)
    for number, expected in script.expected.items():
        assert expected == [line.split()[1] for line in lines if line.split()[0] == str(number)]
    assert {number: count for number, count in script.published.items() if count} == confirms


@settings(max_examples=300)
@given(st.lists(st.binary(max_size=300), max_size=5))
def test_arbitrary_octets_never_raise(reads):
    """Arbitrary octets are answered with silence or a close, from the first octet."""
    client = _client()
    with _no_internal_error():
        for octets in reads:
            client.receive(octets)
    _assert_nothing_left(client)


@settings(max_examples=300)
@given(st.integers(0, 2**32), st.lists(st.binary(max_size=300), max_size=5))
def test_arbitrary_octets_after_channel_open_never_raise(seed, reads):
    """An open connection takes any octets, too, also between the frames of a message."""
    script = Script(Random(seed), "m1", loose=True)
    client = _client()
    with _no_internal_error():
        client.receive(b"".join(script.frames[: script.first_channel_frame + 1 + seed % 10]))
        for octets in reads:
            client.receive(octets)
    _assert_nothing_left(client)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_mutated_sessions_never_raise(number):
    """The fuzzer's sessions are taken without an internal error, for all numbers."""
    client = _client()
    with _no_internal_error():
        for chunk in Case(0, number).chunks:
            client.receive(chunk)
    Replies().feed(bytes(client.driver.octets))
    _assert_nothing_left(client)


def test_a_malformed_login_leaves_no_password_in_the_log(caplog):
    """The log names the fault of a start-ok that cannot be read, and shows nothing of it."""
    script = Script(Random(1), "s1", loose=False)
    login = script.frames[1]
    client = _client()
    client.receive(script.frames[0] + login[:3] + struct.pack(">I", len(login) - 7) + login[7:-1] + b"\0\xce")
    assert "MalformedMethod before connection.open" in caplog.text
    assert PASSWORD not in caplog.text
    assert ",".join(str(octet) for octet in PASSWORD.encode()) not in caplog.text


def test_a_large_malformed_method_costs_one_short_line(caplog):
    """The text of a close is short, so no more of a payload is turned into text."""
    script = Script(Random(1), "s1", loose=False)
    client = _client()
    client.receive(b"".join(script.frames[: script.first_channel_frame + 1]))
    client.receive(frame(METHOD, 1, struct.pack(">HH", 50, 10) + bytes(4000)))
    assert "cannot decode <<0,0,0" in caplog.text
    assert len(caplog.text) < 2000


def test_empty_body_frames_are_neither_kept_nor_passed_on():
    """Empty body frames cost no memory, however many come, and a consumer gets the body without them."""
    client = Client()
    client.declare("q")
    octets = publish_frames("q", b"x")
    client.receive(octets[:-9])
    for _ in range(100):
        client.receive(frame(BODY, 1, b""))
    assert 1 == len(client.connection.channels[1].parts)
    client.receive(octets[-9:])
    client.take()
    client.send(make(Basic.Get, 0, "q", True))
    assert octets[-9:] == bytes(client.driver.octets)[-9:]
    assert [1, 2, 3] == [kind for kind, _, _ in frames_of(bytes(client.driver.octets))]

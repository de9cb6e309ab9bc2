"""SEC-01 to SEC-16, SEC-30 and SEC-31: octets that are no honest client's (docs/security.md)."""

import contextlib
import re
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from conformance.codec import (
    BODY,
    HEADER,
    METHOD,
    PROTOCOL_HEADER,
    encode_header,
    encode_method,
    frame,
)
from conformance.wire import Client, ClosedError, QuietError
from doubles.fakes import Client as PureClient, Node
from processes.running import Running, serving

from leveret.broker.amqp.commands import Queue, make
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.channel.settings import Compatibility
from leveret.broker.vhost.publish_route import inspect
from leveret.exchanges.router import Router

SOON = 10.0
"""Seconds in which what is due within three happens on a busy machine."""
START_OK = {"mechanism": "PLAIN", "response": b"\0guest\0guest", "locale": "en_US"}


def silence(client: Client) -> bool:
    """Return whether the broker ends the connection without a word."""
    return b"" == client.read_rest(SOON)


def closed(act: Callable[[], object]) -> tuple[str, int]:
    """Return what an act closes, the channel or the connection, and the code."""
    with pytest.raises(ClosedError) as caught:
        act()
    assert caught.value.close is not None, "closed without a method"
    return caught.value.level, caught.value.close.fields["reply_code"]


def fails(client: Client) -> tuple[str, int]:
    """Return how the broker closes a client that has sent an invalid method."""
    return closed(lambda: client.receive(0, "connection.open-ok"))


# -- before login -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8193, 2**32 - 1])
def test_sec_01_frames_are_small_before_login(client, size):
    """A frame that announces more than 8 KiB before connection.open ends the connection, and is not waited for."""
    client.begin()
    client.raw(struct.pack(">BHI", METHOD, 0, size) + bytes(100))

    assert silence(client)


@pytest.mark.parametrize(
    ("channel", "method"),
    [
        (1, encode_method("basic.publish", exchange="", routing_key="q")),
        (0, encode_method("connection.open", virtual_host="/")),
        (0, encode_method("connection.tune-ok", channel_max=1, frame_max=4096, heartbeat=0)),
        (0, encode_method("channel.open")),
        (0, encode_method("connection.close", reply_code=200)),
    ],
    ids=["publish", "open", "tune-ok", "channel.open", "close"],
)
def test_sec_02_only_the_expected_method_is_taken(client, channel, method):
    """Before login any method but the next of the handshake ends the connection without a word."""
    client.begin()
    client.raw(frame(METHOD, channel, method))

    assert silence(client)


@pytest.mark.parametrize("said", [b"", PROTOCOL_HEADER[:3], PROTOCOL_HEADER])
def test_sec_03_a_handshake_ends_in_time(client, said):
    """A peer that does not get to connection.open within the handshake timeout is cut."""
    client.raw(said)
    rest = client.read_rest(SOON)

    assert (b"" != rest) is (said == PROTOCOL_HEADER)


def test_sec_04_a_stranger_costs_little(broker):
    """A socket that has not logged in costs at most 64 KiB of memory, with any octets it sends."""
    count = 200
    before = broker.running.resident_memory()
    strangers = []
    for _ in range(count):
        stranger = broker.client()
        stranger.begin()
        stranger.raw(struct.pack(">BHI", METHOD, 0, 8192) + bytes(8000))
        strangers.append(stranger)
    cost = broker.running.resident_memory() - before
    for stranger in strangers:
        stranger.close_socket()

    assert cost / count <= 64 * 1024


def test_sec_04_all_octets_before_login_are_few(client):
    """Many small frames before login end the connection at 64 KiB in all, without a word."""
    client.begin()
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            client.raw(frame(8, 0, b"") * 8192)

    assert silence(client)


def test_sec_30_one_octet_after_the_other_is_no_way_round(client):
    """Octets that arrive one by one do not put off the end of the handshake."""
    began = time.monotonic()

    def drip() -> None:
        for octet in (
            PROTOCOL_HEADER + frame(METHOD, 0, encode_method("connection.start-ok", **START_OK)) * 50
        ):
            client.raw(bytes([octet]))
            with contextlib.suppress(QuietError):
                client.read_octets(600, time.monotonic() + 0.05)
            assert time.monotonic() - began < SOON

    with pytest.raises((ClosedError, ConnectionError)):
        drip()


# -- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "code"),
    [(2**63, 501), (513 << 20, 501), ((1 << 20) + 1, 406)],
    ids=["2^63", "more than any broker takes", "more than the configured size"],
)
def test_sec_06_a_body_that_is_too_large_is_refused_at_its_header(client, size, code):
    """A content header that announces too much is refused before any octet of the body is kept."""
    client.login().channel()
    client.raw(frame(METHOD, 1, encode_method("basic.publish", exchange="", routing_key="q")))
    client.raw(frame(HEADER, 1, encode_header(size)))

    level = "channel" if code == 406 else "connection"
    assert (level, code) == closed(lambda: client.receive(1, "basic.return"))


def test_sec_06_a_body_has_the_size_it_announced(client):
    """One octet more than announced is a framing error."""
    client.login().channel()
    client.raw(frame(METHOD, 1, encode_method("basic.publish", exchange="", routing_key="q")))
    client.raw(frame(HEADER, 1, encode_header(3)) + frame(BODY, 1, b"four"))

    assert ("connection", 501) == fails(client)


def test_sec_06_what_is_not_complete_is_charged():
    """The octets of unfinished bodies count for their connection, which is closed with 506 while memory is short."""
    client = PureClient()
    client.declare("q")
    publish = frame(METHOD, 1, encode_method("basic.publish", exchange="", routing_key="q"))
    client.receive(publish + frame(HEADER, 1, encode_header(3 << 20)))
    for _ in range(20):
        client.receive(frame(BODY, 1, bytes(100_000)))
    assert 2_000_000 <= client.connection.unfinished < 2_100_000
    client.node.free_memory(1_000_000)
    client.node.finish_turn()

    assert "0 connection.close reply_code=506" in client.sent()[-1]


@pytest.mark.parametrize(("over", "is_taken"), [(0, True), (8, True), (9, False), (100_000, False)])
def test_sec_07_frames_keep_to_what_was_negotiated(client, over, is_taken):
    """A frame larger than frame_max, with a grace of eight octets, ends the connection with 501."""
    client.login(frame_max=4096).channel()
    client.raw(frame(METHOD, 1, encode_method("basic.publish", exchange="", routing_key="q")))
    size = 4096 - 8 + over
    client.raw(frame(HEADER, 1, encode_header(size)) + frame(BODY, 1, bytes(size)))

    if is_taken:
        assert "channel.close-ok" == client.call(1, "channel.close", reply_code=200).name
    else:
        assert ("connection", 501) == fails(client)


@pytest.mark.parametrize(
    "tune",
    [
        {"frame_max": 1},
        {"frame_max": 4095},
        {"frame_max": 131073},
        {"frame_max": 0},
        {"channel_max": 0},
        {"channel_max": 65535},
    ],
    ids=str,
)
def test_sec_08_limits_are_not_negotiated_away(client, tune):
    """A client that asks for more than is offered, for no limit or for frames too small is not let in."""
    client.begin()
    client.start_ok()
    client.tune_ok(**tune)
    client.send(0, "connection.open", virtual_host="/")

    assert silence(client)


@pytest.mark.parametrize("size", [255, 2**32 - 1, 2**31])
def test_sec_09_lengths_end_with_the_buffer(client, size):
    """A text or table that is said to be longer than its frame is an error, and reads nothing behind it."""
    client.login().channel()
    for payload in (
        encode_method("queue.declare", queue="q")[:6] + b"\xff" + b"q",
        encode_method("queue.declare", queue="q")[:-4] + struct.pack(">I", size),
    ):
        stranger = Client(client.socket.getpeername(), timeout=SOON)
        stranger.login().channel()
        stranger.frame(METHOD, 1, payload)
        level, code = fails(stranger)
        stranger.close_socket()

        assert ("connection", True) == (level, code in {501, 541})


# -- tables -----------------------------------------------------------------------------------------------------------


def tables(depth: int) -> bytes:
    octets = b""
    for _ in range(depth):
        octets = b"\x01tF" + struct.pack(">I", len(octets)) + octets
    return struct.pack(">I", len(octets)) + octets


def entries(count: int) -> bytes:
    """The octets of a table with that many voids."""
    octets = b"".join(b"\x05" + b"%05d" % at + b"V" for at in range(count))
    return struct.pack(">I", len(octets)) + octets


def voids(count: int) -> bytes:
    """The octets of a table with an array of values that take one octet each."""
    array = b"\x01aA" + struct.pack(">I", count) + b"V" * count
    return struct.pack(">I", len(array)) + array


def declared(client: Client, table: bytes) -> str:
    """Return the outcome of a declaration with those arguments."""
    client.login().channel()
    payload = encode_method("queue.declare", queue=f"t{time.monotonic_ns()}", exclusive=True)
    client.frame(METHOD, 1, payload[:-4] + table)
    try:
        return client.receive(1, "queue.declare-ok").name
    except ClosedError as error:
        return f"{error.level} {error.close and error.close.fields['reply_code']}"


@pytest.mark.parametrize(("depth", "is_taken"), [(31, True), (33, False), (900, False), (15_000, False)])
def test_sec_10_tables_are_not_nested_without_end(client, depth, is_taken):
    """Arguments whose tables are nested deeper than 32, to any depth, are an error."""
    assert ("queue.declare-ok" if is_taken else "channel 406") == declared(client, tables(depth))


@pytest.mark.parametrize(
    ("table", "is_taken"),
    [(entries(4000), True), (entries(4097), False), (entries(15_000), False), (voids(100_000), False)],
    ids=["4000 entries", "4097 entries", "15,000 entries", "an array of 100,000 voids"],
)
def test_sec_11_tables_have_a_bounded_number_of_entries(client, table, is_taken):
    """A table or array of more than 4,096 values is an error, also where each takes one octet only."""
    assert ("queue.declare-ok" if is_taken else "channel 406") == declared(client, table)


def test_sec_12_a_mistake_does_not_shift_what_follows(client):
    """After a refused method, and a content that is dropped with its channel, the next frames are read as they are."""
    client.login()
    first, second = client.channel(1), client.channel(2)
    name = second.queue(exclusive=True)
    first.send("queue.delete", queue="amq.system", if_unused=True)
    first.send("basic.get", queue="missing")
    first.publish("", name, b"dropped with the channel")
    second.publish("", name, b"kept")

    assert ("channel", 404) == closed(lambda: first.receive("basic.get-ok"))
    assert b"kept" == second.get(name)
    assert 0 == second.ready(name)


@pytest.mark.parametrize("flags", [b"\x00\x01", b"\x80\x01\x00\x01"])
def test_sec_12_property_flags_do_not_go_on(client, flags):
    """Flags that announce further flags are an error."""
    client.login().channel()
    client.raw(frame(METHOD, 1, encode_method("basic.publish", exchange="", routing_key="q")))
    client.raw(frame(HEADER, 1, encode_header(0)[:12] + flags))

    assert ("connection", 541) == fails(client)


def seconds(act: Callable[[], object]) -> float:
    """Processor time of an act, the least of several."""
    took = []
    for _ in range(5):
        began = time.process_time()
        act()
        took.append(time.process_time() - began)
    return min(took)


def test_sec_13_headers_are_read_in_linear_time():
    """Four times as many headers take about four times as long: at most eight times."""
    few, many = (
        build(0, headers={f"key{at:05}": ("long", at) for at in range(count)}) for count in (1000, 4000)
    )

    assert seconds(lambda: inspect(many)) <= 8 * seconds(lambda: inspect(few))
    assert 4000 == len(Properties(many).headers or {})


@pytest.mark.parametrize(
    "properties",
    [
        {"headers": {"CC": "key"}},
        {"headers": {"BCC": 5}},
        {"expiration": "soon"},
        {"expiration": "-1"},
        {"expiration": "1.5"},
        {"expiration": ""},
        {"user_id": "somebody"},
    ],
    ids=str,
)
def test_sec_14_properties_are_checked(client, properties):
    """CC and BCC that are no lists, an expiration that is no number, and another user's name are 406."""
    channel = client.login().channel()
    name = channel.queue(exclusive=True)
    channel.publish("", name, b"x", **properties)

    assert ("channel", 406) == closed(channel.sync)


def test_sec_15_topic_patterns_cost_little():
    """Matching the longest key against hundreds of bindings with fifty `#` each stays within 50 ms."""
    router = Router()
    router.predeclare()
    exchange = router.get("amq.topic")
    for number in range(300):
        queue = object()
        router.add_queue(f"q{number}", queue)
        router.bind("amq.topic", queue, ".".join(["#", "a"] * 50 + [str(number)]), {})
    key = ".".join("a" * 127)

    def route() -> None:
        router.generation += 1
        router.route(exchange, (key,), {})

    assert seconds(route) < 0.05


def test_sec_15_patterns_can_be_bounded():
    """A binding key has at most `compatibility.topic_max_hash` words `#`."""
    client = PureClient(Node(compatibility=Compatibility(topic_max_hash=2)))
    client.declare("q")

    assert "406" in client.ask(make(Queue.Bind, 0, "q", "amq.topic", "#.a.#.b.#", False, {}))[-1]


def test_sec_16_reply_addresses_are_secret(broker, client):
    """A reply goes to its requester alone: an address cannot be guessed, consumed from, bound or got from."""
    asking = client.login().channel()
    asking.consume("amq.rabbitmq.reply-to", no_ack=True)
    answering = broker.client().login().channel()
    name = answering.queue(exclusive=True)
    asking.publish("", name, b"question", reply_to="amq.rabbitmq.reply-to")
    answering.ready(name, 1)
    address = answering.call("basic.get", queue=name, no_ack=True).properties["reply_to"]
    forged = address[:-4] + ("AAAA" if address[-4:] != "AAAA" else "BBBB")
    answering.publish("", forged, b"forged", mandatory=True)

    assert "NO_ROUTE" == answering.receive("basic.return").reply_text
    assert len(re.sub(r"^amq\.rabbitmq\.reply-to\.", "", address)) >= 32
    answering.publish("", address, b"answer")
    assert b"answer" == asking.deliver().body
    for method, fields, code in (
        ("basic.consume", {"queue": address}, 404),
        ("basic.get", {"queue": address}, 404),
        ("queue.bind", {"queue": address, "exchange": "amq.topic", "routing_key": "#"}, 403),
    ):
        other = broker.client().login().channel()
        assert ("channel", code) == closed(lambda other=other, m=method, f=fields: other.call(m, **f))
        other.client.close_socket()
    answering.client.close_socket()


# -- peers that fall silent ---------------------------------------------------------------------------------------------


def test_sec_31_a_silent_peer_is_cut(broker):
    """A peer that has promised heartbeats and sends nothing is cut after three intervals at most."""
    client = broker.client().login(heartbeat=1)
    client.channel()
    began = time.monotonic()
    client.read_rest(SOON)

    assert 1.9 <= time.monotonic() - began < SOON
    client.close_socket()


def test_sec_31_heartbeats_have_no_channel(client):
    """A heartbeat on a channel, or with octets in it, is an error."""
    client.login().channel()
    client.frame(8, 1, b"")

    assert ("connection", 505) == fails(client)


@pytest.fixture
def alarmed(tmp_path) -> Iterator[Running]:
    """A broker whose memory is short."""
    with serving(tmp_path, "--set", "vm_memory_high_watermark.absolute=1") as running:
        yield running


def test_sec_31_a_blocked_peer_that_leaves_is_noticed(alarmed):
    """The end of a publisher that an alarm has blocked is noticed although it is not read and has no heartbeats."""
    client = Client(alarmed.address, timeout=SOON).login(heartbeat=0)
    client.channel()
    client.publish(1, "", "nowhere", b"x")
    client.receive(0, "connection.blocked")
    began = time.monotonic()
    client.close_socket()

    assert "client unexpectedly closed TCP connection" in alarmed.wait_for("closing connection")
    assert time.monotonic() - began < SOON

"""Clients that disconnect, stall or fall silent, over real sockets."""

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from conformance.codec import encode_header, encode_method, frame
from conformance.wire import Channel, Client, ClosedError
from doubles.fakes import Client as FakeClient, DiskNode, Node, ReadTransport, hurry
from processes.running import Running, serving

from leveret.broker.network.socket_driver import SocketDriver

ALARMED = ("--set", "vm_memory_high_watermark.absolute=1")
Opened = Callable[..., Channel]
RESET = struct.pack("ii", 1, 0)
GONE = "client unexpectedly closed TCP connection"
NOTICED = 4.0
"""Seconds to allow for events that take two on an idle machine."""


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Return a function that opens a channel on a new connection, whose socket is closed after the test."""
    made: list[Client] = []

    def give(running: Running, **options: int) -> Channel:
        client = Client(running.address, timeout=10.0)
        made.append(client)
        return client.login(**options).channel()

    yield give
    for client in made:
        client.socket.close()


def publish(key: str, body: bytes) -> bytes:
    method = frame(1, 1, encode_method("basic.publish", exchange="", routing_key=key))
    return method + frame(2, 1, encode_header(len(body))) + (frame(3, 1, body) if body else b"")


def blocked(opened: Opened, running: Running) -> Channel:
    """A publisher that an alarm has blocked, without heartbeats."""
    channel = opened(running, heartbeat=0)
    channel.client.raw(publish("nowhere", b"x"))
    channel.client.receive(0, "connection.blocked")
    return channel


def leave(sock: socket.socket, *, reset: bool) -> None:
    if reset:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("unread", [0, 30_000])
def test_a_blocked_client_that_leaves_is_noticed(tmp_path, reset, unread, opened):
    """The EOF of a client that an alarm has blocked is noticed without heartbeats, behind unread octets as well."""
    with serving(tmp_path, *ALARMED) as running:
        sock = blocked(opened, running).client.socket
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            sock.send(bytes(unread))
        since = time.monotonic()
        leave(sock, reset=reset)

        assert GONE in running.wait_for("closing connection")
        assert time.monotonic() - since < NOTICED


def test_a_client_that_waits_for_its_own_replies_is_noticed(tmp_path, opened):
    """The EOF of a client that is not read because it takes no replies is noticed, too."""
    with serving(tmp_path) as running:
        sock = opened(running, heartbeat=0).client.socket
        method = encode_method("basic.publish", exchange="", routing_key="nowhere", mandatory=True)
        returned = frame(1, 1, method) + frame(2, 1, encode_header(100_000)) + frame(3, 1, bytes(100_000))
        sock.settimeout(1.0)
        with contextlib.suppress(TimeoutError):
            while True:
                sock.sendall(returned)
        since = time.monotonic()
        leave(sock, reset=False)

        assert GONE in running.wait_for("closing connection")
        assert time.monotonic() - since < NOTICED


def test_who_takes_nothing_is_cut_although_it_sends_heartbeats(tmp_path, opened):
    """A client that reads nothing is cut after the send timeout, heartbeats or not, and its messages are requeued."""
    with serving(tmp_path, "--set", "tcp_listen_options.send_timeout=1000") as running:
        publisher, consumer = opened(running), opened(running, heartbeat=1)
        publisher.queue("q")
        consumer.send("basic.consume", queue="q")
        for _ in range(200):
            publisher.publish("", "q", bytes(100_000))
        publisher.sync()
        beats_until_cut(consumer.client)
        line = running.wait_for("the client has not read any of")
        assert "[warning]" in line
        assert 200 == publisher.ready("q", 200, within=5)


def beats_until_cut(client: Client) -> None:
    """Send heartbeats, and read nothing, until the broker has reset the connection."""
    deadline = time.monotonic() + 20
    with contextlib.suppress(ConnectionError):
        while True:
            assert time.monotonic() < deadline
            client.frame(8, 0, b"")
            time.sleep(0.1)


def test_the_largest_reader_is_cut_when_too_much_waits(tmp_path, opened):
    """Above `limits.unsent_bytes` for all clients the one with the most unsent bytes is cut; the others go on."""
    with serving(tmp_path, "--set", "limits.unsent_bytes=3MiB") as running:
        publisher = opened(running)
        publisher.queue("many")
        publisher.queue("few")
        for _ in range(300):
            publisher.publish("", "many", bytes(100_000))
        for _ in range(20):
            publisher.publish("", "few", bytes(10_000))
        publisher.sync()
        few = opened(running)
        few.send("basic.consume", queue="few", no_ack=True)
        readers = [opened(running) for _ in range(4)]
        for reader in readers:
            reader.send("basic.qos", prefetch_count=50)
            reader.send("basic.consume", queue="many")

        line = running.wait_for("limits.unsent_bytes")
        assert "[warning]" in line
        assert 20 == len([few.deliver() for _ in range(20)])
        publisher.sync()


def test_a_client_that_takes_its_time_is_not_cut(tmp_path, opened):
    """A client that reads something now and then may have any amount waiting for it."""
    with serving(tmp_path, "--set", "tcp_listen_options.send_timeout=1500") as running:
        publisher, consumer = opened(running), opened(running)
        publisher.queue("q")
        for _ in range(100):
            publisher.publish("", "q", bytes(100_000))
        publisher.sync()
        consumer.send("basic.consume", queue="q", no_ack=True)
        left = 10_000_000
        sock = consumer.client.socket
        since = time.monotonic()
        while left > 0:
            took = len(sock.recv(4_000_000))
            assert took
            left -= took
            if time.monotonic() - since < 5:
                time.sleep(0.4)

        assert left <= 0


@pytest.mark.parametrize(("linger", "end"), [("true", "reset"), ("false", "end")])
def test_what_the_broker_closes_ends_with_a_reset(tmp_path, linger, end, opened):
    """A socket that the broker closes itself is reset after its last octets, unless `linger` is off."""
    with serving(tmp_path, "--set", f"tcp_listen_options.linger.on={linger}") as running:
        with socket.create_connection(running.address, timeout=10) as sock:
            sock.sendall(b"GET / HT")

            assert b"AMQP\0\0\x09\x01" == sock.recv(100)
            assert end == ended(sock)
        client = opened(running).client
        client.frame(1, 0, encode_method("connection.start-ok", mechanism="", locale=""))
        client.receive(0, "connection.close")
        client.send(0, "connection.close-ok")
        assert end == ended(client.socket)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_client_that_has_ended_its_half_gets_all_replies(tmp_path, says_so):
    """A client whose EOF follows its last method gets replies and close-ok, and then an EOF, not a reset."""
    with serving(tmp_path) as running:
        client = Client(running.address, timeout=10.0).login()
        client.raw(b"".join(frame(1, number, encode_method("channel.open")) for number in range(1, 1001)))
        declares = [
            frame(1, 1, encode_method("queue.declare", queue=f"q{number}", exclusive=True))
            for number in range(300)
        ]
        client.raw(b"".join(declares))
        if says_so:
            client.send(0, "connection.close", reply_code=200)
        client.socket.shutdown(socket.SHUT_WR)
        for number in range(1, 1001):
            client.receive(number, "channel.open-ok")
        for _ in range(300):
            client.receive(1, "queue.declare-ok")
        if says_so:
            client.receive(0, "connection.close-ok")

        assert "end" == ended(client.socket)
        client.socket.close()


def test_the_end_of_a_client_is_not_put_off_for_its_confirms(tmp_path, opened):
    """Frames before a client's EOF are carried out; its messages are requeued at once, without waiting for confirms."""
    with serving(tmp_path) as running:
        channel, other = opened(running), opened(running)
        for queue in ("held", "kept"):
            channel.queue(queue, durable=True)
        other.put("held", b"1")
        channel.consume("held")
        channel.deliver()
        channel.call("confirm.select")
        header = frame(2, 1, encode_header(1, delivery_mode=2))
        method = frame(1, 1, encode_method("basic.publish", exchange="", routing_key="kept"))
        channel.client.raw((method + header + frame(3, 1, b"x")) * 20)
        channel.client.socket.shutdown(socket.SHUT_WR)

        names = set()
        with contextlib.suppress(ClosedError):
            while True:
                names.add(channel.receive().name)
        assert {"basic.ack"} >= names
        assert "end" == ended(channel.client.socket)
        other.consume("held", "next")
        assert other.deliver().redelivered
        assert 20 == other.ready("kept", 20)


def reads(octets: int, most: int) -> tuple[int, list[Callable[[], object]], ReadTransport]:
    """Read so many octets of a buffer of 800 again and again until that is paused, at most so many times.

    A step ends after ten looks at the clock. Returns the number of reads, and the calls for the next round of the loop.
    """
    node = Node()
    soon: list[Callable[[], object]] = []
    node.loop.call_later = lambda _, callback: soon.append(callback)
    hurry(node, looks=10)
    node.gate.read_buffer = memoryview(bytearray(frame(8, 0, b"") * 100))
    driver = SocketDriver(node.gate)
    driver.connection = FakeClient(node).connection
    driver._transport = transport = ReadTransport()
    count = 0
    while transport.is_read and count < most:
        driver.buffer_updated(octets)
        count += 1
    return count, soon, transport


def test_who_sends_without_end_is_not_read_without_end():
    """A socket that always fills the buffer is paused after a slice: libuv would read it again before others."""
    count, soon, transport = reads(800, 100)

    assert 1 < count <= 10
    assert (1, False) == (len(soon), transport.is_read)
    soon[0]()
    assert transport.is_read


def test_reads_that_do_not_fill_the_buffer_are_not_paused():
    """Reads that do not fill the buffer need no pause: libuv goes on to other sockets by itself."""
    count, _, transport = reads(792, 100)

    assert (100, True) == (count, transport.is_read)


@pytest.mark.parametrize(
    ("octets", "overloaded", "is_read"), [(1000, False, True), (40_000, False, False), (1000, True, False)]
)
def test_who_publishes_little_does_not_wait_for_the_disk_beside_who_publishes_much(
    tmp_path, octets, overloaded, is_read
):
    """While much waits for the disk a large publisher is paused after a read, a small one at twice that much only."""
    (tmp_path / "data").mkdir()
    node = DiskNode(tmp_path / "data")
    client = FakeClient(node)
    client.declare("q", durable=True)
    node.commit()
    node.disk.commits.backlogged = True
    node.disk.commits.overloaded = overloaded
    sent = publish("q", bytes(octets))
    node.gate.read_buffer = memoryview(bytearray(sent))
    driver = SocketDriver(node.gate)
    driver.connection = client.connection
    driver._transport = transport = ReadTransport()

    driver.buffer_updated(len(sent))

    assert 1 == node.vhosts["/"].queues["q"].ready_count
    assert is_read is transport.is_read
    node.disk.commits.backlogged = False
    node.loop.backlog_cleared()
    assert transport.is_read


def ended(sock: socket.socket) -> str:
    """Return how a socket without more octets ends."""
    try:
        return "octets" if sock.recv(1) else "end"
    except ConnectionResetError:
        return "reset"


def test_a_silent_client_is_cut_while_it_is_blocked(tmp_path, opened):
    """A blocked client whose kernel accepts heartbeats but that sends none is cut after some intervals."""
    with serving(tmp_path, *ALARMED) as running:
        silent, alive = opened(running, heartbeat=1), opened(running, heartbeat=1)
        for channel in (silent, alive):
            channel.client.raw(publish("nowhere", b"x"))
            channel.client.receive(0, "connection.blocked")
        deadline = time.monotonic() + 20
        sock = silent.client.socket
        sock.settimeout(0.2)
        while time.monotonic() < deadline:
            alive.client.frame(8, 0, b"")
            try:
                if not sock.recv(100):
                    break
            except TimeoutError:
                continue
            except ConnectionResetError:
                break
        assert "missed heartbeats" in running.wait_for("closing connection")
        alive.client.frame(8, 0, b"")


MEMORY = 150_000_000
HOLDER = ("--set", f"vm_memory_high_watermark.absolute={MEMORY}")


def hold(opened: Opened, running: Running, octets: int) -> Channel:
    """Send so much of one body that the alarm it raises blocks the client."""
    channel = opened(running, heartbeat=0)
    client = channel.client
    client.send(1, "basic.publish", exchange="amq.direct", routing_key="nowhere")
    client.frame(2, 1, encode_header(134_000_000))
    part = frame(3, 1, bytes(131_000))
    with contextlib.suppress(ConnectionError):
        for _ in range(octets // 131_000):
            client.raw(part)
    return channel


def test_an_alarm_goes_with_the_client_that_has_raised_it(tmp_path, opened):
    """Memory of a blocked client that leaves is released, and the alarm is cleared."""
    with serving(tmp_path, *HOLDER) as running:
        holder = hold(opened, running, 129_000_000)
        running.wait_for("memory alarm raised")
        holder.client.frame(3, 1, b"x")
        holder.client.receive(0, "connection.blocked")
        since = time.monotonic()
        leave(holder.client.socket, reset=False)
        running.wait_for("memory alarm cleared")

        assert time.monotonic() - since < 10


def test_the_largest_holder_is_closed_until_the_alarm_is_gone(tmp_path, opened):
    """The client that holds the memory that is short is closed with 506 and logged; small holders are only blocked."""
    with serving(tmp_path, *HOLDER) as running:
        small = opened(running, heartbeat=0)
        small.queue("q")
        small.call("tx.select")
        for _ in range(5):
            small.publish("", "q", b"x")
        holder = hold(opened, running, 129_000_000)
        line = running.wait_for("RESOURCE_ERROR")
        running.wait_for("memory alarm cleared")

        assert "low on memory: incomplete publishes of this connection use 1" in line
        small.call("tx.commit")
        assert 5 == small.ready("q", 5)
        holder.client.socket.close()

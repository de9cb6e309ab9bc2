"""A broker process: limits, alarms, stopping, and clients that misbehave."""

import contextlib
import json
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop
from conformance.codec import METHOD, encode_method, frame
from conformance.wire import Channel, Client, ClosedError
from processes.running import Running, serving

from bench import fairness
from bench.client import publish_batch
from leveret.broker.network.gate import RESERVED_FILES
from leveret.broker.network.socket_driver import OUTPUT_LIMIT

FORCED = (320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'")
STOP_LIMIT = 10.0
FILES = 128
QUIET = ("--set", "log.connection.level=critical")  # the log of these is not read
ALARMED = (*QUIET, "--set", "vm_memory_high_watermark.absolute=1")


SMALL_STEPS = """
from leveret.broker.scheduling import time_slices
from leveret.broker.server.server import Server
from leveret.__main__ import main
lengths, start = (time_slices.SLICE, time_slices.SHARE), Server.start
time_slices.SLICE, time_slices.SHARE = 0, 1
async def started(server):
    await start(server)
    time_slices.SLICE, time_slices.SHARE = lengths
Server.start = started
main()
"""
"""A broker each of whose steps ends after one piece of a job until it has started."""


@pytest.fixture
def opened(sockets) -> Callable[[Running], Channel]:
    """Return a function that opens a channel on a new connection."""

    def give(running: Running) -> Channel:
        client = Client(running.address, timeout=10.0)
        sockets.append(client.socket)
        return client.login().channel()

    return give


@pytest.fixture
def greeted(sockets) -> Callable[[Running], socket.socket | None]:
    """Return a function that opens a greeted socket; None if the broker closes it instead."""

    def give(running: Running) -> socket.socket | None:
        sock = socket.create_connection(running.address, timeout=10)
        sockets.append(sock)
        try:
            sock.sendall(b"AMQP\0\0\x09\x01")
            return sock if sock.recv(1) else None
        except ConnectionError:
            return None

    return give


def closed_with(client: Client) -> tuple[int, str]:
    """Wait for the broker's connection.close; returns its code and text."""
    with pytest.raises(ClosedError) as caught:
        client.receive(0, "connection.open-ok")  # never comes
    assert caught.value.close, "closed without a method"
    return caught.value.close.fields["reply_code"], caught.value.close.fields["reply_text"]


def stopped(running: Running, since: float) -> tuple[int, str]:
    """Wait for a broker that is stopping to end in time; returns exit code and stderr."""
    _, err = running.process.communicate(timeout=STOP_LIMIT)
    assert time.monotonic() - since < STOP_LIMIT
    return running.process.returncode, err


def test_connections_beyond_the_file_limit_are_refused(tmp_path, opened, greeted):
    """A connection without a free descriptor is closed and logged; others are served, and freed ones are used again."""
    with serving(tmp_path, "--set", "limits.user.guest.max_connections=1000", files=FILES) as running:
        first = opened(running)
        second = [opened(running) for _ in range(FILES - RESERVED_FILES - 1)]
        late = [greeted(running) for _ in range(100)]

        assert [None] * 100 == late
        assert "[error]" in running.wait_for(
            "refused a connection: the limit of file descriptors is reached; raise it"
        )
        assert "q" == first.queue("q")
        for channel in second[:5]:
            channel.client.close_socket()
        deadline = time.monotonic() + 10
        while greeted(running) is None:
            assert time.monotonic() < deadline
        first.client.close_socket()
        code, log, err = running.stopped_by(signal.SIGTERM)

        assert (0, "") == (code, err)
        assert "Traceback" not in log
        assert log.count("limit of file descriptors") < 100  # reported by number, not one by one


def test_the_memory_alarm_blocks_publishers_only(tmp_path, opened):
    """A publisher above the limit is blocked and not read beyond its content header; consumers go on."""
    with serving(tmp_path, *ALARMED) as running:
        consumer, publisher = opened(running), opened(running)
        consumer.consume(consumer.queue("q"))
        publisher.publish("", "q", b"")  # is complete with its header
        blocked = publisher.client.receive(0, "connection.blocked")
        publisher.publish("", "q", b"second")
        delivered = consumer.deliver()
        consumer.send("basic.ack", delivery_tag=delivered.fields["delivery_tag"])

        assert {"reason": "low on memory"} == blocked.fields
        assert b"" == delivered.body
        assert consumer.quiet("basic.deliver", timeout=0.5)
        assert 0 == consumer.ready("q")
        assert consumer.client.quiet(0, "connection.blocked", timeout=0.1)
        running.process.send_signal(signal.SIGTERM)
        since = time.monotonic()
        for client in (publisher.client, consumer.client):
            assert FORCED == closed_with(client)
            client.send(0, "connection.close-ok")

        assert (0, "") == stopped(running, since)


def test_clients_at_work_are_notified_of_the_end(tmp_path, opened):
    """SIGTERM under load sends publishers and consumers connection.close 320, with exit code 0."""
    with serving(tmp_path, *QUIET) as running:
        publishers, consumers = [opened(running) for _ in range(2)], [opened(running) for _ in range(2)]
        enough = threading.Event()

        def flood(channel: Channel, octets: bytes) -> None:
            with contextlib.suppress(OSError):
                while not enough.is_set():
                    channel.client.raw(octets)

        threads = []
        for number, (publisher, consumer) in enumerate(zip(publishers, consumers, strict=True)):
            consumer.call("basic.qos", prefetch_count=100)
            consumer.consume(consumer.queue(f"q{number}"))
            octets = publish_batch(f"q{number}", 100, 50)
            threads.append(threading.Thread(target=flood, args=(publisher, octets), daemon=True))
        for thread in threads:
            thread.start()
        for consumer in consumers:
            for _ in range(200):
                tag = consumer.deliver().fields["delivery_tag"]
                consumer.send("basic.ack", delivery_tag=tag)
        running.process.send_signal(signal.SIGTERM)
        since = time.monotonic()
        found = [closed_with(channel.client) for channel in (*publishers, *consumers)]
        enough.set()
        for thread in threads:
            thread.join(5)
        for channel in (*publishers, *consumers):
            channel.client.send(0, "connection.close-ok")

        assert [FORCED] * 4 == found
        assert (0, "") == stopped(running, since)


def test_nobody_can_delay_the_end(tmp_path, opened, greeted):
    """A blocked publisher, a silent client and one in the handshake do not delay a stop, with exit code 0."""
    with serving(tmp_path, *ALARMED) as running:
        blocked, silent = opened(running), opened(running)
        greeted(running)
        blocked.queue("q")
        for _ in range(3):
            blocked.publish("", "q", b"x")
        blocked.client.receive(0, "connection.blocked")
        running.process.send_signal(signal.SIGTERM)
        since = time.monotonic()

        assert FORCED == closed_with(blocked.client)
        assert (0, "") == stopped(running, since)
        assert FORCED == closed_with(silent.client)


def test_who_reads_no_replies_is_not_read(tmp_path, opened):
    """A client that reads nothing is not read until it does, however many methods it sends."""
    with serving(tmp_path, *QUIET) as running:
        deaf, other = opened(running), opened(running)
        deaf.queue("q" * 255)
        before = running.resident_memory()
        sock = deaf.client.socket
        sock.settimeout(1.5)
        name = "q" * 255
        question = frame(METHOD, 1, encode_method("queue.declare", queue=name, passive=True))
        answer = frame(METHOD, 1, encode_method("queue.declare-ok", queue=name))
        questions = question * 1000
        sent, limit = 0, 4 * OUTPUT_LIMIT
        with contextlib.suppress(TimeoutError):
            while sent < limit:
                sent += sock.send(questions[sent % len(questions) :])

        assert sent < limit
        assert running.resident_memory() - before < 3 * OUTPUT_LIMIT
        assert "other" == other.queue("other")
        got, owed = 0, sent // len(question) * len(answer)
        sock.settimeout(10)
        while got < owed:  # a part of it had not even been read
            octets = sock.recv(1 << 20)
            assert octets
            got += len(octets)
        assert owed == got
        deaf.client.close_socket()
        assert 0 == other.ready("other")


def measure(situation: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
    """Return the result of one situation of the fairness benchmark."""
    return uvloop.run(situation(*arguments, **options))


def test_a_slow_consumer_does_not_slow_publishers(tmp_path):
    """Publishing is about as fast into a queue whose only consumer holds one message as without it."""
    with serving(tmp_path, *QUIET) as running:
        port = running.address[1]
        found = measure(fairness.prefetch_one, port, seconds=0.4, rounds=2)
        if found.value < 0.6:  # once is chance on a busy machine
            found = measure(fairness.prefetch_one, port, seconds=0.4, rounds=4)

        assert found.value >= 0.6, found.text


@pytest.mark.parametrize("no_ack", [False, True])
def test_who_consumes_its_own_messages_never_stands_still(tmp_path, no_ack):
    """A connection that publishes to the queue it consumes from gets everything, without long gaps."""
    with serving(tmp_path, *QUIET) as running:
        found = measure(fairness.own_queue, running.address[1], messages=20_000, no_ack=no_ack)

        assert found.value < 2.0, found.text


def test_stalled_consumers_cost_others_little(tmp_path):
    """Clients keep their speed beside consumers that read nothing, and the unsent bytes to these are bounded."""
    with serving(tmp_path, *QUIET) as running:
        port, memory = running.address[1], running.resident_memory
        healthy, bounded = measure(fairness.stalled_consumers, port, memory, count=5, seconds=0.4)
        if healthy.value < 0.5:
            healthy, bounded = measure(fairness.stalled_consumers, port, memory, count=5, seconds=0.8)

        assert healthy.value >= 0.5, healthy.text
        assert bounded.passed, bounded.text


def test_definitions_instead_of_the_first_user_are_told_of(tmp_path):
    """A user of the configuration that is not created because definitions are loaded is in a line of the log."""
    definitions = tmp_path / "definitions.json"
    definitions.write_text('{"vhosts": [{"name": "/"}]}')
    for settings, text in (
        (
            ("default_user=ann", "default_pass=secret"),
            "so those of the configuration ('ann') are not created",
        ),
        ((), ""),
    ):
        arguments = [
            word for each in (f"load_definitions={definitions}", *settings) for word in ("--set", each)
        ]
        folder = tmp_path / f"{len(settings)} settings"
        folder.mkdir()
        with serving(folder, *arguments) as running:
            told = [line for line in running.lines if "has to define the users" in line]
        assert bool(text) == len(told)
        assert text in "".join(told)


def test_a_start_finishes_what_takes_many_steps(tmp_path):
    """A broker with more queues than get their policies in one step starts, and the policies apply from then on."""
    definitions = tmp_path / "definitions.json"
    queues = [{"name": f"q{number}", "vhost": "/", "durable": True} for number in range(5)]
    policy = {"vhost": "/", "name": "one", "pattern": "^q", "definition": {"max-length": 1}}
    user = {"name": "guest", "password": "guest", "tags": ""}
    rights = {"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
    everything = {
        "vhosts": [{"name": "/"}],
        "users": [user],
        "permissions": [rights],
        "queues": queues,
        "policies": [policy],
    }
    definitions.write_text(json.dumps(everything))
    with serving(tmp_path, "--set", f"load_definitions={definitions}") as running:
        running.stopped_by(signal.SIGTERM)
    with serving(tmp_path, program=("-c", SMALL_STEPS)) as running:
        client = Client(running.address).login()
        channel = client.channel()
        for queue in queues:
            for _ in range(3):
                channel.publish("", queue["name"], b"x")
        counts = [
            channel.call("queue.declare", queue=queue["name"], passive=True).fields["message_count"]
            for queue in queues
        ]
        client.close_socket()
        code, out, err = running.stopped_by(signal.SIGTERM)

    assert [1] * len(queues) == counts
    assert (0, "") == (code, err)
    assert "error" not in out

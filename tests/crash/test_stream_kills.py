"""Streams of a broker that is killed: no confirmed message is lost, and no offset is given twice."""

import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pika
import pika.exceptions
import pytest
from processes.running import Running, serving

NAME = "readings"
ROUNDS = 4
MOST = 100_000
"""Messages of a round, more than are published before the kill."""


def _connect(running: Running) -> pika.BlockingConnection:
    host, port = running.address
    return pika.BlockingConnection(pika.ConnectionParameters(host, port, heartbeat=0))


def _channel(
    connection: pika.BlockingConnection, **arguments: object
) -> pika.adapters.blocking_connection.BlockingChannel:
    channel = connection.channel()
    channel.queue_declare(NAME, durable=True, arguments={"x-queue-type": "stream", **arguments})
    return channel


def _read(running: Running, offset: object, stop: int | None = None, **arguments: object) -> dict[int, bytes]:
    """Return the bodies of the stream by their offsets, from one on, until nothing comes or the last one is there."""
    found: dict[int, bytes] = {}
    with _connect(running) as connection:
        channel = _channel(connection, **arguments)
        channel.basic_qos(prefetch_count=500)
        wanted = {"x-stream-offset": offset}
        for method, properties, body in channel.consume(NAME, arguments=wanted, inactivity_timeout=1):
            if method is None:
                break
            place = properties.headers["x-stream-offset"]
            assert place not in found
            found[place] = body
            channel.basic_ack(method.delivery_tag)
            if place == stop:
                break
    return found


def _publish_until_killed(
    running: Running,
    first: int,
    count: int,
    of: Callable[[int], pika.BasicProperties | None] = lambda _: None,
) -> tuple[int, int]:
    """Publish numbers in confirm mode; the broker is killed soon after so many. Return the last one confirmed, and sent.

    `of` returns the properties of a number.
    """
    confirmed = sent = first - 1
    killer = threading.Timer(0.01, running.process.send_signal, (signal.SIGKILL,))
    with suppress(pika.exceptions.AMQPError), _connect(running) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        while sent < first + MOST:
            sent += 1
            if sent == first + count:
                killer.start()
            channel.basic_publish("", NAME, b"%d" % sent, of(sent))
            confirmed = sent
    killer.join()
    running.process.wait(timeout=10)
    assert confirmed < first + MOST
    return confirmed, sent


def test_a_killed_broker_keeps_every_confirmed_message_at_its_offset(tmp_path: Path) -> None:
    """After each kill a reader gets all it got before at the same offsets, and all that was confirmed."""
    known: dict[int, bytes] = {}
    number = 0
    chosen = random.Random(7)
    confirmed: set[bytes] = set()
    for _ in range(ROUNDS):
        with serving(tmp_path) as running:
            found = _read(running, "first")
            assert {place: found.get(place) for place in known} == known
            assert confirmed <= set(found.values())
            assert sorted(found) == list(range(len(found)))
            known = found
            last, sent = _publish_until_killed(running, number, chosen.randint(1, 300))
            confirmed |= {b"%d" % each for each in range(number, last + 1)}
            number = sent + 1
    with serving(tmp_path) as running:
        found = _read(running, "first")
        assert confirmed <= set(found.values())
        assert {place: found.get(place) for place in known} == known


def test_what_is_held_or_published_again_is_in_the_stream_once_over_kills(tmp_path: Path) -> None:
    """A publisher that repeats what was not confirmed, some of it held for a while, has each message there once."""
    arguments = {"x-allow-hold": True, "x-deduplicate": "message_id"}
    chosen = random.Random(3)

    def properties(number: int) -> pika.BasicProperties:
        delay = random.Random(number).choice((0, 0, 20, 300, 2000))
        return pika.BasicProperties(message_id=str(number), headers={"x-delay": delay}, delivery_mode=2)

    confirmed = -1
    for _ in range(ROUNDS):
        with serving(tmp_path) as running:
            _read(running, "first", **arguments)
            first = max(0, confirmed - 5)  # its confirms may have been lost, too
            confirmed, sent = _publish_until_killed(running, first, chosen.randint(20, 400), properties)
    with serving(tmp_path) as running:
        end, wanted = time.monotonic() + 30, {b"%d" % each for each in range(confirmed + 1)}
        found = _read(running, "first", **arguments)
        while not wanted <= set(found.values()) and time.monotonic() < end:
            found = _read(running, "first", **arguments)
    assert sorted(map(int, found.values())) in [list(range(last + 1)) for last in range(confirmed, sent + 1)]


def test_a_consumer_whose_offset_is_kept_misses_nothing_over_kills(tmp_path: Path) -> None:
    """After each kill a consumer with the same tag continues at the latest where it had acked all before."""
    count, acked, begins = 8000, -1, []
    wanted = {"x-stream-automatic-offset-tracking": True}
    with serving(tmp_path) as running, _connect(running) as connection:
        channel = _channel(connection)
        for number in range(count):
            if number == count - 1:
                channel.confirm_delivery()  # of the last one: all before it are on disk
            channel.basic_publish("", NAME, b"%d" % number)
    chosen = random.Random(5)
    while acked < count - 1:
        with serving(tmp_path) as running:
            stop = acked + chosen.randint(1000, 3000)
            begins.append(None)
            with suppress(pika.exceptions.AMQPError), _connect(running) as connection:
                channel = _channel(connection)
                channel.basic_qos(prefetch_count=100)
                for method, properties, _ in channel.consume(
                    NAME, arguments=wanted, consumer_tag="worker", inactivity_timeout=10
                ):
                    assert method is not None, f"nothing after {acked} of {count}"
                    place = properties.headers["x-stream-offset"]
                    if begins[-1] is None:
                        begins[-1] = place
                    assert place <= acked + 1
                    acked = max(acked, place)
                    channel.basic_ack(method.delivery_tag)
                    if acked == stop:
                        threading.Timer(0.02, running.process.kill).start()
                    if acked == count - 1:
                        break
    assert len(begins) > 2
    assert all(later > earlier for earlier, later in pairwise(begins))


@pytest.mark.parametrize("clean", [True, False])
def test_retention_and_times_survive_a_restart(tmp_path: Path, clean: bool) -> None:
    """Deleted messages stay deleted, and an offset, a time and a count lead to the same messages as before."""
    limits = {"x-max-length-bytes": 100_000, "x-stream-max-segment-size-bytes": 10_000}
    with serving(tmp_path) as running:
        with _connect(running) as connection:
            channel = _channel(connection, **limits)
            channel.confirm_delivery()
            for number in range(400):
                channel.basic_publish("", NAME, b"%d" % number + bytes(1000))
        before = _read(running, "first", **limits)
        running.stopped_by(signal.SIGTERM) if clean else running.process.kill()
        running.process.wait(timeout=20)
    assert 60 < len(before) < 130
    assert max(before) == 399
    with serving(tmp_path) as running:
        assert _read(running, "first", **limits) == before
        assert set(_read(running, 390, **limits)) == set(range(390, 400))
        assert set(_read(running, "1h", **limits)) == set(before)
        assert set(_read(running, -3, **limits)) == {397, 398, 399}
        with _connect(running) as connection:
            channel = _channel(connection, **limits)
            channel.confirm_delivery()
            channel.basic_publish("", NAME, b"next")
        assert max(_read(running, 399, **limits)) == 400

"""Memory after a peak: what nothing is in any more goes back to the system."""

import time
from pathlib import Path

from conformance.codec import encode_header, encode_method, frame
from conformance.wire import Client
from running import Running

COUNT = 60_000
AT_ONCE = 200
BODY = b"x" * 2000
SECONDS = 30.0
KEPT = 0.3
"""The share that may be kept: 0.24 was measured, and it depends on which pages single objects are left in."""


def in_use(running: Running) -> int:
    """Octets of memory that the broker has for itself."""
    status = Path(f"/proc/{running.process.pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def take(client: Client, count: int) -> None:
    """Read deliveries of that many messages, without looking at them."""
    size = len(frame(1, 1, encode_method("basic.deliver", consumer_tag="c", delivery_tag=1, redelivered=False,
                                         exchange="", routing_key="q")))  # fmt: skip
    left = count * (size + len(frame(2, 1, encode_header(len(BODY)))) + len(BODY) + 8)
    client.socket.settimeout(60)
    while left > 0:
        left -= len(client.socket.recv(1 << 20))


def test_memory_of_a_peak_is_given_back(tmp_path):
    """Half a minute after 120 MB of unacked messages have gone, seven tenths of what they took are given back."""
    with Running(tmp_path, "--set", "log.console.level=error", "--set", "log.file=broker.log") as running:
        deadline = time.monotonic() + 30
        log = running.data_dir / "log" / "broker.log"
        while not log.exists() or "Server startup complete" not in log.read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        port = int(log.read_text().partition("started TCP listener on 127.0.0.1:")[2].split()[0])
        publisher = Client(("127.0.0.1", port), timeout=60.0).login().channel()
        consumer = Client(("127.0.0.1", port), timeout=60.0).login().channel()
        publisher.queue("q")
        consumer.consume("q", "c")
        before = in_use(running)
        method = encode_method("basic.publish", exchange="", routing_key="q")
        one = frame(1, 1, method) + frame(2, 1, encode_header(len(BODY))) + frame(3, 1, BODY)
        for _ in range(COUNT // AT_ONCE):
            publisher.client.raw(one * AT_ONCE)
            take(consumer.client, AT_ONCE)
        peak = in_use(running)
        publisher.call("queue.delete", queue="q")
        publisher.client.socket.close()
        consumer.client.socket.close()
        since = time.monotonic()
        while in_use(running) - before > KEPT * (peak - before) and time.monotonic() - since < SECONDS:
            time.sleep(0.5)

        after = in_use(running)
        assert peak - before > 60 << 20
        assert after - before <= KEPT * (peak - before)

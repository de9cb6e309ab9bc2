"""Memory targets of queues in a broker process, read from its metrics."""

import re
import threading
import time
import urllib.request
from pathlib import Path

from conformance.wire import Client
from processes.running import Running, watched

BODY = bytes(1000)


LIMIT = 4 * 1024 * 1024


def ready_in_memory(address: str) -> dict[str, int]:
    """Return the number of ready messages of each queue with their body in memory."""
    with urllib.request.urlopen(f"http://{address}/metrics/per-object", timeout=20) as answer:
        text = answer.read().decode()
    found = re.findall(
        r'^rabbitmq_queue_messages_ready_ram\{.*?queue="(\w+)".*?\} (\S+)$', text, re.MULTILINE
    )
    return {queue: int(float(count)) for queue, count in found}


def go_round(client: Client, until: threading.Event) -> None:
    """Consume from the queue and publish as many again, as fast as possible."""
    channel = client.channel(2)
    channel.call("basic.qos", prefetch_count=50)
    channel.call("basic.consume", queue="fast", consumer_tag="c")
    while not until.is_set():
        tag = client.receive(2, "basic.deliver").fields["delivery_tag"]
        channel.send("basic.ack", delivery_tag=tag)
        channel.publish("", "fast", BODY)


def test_a_fast_queue_keeps_more_than_one_that_only_grows(tmp_path: Path) -> None:
    """Most of the memory goes to a queue whose messages come and go, more than an even share, if memory is short."""
    arguments = (*watched(), "--set", f"storage.ram_limit={LIMIT}")
    done = threading.Event()
    with Running(tmp_path, *arguments) as running:
        address = running.wait_for("started HTTP listener").partition("listener on ")[2].split()[0]
        running.wait_for("Server startup complete")
        clients = [Client(running.address, timeout=20.0).login() for _ in range(2)]
        channel = clients[0].channel()
        for queue, count in (("fast", 2500), ("growing", 4000)):
            channel.queue(queue)
            for _ in range(count):
                channel.publish("", queue, BODY)
        channel.sync()
        worker = threading.Thread(target=go_round, args=(clients[1], done))
        worker.start()
        try:
            deadline = time.monotonic() + 50
            while time.monotonic() < deadline:
                for _ in range(20):
                    channel.publish("", "growing", BODY)
                channel.sync()
                kept = ready_in_memory(address)
                if kept["fast"] * len(BODY) > LIMIT / 4 and kept["fast"] > 2 * kept["growing"]:
                    break
        finally:
            done.set()
            worker.join(30)
            for client in clients:
                client.close_socket()

    assert kept["fast"] * len(BODY) > LIMIT / 4
    assert kept["fast"] > 2 * kept["growing"]

"""A front with two processes of virtual hosts, a in the first, and b in the second, for tests."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pika
from pamqp import commands, frame
from pamqp.base import Frame
from pamqp.header import ContentHeader
from pika.adapters.blocking_connection import BlockingConnection
from processes.commands import execute
from processes.running import Running, children, command, environment, serving
from processes.waiting import wait_until

SETTINGS = {
    "vhosts.processes": 2,
    "shovel.enabled": "false",
    "default_vhost": "a",
    "default_vhosts.1.name": "b",
    "default_users.1.password": "one",
    "default_users.1.vhost_pattern": ".*",
    "vhosts.process.b": 2,
}
USER = pika.PlainCredentials("1", "one")


PLACED = "LEVERET_TEST_PLACED"
"""Variable of the environment: a number of processes that brokers of tests have, or `forwarded` for a front of another."""


def as_placed(words: list[str], *, is_divisible: bool = True) -> list[str]:
    """Return the words for Python that start a broker as `LEVERET_TEST_PLACED` says, from those that start one alone.

    One that is not divisible is never several processes.
    """
    how = os.environ.get(PLACED, "")
    if how == "forwarded":
        return [str(Path(__file__).with_name("forwarded.py")), *words]
    if how and is_divisible:
        return [*words, "--set", f"vhosts.processes={how}", "--set", "shovel.enabled=false"]
    return words


@contextmanager
def front(folder: Path, **more: object) -> Iterator[Running]:
    settings = SETTINGS | {name.replace("__", "."): value for name, value in more.items()}
    with serving(folder, settings=settings, is_forked=False) as running:
        pids = children(running.process.pid)
        try:
            yield running
        finally:
            if running.process.poll() is None:
                code, _, err = running.stopped_by(signal.SIGTERM)
                assert (0, "") == (code, err), err
            wait_until(lambda: not any(map(is_running, pids)))


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def connect(
    running: Running, vhost: str, credentials: pika.PlainCredentials = USER, **options: object
) -> BlockingConnection:
    return BlockingConnection(
        pika.ConnectionParameters(*running.address, vhost, credentials, stack_timeout=30, **options)
    )


def ctl(running: Running, *words: str, process: int = 0) -> tuple[int, str]:
    """Run a command at the front, or at one of its processes; returns its exit code and output."""
    place = running.data_dir / "processes" / str(process) if process else running.data_dir
    done = execute([*command("ctl", "--data-dir", str(place)), *words], env=environment(), timeout=60)
    return done.returncode, done.stdout + done.stderr


def pid_of(running: Running, process: int) -> int:
    text = (running.data_dir / "processes" / str(process) / "leveret.lock").read_text()
    return int(text.split()[0])


def marshalled(method: Frame, channel: int = 0) -> bytes:
    return frame.marshal(method, channel)


def handshake(vhost: str) -> bytes:
    """Return what a client sends that waits for no answer, as the user `1`."""
    return (
        b"AMQP\0\0\x09\x01"
        + marshalled(commands.Connection.StartOk({}, "PLAIN", "\x001\0one", "en_US"))
        + marshalled(commands.Connection.TuneOk(2047, 131072, 0))
        + marshalled(commands.Connection.Open(vhost))
    )


def check_pipelined(address: tuple[str, int], vhost: str, size: int) -> None:
    """Send a handshake, and more up to the fetch of a message of this size, before the first answer is read."""
    body = os.urandom(size)
    parts = [body[at : at + 100_000] for at in range(0, size, 100_000)]
    octets = b"".join([
        handshake(vhost),
        marshalled(commands.Channel.Open(), 1),
        marshalled(commands.Queue.Declare(queue="pipelined"), 1),
        marshalled(commands.Basic.Publish(routing_key="pipelined"), 1),
        frame.marshal(ContentHeader(0, size, commands.Basic.Properties()), 1),
        *[b"\x03\0\x01" + len(part).to_bytes(4, "big") + part + b"\xce" for part in parts],
        marshalled(commands.Basic.Get(queue="pipelined", no_ack=True), 1),
    ])  # fmt: skip
    with socket.create_connection(address, timeout=30) as client:
        client.settimeout(30)
        client.sendall(octets)
        answers, received = b"", b""
        names: list[str] = []
        while len(received) < size:
            answers += client.recv(1 << 20)
            while len(answers) >= 8 + (int.from_bytes(answers[3:7], "big") if len(answers) >= 8 else 0):
                used, _, found = frame.unmarshal(answers)
                answers = answers[used:]
                names.append(type(found).__name__)
                if names[-1] == "ContentBody":
                    received += found.value
    assert ["Start", "Tune", "OpenOk", "OpenOk", "DeclareOk", "GetOk", "ContentHeader"] == names[:7]
    assert body == received

"""A broker in a process of its own that the tests of a run share."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.wire import Client
from processes.running import SLOW_STEP, Running, free_port, watched

SETTINGS = (
    "log.console=false",
    "auth.failure_delay=100ms",
    "handshake_timeout=1500ms",
    "max_message_size=1MB",
    "limits.argument_bytes=64KiB",
    "default_users.limited.password=limited",
    "limits.user.limited.max_connections=1",
    "limits.user.limited.max_channels=2",
    "default_vhosts.1.name=small",
    "default_users.small.password=small",
    "default_users.small.vhost_pattern=^small$",
    "limits.vhost.small.max_queues=2",
    "limits.vhost.small.max_connections=1",
    "consumer_max_per_channel=3",
)
START_SECONDS = 30.0


class Broker:
    """The shared broker: its addresses for AMQP, metrics and the management API, and its log, which is a file."""

    def __init__(self, running: Running, log: Path) -> None:
        self.running = running
        self.log = log
        deadline = time.monotonic() + START_SECONDS
        while "Server startup complete" not in (text := self.text()):
            assert running.process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.02)
        self.address, self.http, self.management = (
            ("127.0.0.1", int(re.search(rf"started {kind}", text)[1]))
            for kind in (
                r"TCP listener on \S+:(\d+)",
                r"HTTP listener on \S+:(\d+) for metrics",
                r"HTTP listener on \S+:(\d+) for the management",
            )
        )

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    def client(self) -> Client:
        return Client(self.address, timeout=10.0)


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close every socket that a test has opened by `Client`."""
    made: list[Client] = []
    connect = Client.__init__

    def opened(client: Client, *arguments: Any, **options: Any) -> None:
        connect(client, *arguments, **options)
        made.append(client)

    monkeypatch.setattr(Client, "__init__", opened)
    yield
    for each in made:
        each.close_socket()


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The broker that all tests share; what it has logged is judged at the end."""
    folder = tmp_path_factory.mktemp("security")
    log = folder / "a.log"
    management = ("management.enabled=true", f"management.tcp.port={free_port()}")
    settings = (*SETTINGS, f"log.file={log}", *management)
    flags = [word for setting in settings for word in ("--set", setting)]
    with Running(folder, *watched(), *flags) as running:
        shared = Broker(running, log)
        yield shared
        running.process.terminate()
        assert 0 == running.process.wait(15)
    for bad in ("Traceback", "internal error", SLOW_STEP):
        assert [] == [line for line in shared.text().splitlines() if bad in line]


@pytest.fixture
def client(broker: Broker) -> Client:
    return broker.client()

"""A broker in a process of its own, which the tests of this folder reach with the clients everybody uses.

With `LEVERET_TEST_AMQP_URL` in the environment the same tests run against that server instead: what they state is
true of RabbitMQ as well.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from processes.fronts import as_placed
from processes.running import SLOW_STEP, free_port, leash

ROOT = Path(__file__).parent.parent.parent
LISTENING = re.compile(r"started TCP listener on 127\.0\.0\.1:(\d+)$")
START_SECONDS = 30
STOP_SECONDS = 15


class Broker:
    """`python -m leveret serve` on a free port, and all it logs.

    Args:
        data_dir: where it keeps its data.
        settings: further ones.

    """

    def __init__(self, data_dir: Path, *settings: str) -> None:
        self.lines: list[str] = []
        self.port = 0
        self._settled = threading.Event()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("LEVERET_")}
        words = ["-m", "leveret", "serve", "--data-dir", str(data_dir)]
        for setting in ("listeners.tcp.1=127.0.0.1:0", *settings):
            words += ["--set", setting]
        self._process = subprocess.Popen(
            [*leash(), sys.executable, *as_placed(words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=data_dir.parent,
            env=clean | {"PYTHONPATH": str(ROOT)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._process.stdout:
            self.lines.append(line)
            if (match := LISTENING.search(line)) is not None:
                self.port = int(match[1])
            if "Server startup complete" in line:
                self._settled.set()
        self._settled.set()

    def wait(self) -> None:
        """Wait until clients may connect."""
        settled = self._settled.wait(START_SECONDS)
        assert settled, "".join(self.lines)
        assert self.port, "".join(self.lines)

    def stop(self) -> int:
        """End it as an administrator would; its exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(STOP_SECONDS)
        finally:
            self._process.kill()
            self._process.wait(STOP_SECONDS)
            self._reader.join(STOP_SECONDS)
            self._process.stdout.close()


@pytest.fixture(scope="session")
def amqp_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server under test, without a virtual host: the client's default is meant."""
    if given := os.environ.get("LEVERET_TEST_AMQP_URL"):
        yield given.rstrip("/")
        return
    broker = Broker(tmp_path_factory.mktemp("broker") / "data")
    try:
        broker.wait()
        yield f"amqp://guest:guest@127.0.0.1:{broker.port}"
    finally:
        code = broker.stop()
    assert 0 == code, "".join(broker.lines)
    assert [] == [line for line in broker.lines if "Traceback" in line or SLOW_STEP in line], "".join(
        broker.lines
    )


@pytest.fixture
def managed(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    """Run a Leveret with the management API; the addresses of both, as `amqp_url` and without a path.

    The parameter of the fixture is the profile, 3.13 without one.
    """
    port = free_port()
    broker = Broker(
        tmp_path / "data", f"compatibility.profile={getattr(request, 'param', '3.13')}",
        f"management.tcp.port={port}", "prometheus.tcp.port=0", "collect_statistics_interval=1000",
    )  # fmt: skip
    try:
        broker.wait()
        yield f"amqp://guest:guest@127.0.0.1:{broker.port}", f"http://127.0.0.1:{port}"
    finally:
        code = broker.stop()
    assert 0 == code, "".join(broker.lines)


@pytest.fixture(scope="session")
def host_and_port(amqp_url: str) -> tuple[str, int]:
    """Return host and port of the address, for clients that take them apart."""
    parts = urlsplit(amqp_url)
    return parts.hostname or "127.0.0.1", parts.port or 5672


@pytest.fixture
def unique() -> Callable[[str], str]:
    """Names that no other test and no earlier run uses."""
    run = uuid.uuid4().hex[:12]
    return lambda name: f"test.{name}.{run}"

"""Three nodes of RabbitMQ as a cluster of their own, with node names, ports, cookie and directories of this run."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.brokers import (
    START_LIMIT,
    STOP_LIMIT,
    TICKS_PER_SECOND,
    BrokerError,
    free_port,
    rabbitmq_environment,
)

SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
CONTROL = Path("/usr/lib/rabbitmq/bin/rabbitmqctl")
READY = b"Server startup complete"
OUTPUT = "output.log"
NODES = 3


class Node:
    """One node.

    Args:
        directory: an empty one, for all that it writes.
        number: of the node in its cluster.
        shared: environment that all nodes share.
        within: beginning of each command, for an installation in a folder.

    """

    def __init__(
        self, directory: Path, number: int, shared: dict[str, str], within: Sequence[str] = ()
    ) -> None:
        self.directory, self.port = directory, free_port()
        self._within = within
        self.name = f"bench{number}at{self.port}@localhost"
        self.environment = {**os.environ, **shared, **rabbitmq_environment(directory, self.name)}
        self.process: subprocess.Popen[bytes]

    def start(self, names: Sequence[str]) -> None:
        """Start it; it joins those of the nodes that run, and waits for others."""
        lines = [
            f"listeners.tcp.1 = 127.0.0.1:{self.port}",
            "cluster_formation.peer_discovery_backend = classic_config",
            *(f"cluster_formation.classic_config.nodes.{at} = {name}" for at, name in enumerate(names, 1)),
        ]
        (self.directory / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self.directory / "plugins").write_text("[].\n")
        (self.directory / "env").write_text("")
        with (self.directory / OUTPUT).open("wb") as sink:
            self.process = subprocess.Popen(
                [*self._within, str(SERVER)],
                env=self.environment,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self) -> None:
        """Wait until it serves.

        Raises:
            BrokerError: it ended, or was not ready in time.

        """
        deadline = time.monotonic() + START_LIMIT
        while READY not in (text := (self.directory / OUTPUT).read_bytes()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                message = f"RabbitMQ is not ready: {text[-500:].decode(errors='replace')}"
                raise BrokerError(message)
            time.sleep(0.1)

    def control(self, *words: str) -> None:
        """Run a command of `rabbitmqctl`.

        Raises:
            BrokerError: it fails.

        """
        command = [*self._within, str(CONTROL), "-n", self.name, *words]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            message = f"rabbitmqctl {words[0]} fails: {(done.stdout + done.stderr)[-500:]}"
            raise BrokerError(message)

    def cpu_seconds(self) -> float:
        """Return the processor time of all processes of the node so far."""
        found = 0.0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:  # the session
                    found += (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND
        return found

    def stop(self) -> None:
        """End it, with all that it has started."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_LIMIT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def running(scratch: Path, within: Sequence[str] = ()) -> Iterator[list[Node]]:
    """Run a cluster of three nodes.

    Args:
        scratch: an existing folder.
        within: beginning of each command, for an installation in a folder.

    Raises:
        BrokerError: RabbitMQ is not installed, or its nodes do not form a cluster.

    """
    if not within and not SERVER.exists():
        message = "rabbitmq-server is not installed (Debian: rabbitmq-server)"
        raise BrokerError(message)
    mapper = free_port()
    cookie = scratch / ".erlang.cookie"
    cookie.write_text("benchmark" + os.urandom(8).hex())
    cookie.chmod(0o400)
    shared = {"HOME": str(scratch), "ERL_EPMD_PORT": str(mapper), "ERL_EPMD_ADDRESS": "127.0.0.1"}
    nodes: list[Node] = []
    try:
        for number in range(NODES):
            directory = scratch / f"r{number}"
            directory.mkdir()
            nodes.append(Node(directory, number, shared, within))
        names = [node.name for node in nodes]
        for node in nodes:
            node.start(names)
            if not within:  # those of 4.3 wait for each other, those of 3.10 might not find each other
                node.wait_until_ready()
        for node in nodes:
            node.wait_until_ready()
        nodes[0].control("await_online_nodes", str(NODES), "--timeout", "60")
        yield nodes
    finally:
        for node in nodes:
            if hasattr(node, "process"):
                node.stop()
        if epmd := shutil.which("epmd"):
            words = [epmd, "-port", str(mapper), "-kill"]
            subprocess.run(words, env={**os.environ, **shared}, capture_output=True, check=False)
        sys.stdout.flush()

"""Real processes: PostgreSQL as a primary with two synchronous standbys, and brokers with one log in it."""

import contextlib
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, NamedTuple

import pika
from processes.commands import execute
from processes.postgresql_server import SECONDS
from processes.running import BROKER, command, environment, free_port
from replicated.database import NAMES as SERVERS, POLL, Database, database_in_folder
from replicated.wires import Wires

NAMES = ("n1", "n2", "n3")
HEARTBEAT = 5
"""Seconds after which a client begins to doubt that a node that is silent is there."""
GREETING_SECONDS = 2.0
"""Time for a broker to answer the first octets of a client."""


class Nodes:
    """Brokers with one log; `machines.Machines` are as these, for several logs.

    Args:
        home: parent of their data directories.
        urls: of the log, for each node by its name.
        program: words for the interpreter.
        settings: further ones for each node.

    """

    def __init__(
        self,
        home: Path,
        urls: Mapping[str, str],
        program: Sequence[str] = BROKER,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self.vhosts = ("/",)
        """Those to which numbers are published."""
        self.urls = urls
        self._program = program
        self._settings = dict(settings or {})
        names = tuple(urls)
        self.ports = {name: free_port() for name in names}
        self.probes = {name: free_port() for name in names}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._starting = threading.Lock()
        self._is_over = False

    def replication(self, name: str) -> dict[str, str]:
        """Return the settings of a node for its log."""
        return {"replication.url": self.urls[name], "replication.node_name": name}

    def start(self, name: str) -> None:
        settings = {
            "data_dir": str(self.home / name),
            **self.replication(name),
            "management.enabled": "false",
            "prometheus.tcp.port": str(self.probes[name]),
            "log.console": "false",
            "log.file": str(self.home / f"{name}.log"),
            **self._settings,
        }
        words = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
        with self._starting:
            if self._is_over:  # a thread goes on after the end
                raise OSError(f"{name} is not started any more")
            self._processes[name] = subprocess.Popen(
                [sys.executable, *self._program, "serve", "--port", str(self.ports[name]), *words],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )

    def is_running(self, name: str) -> bool:
        """Return whether a node's process is there, perhaps stopped."""
        return name in self._processes and self._processes[name].poll() is None

    def pid(self, name: str) -> int:
        """Return the process id of a node."""
        return self._processes[name].pid

    def signal(self, name: str, number: int) -> None:
        self._processes[name].send_signal(number)

    def kill(self, name: str, *, wiped: bool = False) -> None:
        """End a node as by kill -9, perhaps with its disk."""
        process = self._processes.pop(name)
        process.kill()
        process.wait(SECONDS)
        if wiped:
            shutil.rmtree(self.home / name, ignore_errors=True)  # it may not have been made yet

    def kill_all(self, *, wiped: bool) -> None:
        """End all nodes at once."""
        for process in self._processes.values():
            process.kill()
        for name in list(self._processes):
            self.kill(name, wiped=wiped)

    def terminate(self, name: str) -> None:
        """Tell a node to stop; `wait` waits for it."""
        self._processes[name].terminate()

    def end(self, name: str) -> int:
        """End a node by SIGTERM; returns its exit code."""
        self.terminate(name)
        return self.wait(name)

    def wait(self, name: str) -> int:
        """Wait for the end of a node that was told to stop; returns its exit code."""
        return self._processes.pop(name).wait(SECONDS)

    def log(self, name: str) -> str:
        path = self.home / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def logs(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the log of each process."""
        for name in self.ports:
            yield name, self.log(name)

    def words(self, name: str, *words: str) -> list[str]:
        """Return the words of a command for a node."""
        return [*command("ctl", "--data-dir", str(self.home / name)), *words]

    def ctl(self, name: str, *words: str) -> tuple[int, str]:
        """Run a command for a node; returns its exit code and what it says."""
        done = execute(self.words(name, *words), env=environment(), timeout=SECONDS)
        return done.returncode, done.stdout + done.stderr

    def connect(self, seconds: float = SECONDS, vhost: str = "/") -> tuple[str, Any]:
        """Return the node that leads, and a connection to it: all addresses are tried again and again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for name, port in random.sample(list(self.ports.items()), len(self.ports)):
                with contextlib.suppress(Exception):  # whatever keeps a client from connecting: the next one
                    where = pika.ConnectionParameters(
                        "127.0.0.1",
                        port,
                        vhost,
                        heartbeat=HEARTBEAT,
                        stack_timeout=HEARTBEAT,
                        socket_timeout=HEARTBEAT,
                    )
                    return name, pika.BlockingConnection(where)
            time.sleep(POLL)
        raise TimeoutError("\n".join(self.log(name)[-3000:] for name in self.ports))

    def told_by_waiting(self) -> set[str]:
        """Return what nodes that wait say about the leader, once one of them has a different one from itself."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            found = set()
            for name, port in self.probes.items():
                with contextlib.suppress(OSError, HTTPException):
                    status, text = probed(port, "/readyz")
                    if status == 503 and " leads, at " in text and f"; {name} leads" not in text:
                        found.add(text)
            if found:
                return found
            time.sleep(POLL)
        raise TimeoutError("no node waits")

    def leads(self, name: str) -> bool:
        """Return whether a node greets clients."""
        try:
            with socket.create_connection(("127.0.0.1", self.ports[name]), GREETING_SECONDS) as link:
                link.settimeout(GREETING_SECONDS)
                link.sendall(b"AMQP\0\0\x09\x01")
                return bool(link.recv(1))
        except OSError:
            return False

    def leader(self, seconds: float = SECONDS) -> str:
        """Return the node that leads.

        Raises:
            TimeoutError: none does, for so long.

        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for name in self.ports:
                if self.leads(name):
                    return name
            time.sleep(POLL)
        raise TimeoutError("no node leads:\n" + "\n".join(self.log(name)[-3000:] for name in self.ports))

    def waiting(self) -> list[str]:
        """Return the nodes that run and do not lead."""
        leader = self.leader()
        return [name for name in self.ports if name != leader and self.is_running(name)]

    def start_all(self) -> None:
        """Start the nodes that do not run."""
        for name in self.ports:
            if not self.is_running(name):
                self.start(name)

    def led(self, name: str) -> list[str]:
        """Return the virtual hosts of the logs that a node leads."""
        return list(self.vhosts)

    def misplaced(self) -> list[str]:
        """Return what is wrong with the places of virtual hosts."""
        return []

    def begin_move(self) -> None:
        """Begin to move a virtual host to another log, of machines that have several."""
        raise NotImplementedError

    def stop(self) -> None:
        """End all of them; none is started after that."""
        with self._starting:
            self._is_over = True
        for name in list(self._processes):
            with contextlib.suppress(OSError, KeyError):  # a thread may end it at the same time
                self.signal(name, signal.SIGCONT)
                self.kill(name)


def probed(port: int, path: str) -> tuple[int, str]:
    """Return status and text of a probe's answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=SECONDS)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


class Cluster(NamedTuple):
    """A database, nodes, and the ways between them if they can be cut."""

    database: Database
    nodes: Nodes
    wires: Wires | None


@contextlib.contextmanager
def made_cluster(
    *,
    wired: bool = False,
    program: Sequence[str] = BROKER,
    disk_octets: int = 0,
    configuration: str = "",
    settings: Mapping[str, str] | None = None,
    make_nodes: Callable[..., Nodes] = Nodes,
) -> Iterator[Cluster]:
    """Run a database and three nodes.

    Args:
        wired: whether nodes reach the database by ways that can be cut.
        program: words for the interpreter of each node.
        disk_octets: size of a file system for each server of the database; see there.
        configuration: more lines for `postgresql.conf`.
        settings: further ones for each node.
        make_nodes: what is called with the arguments of `Nodes`.

    """
    with ExitStack() as ending:
        home, database = ending.enter_context(
            database_in_folder("leveret-r-", disk_octets=disk_octets, configuration=configuration)
        )
        (home / "nodes").mkdir()
        wires = None
        urls = dict.fromkeys(NAMES, database.url)
        if wired:
            sockets = [database.socket(name) for name in SERVERS]
            wires = Wires(NAMES, sockets, "user=leveret&target_session_attrs=read-write")
            ending.callback(wires.stop)
            urls = wires.urls
        nodes = make_nodes(home / "nodes", urls, program, settings)
        ending.callback(nodes.stop)
        nodes.start_all()
        yield Cluster(database, nodes, wires)


@contextlib.contextmanager
def cluster() -> Iterator[tuple[Database, Nodes]]:
    """Run a database and three nodes that reach it without a detour."""
    with made_cluster() as made:
        yield made.database, made.nodes

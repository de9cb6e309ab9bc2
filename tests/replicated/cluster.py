"""Real processes: PostgreSQL as a primary with two synchronous standbys, and brokers with one log in it."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pika
import psycopg
from pika.exceptions import AMQPError
from postgresql_server import SECONDS, as_whom, needed_programs
from running import free_port

NAMES = ("s0", "s1", "s2")
POLL = 0.05
ATTEMPTS = 10
HEARTBEAT = 5
"""Seconds after which a client begins to doubt that a node that is silent is there."""


class Database:
    """A primary and two standbys, of which one has to have what is committed; each is reached by a socket.

    Args:
        home: a short path, in which they keep everything.

    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._programs = needed_programs()
        self._servers: dict[str, Any] = {}
        if not os.geteuid():
            shutil.chown(home, "postgres", "postgres")
        self._run(
            "initdb", "-D", home / "s0", "-U", "leveret", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"
        )
        with (home / "s0" / "postgresql.conf").open("a") as file:
            file.write(
                "listen_addresses = ''\nshared_buffers = 16MB\nhot_standby = on\nwal_level = replica\n"
                "synchronous_standby_names = 'ANY 1 (s0, s1, s2)'\nwal_receiver_status_interval = 1\n"
                "wal_retrieve_retry_interval = 200\nwal_keep_size = 256\n"
            )
        self.primary = "s0"
        self._start("s0")
        for name in NAMES[1:]:
            self._run("pg_basebackup", "-D", home / name, "-d", self._origin(name), "-R", "-c", "fast")
            self._start(name)
        self.sql("s0", "create database leveret")
        self._wait_for_standbys(2)

    def _run(self, program: str, *words: object) -> None:
        subprocess.run(
            [self._programs / program, *words],
            cwd=self.home,
            check=True,
            capture_output=True,
            timeout=SECONDS,
            **as_whom(),
        )

    def _socket(self, name: str) -> Path:
        path = self.home / f"at{name}"
        if not path.exists():
            path.mkdir()
            if not os.geteuid():
                shutil.chown(path, "postgres", "postgres")
        return path

    def _origin(self, name: str) -> str:
        return f"host={self._socket(self.primary)} user=leveret application_name={name}"

    def _start(self, name: str) -> None:
        self._servers[name] = subprocess.Popen(
            [self._programs / "postgres", "-D", self.home / name, "-k", self._socket(name)],
            cwd=self.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_whom(),
        )
        wait = [self._programs / "pg_isready", "-h", self._socket(name), "-t", "1"]
        for _ in range(int(SECONDS)):
            if not subprocess.run(wait, capture_output=True, timeout=SECONDS, check=False).returncode:
                return
            assert self._servers[name].poll() is None, f"the server {name} has ended"
            time.sleep(POLL)
        raise TimeoutError(name)

    def sql(self, name: str, *statements: str) -> Any:
        """Run statements at a server; returns the rows of the last one."""
        url = f"host={self._socket(name)} user=leveret dbname=postgres"
        with psycopg.connect(url, autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else None

    def _wait_for_standbys(self, count: int) -> None:
        deadline = time.monotonic() + SECONDS
        while self.sql(
            self.primary, "select count(*) from pg_stat_replication where state = 'streaming'"
        ) != [(count,)]:
            assert time.monotonic() < deadline, "the standbys do not follow"
            time.sleep(POLL)

    @property
    def url(self) -> str:
        """The URL for brokers."""
        hosts = ",".join(str(self._socket(name)) for name in NAMES)
        return f"postgresql:///leveret?host={hosts}&user=leveret&target_session_attrs=read-write"

    def lose_primary(self) -> None:
        """Kill the primary, promote the standby that has more, and have the other one follow it."""
        lost = self._servers.pop(self.primary)
        lost.kill()
        lost.wait(SECONDS)
        flushed = {
            name: self.sql(name, "select (pg_last_wal_receive_lsn() - '0/0')::bigint")[0][0]
            for name in self._servers
        }
        self.primary = max(flushed, key=lambda name: flushed[name])
        assert self.sql(self.primary, "select pg_promote(true, 60)") == [(True,)]
        for name in self._servers:
            if name != self.primary:
                self.sql(
                    name,
                    f"alter system set primary_conninfo = '{self._origin(name)}'",
                    "select pg_reload_conf()",
                )

    def stop(self) -> None:
        """End all servers."""
        for server in self._servers.values():
            server.send_signal(signal.SIGQUIT)
        for server in self._servers.values():
            server.wait(SECONDS)


class Nodes:
    """Brokers with one log.

    Args:
        home: parent of their data directories.
        url: of the log.
        names: of the nodes.

    """

    def __init__(self, home: Path, url: str, names: tuple[str, ...] = ("n1", "n2", "n3")) -> None:
        self.home = home
        self.url = url
        self.ports = {name: free_port() for name in names}
        self.probes = {name: free_port() for name in names}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        """Start a node."""
        settings = {
            "data_dir": str(self.home / name),
            "replication.url": self.url,
            "replication.node_name": name,
            "management.enabled": "false",
            "prometheus.tcp.port": str(self.probes[name]),
            "log.console": "false",
            "log.file": str(self.home / f"{name}.log"),
        }
        words = [each for key, value in settings.items() for each in ("--set", f"{key}={value}")]
        self._processes[name] = subprocess.Popen(
            [sys.executable, "-m", "leveret", "serve", "--port", str(self.ports[name]), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a node."""
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

    def end(self, name: str) -> int:
        """End a node by SIGTERM; returns its exit code."""
        process = self._processes.pop(name)
        process.terminate()
        return process.wait(SECONDS)

    def log(self, name: str) -> str:
        """Return the log of a node."""
        path = self.home / f"{name}.log"
        return path.read_text() if path.exists() else ""

    def connect(self, seconds: float = SECONDS) -> tuple[str, Any]:
        """Return the node that leads, and a connection to it: all addresses are tried again and again."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for name, port in self.ports.items():
                with contextlib.suppress(Exception):  # whatever keeps a client from connecting: the next one
                    where = pika.ConnectionParameters(
                        "127.0.0.1",
                        port,
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

    def leader(self) -> str:
        """Return the node that leads."""
        name, connection = self.connect()
        connection.close()
        return name

    def stop(self) -> None:
        """End all of them."""
        for name in list(self._processes):
            with contextlib.suppress(OSError):
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


class Publisher:
    """A client that publishes numbered messages one after the other, each once, and notes those that are confirmed."""

    QUEUE = "ledger"

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._is_over = threading.Event()
        self.confirmed: list[int] = []
        self.longest_gap = 0.0
        """Seconds between two confirms."""
        self.error: BaseException | None = None
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="publisher")
        self._thread.start()

    def _run(self) -> None:
        try:
            last = time.monotonic()
            while not self._is_over.is_set():
                _, connection = self._nodes.connect()
                with contextlib.suppress(AMQPError, OSError):
                    channel = connection.channel()
                    channel.queue_declare(self.QUEUE, durable=True)
                    channel.confirm_delivery()
                    while not self._is_over.is_set():
                        self._number += 1
                        body = b"%d %s" % (self._number, b"x" * (self._number % 50 * 200))
                        channel.basic_publish("", self.QUEUE, body, pika.BasicProperties(delivery_mode=2))
                        self.confirmed.append(self._number)
                        now = time.monotonic()
                        self.longest_gap = max(self.longest_gap, now - last)
                        last = now
                with contextlib.suppress(Exception):
                    connection.close()
        except BaseException as error:
            self.error = error

    def goes_on(self, count: int = 20) -> None:
        """Wait until that many more messages are confirmed."""
        goal = len(self.confirmed) + count
        deadline = time.monotonic() + SECONDS
        while len(self.confirmed) < goal:
            assert self.error is None, self.error
            assert time.monotonic() < deadline, "nothing is confirmed any more"
            time.sleep(POLL)

    def end(self) -> None:
        """Publish no more."""
        self._is_over.set()
        self._thread.join(2 * SECONDS)  # it may be looking for the leader
        assert not self._thread.is_alive(), "the publisher does not end"

    def judge(self) -> list[str]:
        """Consume everything; returns what an honest broker would not have done."""
        for _ in range(ATTEMPTS):
            with contextlib.suppress(AMQPError, OSError):  # another node leads: from the beginning
                return self._judge()
        raise TimeoutError("no node leads long enough")

    def _judge(self) -> list[str]:
        _, connection = self._nodes.connect()
        channel = connection.channel()
        count = channel.queue_declare(self.QUEUE, passive=True).method.message_count
        got: list[int] = []
        wrong = []
        while len(got) < count:
            method, _, body = channel.basic_get(self.QUEUE)
            if method is None:
                wrong.append(f"{count} messages were counted, {len(got)} are there")
                break
            got.append(int(body.split()[0]))
        with contextlib.suppress(AMQPError, OSError):
            connection.close()  # nothing is acked: the messages stay
        if missing := sorted(set(self.confirmed) - set(got)):
            wrong.append(f"{len(missing)} confirmed messages are lost, such as {missing[:5]}")
        if len(set(got)) < len(got):
            wrong.append("a message is there twice")
        if got != sorted(got):
            wrong.append("messages are out of order")
        return wrong


@contextlib.contextmanager
def cluster() -> Iterator[tuple[Database, Nodes]]:
    """Run a database and three nodes."""
    home = Path(tempfile.mkdtemp(prefix="leveret-r-"))
    home.chmod(0o755)
    parts: list[Any] = []
    try:
        (home / "pg").mkdir()
        (home / "nodes").mkdir()
        database = Database(home / "pg")
        parts.append(database)
        nodes = Nodes(home / "nodes", database.url)
        parts.append(nodes)
        for name in nodes.ports:
            nodes.start(name)
        yield database, nodes
    finally:
        for part in reversed(parts):
            part.stop()
        shutil.rmtree(home, ignore_errors=True)

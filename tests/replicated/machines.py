"""Machines: each has a node of each of several logs in one database, and a broker that forwards clients to those.

Log `l1` has `/`, whose clients come to the node that leads; each other log has a virtual host of its name, and clients
that come to any machine. One more of `l2` is moved to a log of its own.
"""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pika
import psycopg
from pika.exceptions import AMQPError
from processes.running import BROKER
from replicated.cluster import GREETING_SECONDS, SECONDS, Nodes
from replicated.database import POLL, Database

FIRST, SECOND = "l1", "l2"
MOVING = "moving"
"""The virtual host of `l2` that is moved, and its log from then on."""
CONNECTIONS = "max_connections = 400\n"
"""For the servers: each node has several."""


class Fronts(Nodes):
    """Brokers without a log that forward clients."""

    def replication(self, name: str) -> dict[str, str]:
        """Return none."""
        return {}


class Machines(Nodes):
    """Nodes of a machine end and begin at once, and its front with them.

    Args:
        home: parent of all data directories.
        urls: of the database, for each machine by its name.
        program: words for the interpreter.
        settings: further ones for each node.
        logs: how many.

    """

    def __init__(
        self,
        home: Path,
        urls: Mapping[str, str],
        program: Sequence[str] = BROKER,
        settings: Mapping[str, str] | None = None,
        *,
        logs: int,
    ) -> None:
        super().__init__(home, urls, program, settings)
        self._of: dict[str, Nodes] = {}
        self._database: Database | None = None
        self._moving: threading.Thread | None = None
        names = [f"l{number}" for number in range(1, logs + 1)]
        for log in (*names, MOVING):
            (home / log).mkdir()
            vhost = {FIRST: "/", MOVING: "none"}.get(log, log)
            more = {**(settings or {}), "replication.log": log, "default_vhost": vhost}
            self._of[log] = Nodes(home / log, urls, program, more)
        self._started = names
        """Logs that exist, whose nodes are to run."""
        self.ports = self._of[FIRST].ports
        self.vhosts = ("/", *names[1:], MOVING)
        elsewhere = {f"vhosts.broker.{log}": self._addresses(log) for log in names[1:]}
        elsewhere[f"vhosts.broker.{MOVING}"] = f"{self._addresses(SECOND)},{self._addresses(MOVING)}"
        (home / "fronts").mkdir()
        self._fronts = Fronts(home / "fronts", urls, program, {**(settings or {}), **elsewhere})

    def _addresses(self, log: str) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._of[log].ports.values())

    @property
    def _all(self) -> list[Nodes]:
        return [*(self._of[log] for log in self._started), self._fronts]

    def _on(self, name: str) -> Iterator[Nodes]:
        """Yield what runs on a machine."""
        yield from (nodes for nodes in self._all if nodes.is_running(name))

    def lay_out(self, database: Database) -> None:
        """Wait until all logs are led, and make the virtual host that will move."""
        self._database = database
        database.log = FIRST
        for log in self._started:
            self._of[log].leader()
        second = self._of[SECOND]
        for words in (("add_vhost", MOVING), ("set_permissions", "-p", MOVING, "guest", ".*", ".*", ".*")):
            deadline = time.monotonic() + SECONDS
            while True:  # a leader can be deposed before the command reaches it, if all nodes start at once
                code, text = second.ctl(second.leader(), *words)
                if not code:
                    break
                assert time.monotonic() < deadline, text

    # -- as of one log ----------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a machine."""
        for nodes in self._all:
            if not nodes.is_running(name):
                nodes.start(name)

    def start_all(self) -> None:
        """Start what does not run; at first each machine has some logs to itself, to lead them."""
        names = list(self.ports)
        if self._database is None:
            for number, log in enumerate(self._started):
                self._of[log].start(names[number % len(names)])
            for log in self._started:
                self._of[log].leader()
        for name in names:
            self.start(name)

    def is_running(self, name: str) -> bool:
        """Return whether a machine runs, perhaps stopped."""
        return any(self._on(name))

    def signal(self, name: str, number: int) -> None:
        """Send a signal to all processes of a machine."""
        for nodes in self._on(name):
            nodes.signal(name, number)

    def kill(self, name: str, *, wiped: bool = False) -> None:
        """End a machine as by the loss of power, perhaps with its disk."""
        self._end_at_once([name], wiped=wiped)

    def kill_all(self, *, wiped: bool) -> None:
        """End all machines at once."""
        self._end_at_once(list(self.ports), wiped=wiped)

    def _end_at_once(self, names: Sequence[str], *, wiped: bool) -> None:
        running = [(nodes, name) for name in names for nodes in self._on(name)]
        for nodes, name in running:
            nodes.signal(name, signal.SIGKILL)
        for nodes, name in running:
            nodes.kill(name, wiped=wiped)

    def end(self, name: str) -> int:
        """End a machine by SIGTERM; returns an exit code that is wrong, if there is one."""
        running = list(self._on(name))
        for nodes in running:
            nodes.terminate(name)
        codes = [nodes.wait(name) for nodes in running]
        return next((code for code in codes if code not in (0, -signal.SIGTERM)), 0)

    def log(self, name: str) -> str:
        """Return the log of the node of a machine that has the first log."""
        return self._of[FIRST].log(name)

    def logs(self) -> Iterator[tuple[str, str]]:
        """Yield the name and the log of each process."""
        for nodes in self._all:
            for name, text in nodes.logs():
                yield f"{nodes.home.name}/{name}", text

    def connect(self, seconds: float = SECONDS, vhost: str = "/") -> tuple[str, Any]:
        """Return a connection to the node that leads the first log, or by a front to another virtual host."""
        return (self._of[FIRST] if vhost == "/" else self._fronts).connect(seconds, vhost)

    def leads(self, name: str) -> bool:
        """Return whether a machine leads the first log."""
        return self._of[FIRST].leads(name)

    def led(self, name: str) -> list[str]:
        """Return the virtual host of each log that a machine leads."""
        logs = [log for log in self._started if self._of[log].leads(name)]
        return ["/" if log == FIRST else log for log in logs]

    def stop(self) -> None:
        """End all of them."""
        for nodes in [*self._of.values(), self._fronts]:
            nodes.stop()
        if self._moving is not None:
            self._moving.join(SECONDS)

    # -- the move ---------------------------------------------------------------------------------------------------

    def begin_move(self) -> None:
        """Begin to move the virtual host, unless it was moved; the nodes of its log are started once that exists."""
        if MOVING not in self._started and (self._moving is None or not self._moving.is_alive()):
            self._moving = threading.Thread(target=self._move, name="moving")
            self._moving.start()

    def _move(self) -> None:
        code = 1
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            second = self._of[SECOND]
            code, _ = second.ctl(second.leader(GREETING_SECONDS * 10), "move_vhost", MOVING, MOVING)
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            time.sleep(POLL)
            with contextlib.suppress(psycopg.Error):
                assert self._database is not None
                if self._database.has_log(MOVING):
                    self._started = [*self._started, MOVING]
                    self._of[MOVING].start_all()
                    return
                if code:
                    return

    def misplaced(self) -> list[str]:
        """Return a line for each virtual host that is not in exactly one log."""
        wrong = []
        for vhost in self.vhosts:
            found = [log for log in self._started if self._serves(log, vhost)]
            if len(found) != 1:
                wrong.append(f"virtual host {vhost} is in the logs {found}")
        return wrong

    def _serves(self, log: str, vhost: str) -> bool:
        nodes = self._of[log]
        port = nodes.ports[nodes.leader()]
        try:
            where = pika.ConnectionParameters("127.0.0.1", port, vhost, stack_timeout=SECONDS)
            pika.BlockingConnection(where).close()
        except AMQPError:
            return False
        return True

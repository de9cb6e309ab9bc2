"""Pages on replication: their commands, as they are shown, lose nodes and a primary, and their client loses nothing."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("psycopg", reason="the package psycopg is not installed")
from processes.postgresql_server import as_whom, needed_programs
from processes.running import ROOT, environment, free_port, write_command
from processes.short_paths import servers_folder

PAGE = ROOT / "docs" / "howto" / "try-replication.md"
SIX_LOGS = PAGE.with_name("six-logs.md")
BLOCK = re.compile(r"^```(python|sh|text|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVERS, NODES = ("5440", "5441", "5442"), ("5672", "5673", "5674")
NODE_PORTS = 63
"""Ports from that of the first node on, of all brokers of six logs."""
SECONDS = 180
PUBLISHING = 16
"""Seconds for which the client of the page publishes."""
RESULT = re.compile(r"(\d+) messages confirmed, (\d+) of them lost, longest gap (\d+\.\d) s")


class Trial:
    """The sections on trying it out: their blocks, on free ports.

    Args:
        folder: where it is followed; its parts belong to those who run them.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs = needed_programs()
        self._ports = {port: str(free_port()) for port in SERVERS}
        first = free_ports(NODE_PORTS)
        self._ports.update({port: str(number) for number, port in enumerate(NODES, first)})
        shown = PAGE.read_text(encoding="utf-8").replace(
            "initdb ", "initdb -N "
        )  # it need not survive a power cut
        self.blocks = BLOCK.findall(self._on_free_ports(shown))
        self.blocks_of_six = BLOCK.findall(self._on_free_ports(SIX_LOGS.read_text(encoding="utf-8")))
        binaries = write_command(folder / "bin")
        self._environ = {
            **environment(),
            "PATH": f"{binaries}:{self._programs}:{environment()['PATH']}",
        }

    def _on_free_ports(self, text: str) -> str:
        for port, other in self._ports.items():
            text = re.sub(rf"\b{port}\b", other, text)
        return text

    def find(self, word: str) -> str:
        (found,) = [text for _, text in self.blocks if word in text]
        return found

    def find_of_six(self, *words: str) -> str:
        """Return blocks of the page on six logs, as one text."""
        return "".join(text for word in words for _, text in self.blocks_of_six if word in text)

    def run(self, word: str, **more: Any) -> None:
        self.run_text(self.find(word), **more)

    def run_text(self, text: str, **more: Any) -> None:
        with (self.folder / "out").open("ab") as out:
            done = subprocess.run(
                ["sh", "-ec", text],
                env=self._environ,
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=SECONDS,
                **more,
            )
        assert 0 == done.returncode, (self.folder / "out").read_text()

    def start_client(self, *words: str) -> "subprocess.Popen[str]":
        (self.folder / "client.py").write_text(self.find("basic_publish"), encoding="utf-8")
        return subprocess.Popen(
            [sys.executable, "client.py", str(PUBLISHING), *words],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_clients(self, count: int) -> None:
        """Wait until so many connections were made: a client has another one after the loss of its node."""
        deadline = time.monotonic() + SECONDS
        while (
            "".join(path.read_text() for path in self.folder.glob("n?.log")).count(" authenticated ") < count
        ):
            assert time.monotonic() < deadline, "no client connects"
            time.sleep(0.05)

    def end(self) -> None:
        """End the nodes and servers that are left."""
        for path in (*self.folder.glob("n?.pid"), *self.folder.glob("n?/*.pid")):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)
        for path in self.folder.glob("s?/postmaster.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text().split("\n")[0]), signal.SIGQUIT)
        deadline = time.monotonic() + SECONDS
        while [*self.folder.glob("s[12]/postmaster.pid")] and time.monotonic() < deadline:
            time.sleep(0.05)


def free_ports(count: int) -> int:
    """Return the first of so many ports on end that are free."""
    while True:
        first = free_port()
        with contextlib.ExitStack() as ending, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                link = ending.enter_context(socket.socket())
                link.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                link.bind(("127.0.0.1", port))
            return first


@pytest.fixture
def trial() -> Iterator[Trial]:
    """A folder of those who run the servers, in which root may write, too."""
    folder = servers_folder("leveret-h-")
    if not os.geteuid():
        shutil.chown(folder, "postgres", "postgres")
    made = Trial(folder)
    try:
        yield made
    finally:
        made.end()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(300)
def test_the_commands_of_the_page_lose_nothing(trial: Trial) -> None:
    """All that was confirmed is consumed after the loss of a leader and of a primary; the client tells the gap."""
    trial.run("initdb", **as_whom())
    (trial.folder / "leveret.conf").write_text(trial.find("replication.url"), encoding="utf-8")
    trial.run("start()")
    trial.run("until leveret")
    client = trial.start_client()
    try:
        trial.wait_for_clients(1)
        trial.run("leader=")
        trial.wait_for_clients(2)
        trial.run("pg_promote")
        printed, errors = client.communicate(timeout=SECONDS)
    finally:
        client.kill()
        client.wait(SECONDS)

    assert "" == errors
    result, shown = RESULT.match(printed), RESULT.match(trial.find("longest gap 5"))
    assert result is not None
    assert shown is not None
    assert "0" == result[2] == shown[2]
    assert 0 < int(result[1])
    assert 3.5 < float(result[3]) < PUBLISHING


@pytest.mark.timeout(600)
def test_the_commands_for_six_logs_lose_nothing(trial: Trial) -> None:
    """Each of three nodes leads two logs; clients of all come to any node, and go on after the one that leads theirs is killed."""
    trial.run("initdb", **as_whom())
    (trial.folder / "leveret.conf").write_text(trial.find_of_six("vm_memory"), encoding="utf-8")
    trial.run_text(trial.find_of_six("start_node()"))
    trial.run_text(trial.find_of_six("cluster_balance"))
    leaders = re.findall("^Leader: (n[1-3])$", (trial.folder / "out").read_text(), re.MULTILINE)[-6:]
    assert ["n1", "n1", "n2", "n2", "n3", "n3"] == sorted(leaders)

    clients = [trial.start_client(log) for log in ("orders", "web")]
    try:
        time.sleep(PUBLISHING / 4)
        trial.run_text(trial.find_of_six("kill -9"))
        printed = [client.communicate(timeout=SECONDS) for client in clients]
    finally:
        for client in clients:
            client.kill()
            client.wait(SECONDS)

    for text, errors in printed:
        assert "" == errors
        result = RESULT.match(text)
        assert result is not None, text
        assert "0" == result[2]
    assert 3.5 < float(RESULT.match(printed[0][0])[3]) < PUBLISHING  # type: ignore[index]

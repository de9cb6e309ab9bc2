"""The page on replication: its commands, as they are shown, lose a node and a primary, and its client loses nothing."""

import contextlib
import os
import re
import shutil
import signal
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
BLOCK = re.compile(r"^```(python|sh|text|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORTS = ("5440", "5441", "5442", "5672", "5673", "5674")
SECONDS = 60
PUBLISHING = 16
"""Seconds for which the client of the page publishes."""
RESULT = re.compile(r"(\d+) messages confirmed, (\d+) of them lost, longest gap (\d+\.\d) s")


class Trial:
    """The section on trying it out: its blocks in their order, on free ports.

    Args:
        folder: where it is followed; its parts belong to those who run them.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs = needed_programs()
        self._ports = {port: str(free_port()) for port in PORTS}
        shown = PAGE.read_text(encoding="utf-8").replace(
            "initdb ", "initdb -N "
        )  # it need not survive a power cut
        self.blocks = BLOCK.findall(self._on_free_ports(shown))
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

    def run(self, word: str, **more: Any) -> None:
        with (self.folder / "out").open("ab") as out:
            done = subprocess.run(
                ["sh", "-ec", self.find(word)],
                env=self._environ,
                cwd=self.folder,
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=SECONDS,
                **more,
            )
        assert 0 == done.returncode, (self.folder / "out").read_text()

    def start_client(self) -> "subprocess.Popen[str]":
        (self.folder / "client.py").write_text(self.find("basic_publish"), encoding="utf-8")
        return subprocess.Popen(
            [sys.executable, "client.py", str(PUBLISHING)],
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
        for path in self.folder.glob("n?.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text()), signal.SIGKILL)
        for path in self.folder.glob("s?/postmaster.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.read_text().split("\n")[0]), signal.SIGQUIT)
        deadline = time.monotonic() + SECONDS
        while [*self.folder.glob("s[12]/postmaster.pid")] and time.monotonic() < deadline:
            time.sleep(0.05)


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

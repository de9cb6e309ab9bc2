"""A broker in a process of its own, for tests of what only a process has: signals, limits, a log, sockets."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parent.parent
BROKER = ("-m", "broker")
UNWATCHED = ("--set", "prometheus.enabled=false")
"""Most brokers of tests need no HTTP listener, which takes time to load and a port that there is once."""
LISTENING = re.compile(r"started TCP listener on (\S+):(\d+)$")


class Running:
    """A broker in a process of its own, listening on a free port.

    Args:
        tmp_path: where its data go.
        arguments: more words for `leveret serve`.
        files: how many file descriptors it may have; as many as the tests by default.
        before: words before those of the interpreter, as of a tracer that runs it.
        program: words for the interpreter instead of those that start the broker as it is.

    """

    def __init__(
        self,
        tmp_path: Path,
        *arguments: str,
        files: int | None = None,
        before: Sequence[str] = (),
        program: Sequence[str] = BROKER,
    ) -> None:
        self.data_dir = tmp_path / "data"
        self.address = ("", 0)  # the first
        self.addresses: list[tuple[str, int]] = []
        serve = (
            "serve",
            "--data-dir",
            str(self.data_dir),
            "--set",
            "listeners.tcp.1=127.0.0.1:0",
            *UNWATCHED,
        )
        words = [*before, *command(*serve, *arguments, program=program)]
        if files is not None:
            words = ["/bin/sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *words]
        self.process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def resident_memory(self) -> int:
        """Octets of memory it has in use."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def wait_for(self, text: str) -> str:
        """The next line of the log that contains ``text``."""
        for line in self.process.stdout:
            if (match := LISTENING.search(line)) is not None:
                self.addresses.append((match[1].strip("[]"), int(match[2])))
                self.address = self.addresses[0]
            if text in line:
                return line
        raise AssertionError(f"no line with {text!r}: {self.process.stderr.read()}")

    def stopped_by(self, number: signal.Signals) -> tuple[int, str, str]:
        """Exit code, the rest of the log and stderr after a signal."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=15)
        return self.process.returncode, out, err


def command(*arguments: str, program: Sequence[str] = BROKER) -> list[str]:
    """The command line of a broker with warnings as errors, as for the tests themselves."""
    return [sys.executable, "-W", "error", *program, *arguments]


def environment() -> dict[str, str]:
    """An environment in which nothing configures the broker but what a test says."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("LEVERET_", "RABBITMQ_"))
    }
    return clean | {"PYTHONPATH": str(ROOT)}

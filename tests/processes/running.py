"""A broker process, for tests of signals, limits, logs and sockets."""

import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from processes import forking

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel
from processes.commands import execute

ROOT = Path(__file__).parents[2]
BROKER = ("-m", "leveret")
UNWATCHED = ("--set", "prometheus.enabled=false", "--set", "management.enabled=false")
"""Disables the HTTP listeners, which most tests do not need: they take time to load and fixed ports."""
SLOW_STEP = "slow step of the event loop"
"""Text of the log for a step with more processor time than `debug.slow_step`, which no test may cause."""
_given: set[int] = set()
"""Ports that were returned, some of which are not in use all the time."""
FIRST_PORT = 10_000
"""The lowest port of a server of a test."""
START_SECONDS = 120.0
"""Seconds to wait for a line of the log; much more than any test needs, on a busy machine too."""
END_SECONDS = 30.0
"""Seconds to wait until a killed process, and all that wrote to its pipes, have ended."""
LISTENING = re.compile(r"started TCP listener on (\S+):(\d+)$")
LISTENING_TLS = re.compile(r"started TLS \(SSL\) listener on (\S+):(\d+)$")


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses now, and that was not returned before.

    It is below those that the system gives to outgoing connections: hundreds of them are made in the second until a server
    listens, and the one that had its port would keep it away. The system's `/proc` says which those are, if there is one.
    """
    chosen = random.SystemRandom()  # hypothesis seeds the other one, in each process in the same way
    given = Path("/proc/sys/net/ipv4/ip_local_port_range")
    below = int(given.read_text().split()[0]) if given.exists() else FIRST_PORT
    while below > FIRST_PORT:
        port = chosen.randrange(FIRST_PORT, below)
        if port in _given:
            continue
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def watched() -> tuple[str, ...]:
    """Return words for a broker that serves metrics on a free port."""
    return ("--set", "prometheus.enabled=true", "--set", f"prometheus.tcp.port={free_port()}")


class Running:
    """A broker process that listens on a free port.

    Args:
        tmp_path: parent of its data directory.
        arguments: more words for `leveret serve`.
        files: its limit of file descriptors; that of the tests by default.
        before: words before those of the interpreter, as of a tracer that runs it.
        program: words for the interpreter instead of those that start the broker as it is.
        is_judged: whether a slow step of its loop fails the test.
        is_forked: whether it may be forked from a process that has loaded the broker, which takes less time; not for
            tests of the start itself, of memory, or of what is loaded late. With a limit of its own, words before it or
            a program it never is.
        is_late: whether a program of the form `-c` changes what is loaded already, so that it may be forked, too.

    """

    def __init__(
        self,
        tmp_path: Path,
        *arguments: str,
        files: int | None = None,
        before: Sequence[str] = (),
        program: Sequence[str] = BROKER,
        is_judged: bool = True,
        is_forked: bool = True,
        is_late: bool = False,
    ) -> None:
        self.data_dir = tmp_path / "data"
        self.slow: list[str] = []
        """Lines of the log about slow steps; meaningless under a tracer, and in a program of the test's own."""
        self._is_judged = is_judged and not before and program is BROKER
        self.address = ("", 0)  # the first
        self.addresses: list[tuple[str, int]] = []
        self.lines: list[str] = []
        """The lines of the log that `wait_for` has read."""
        self.tls_address = ("", 0)  # the last
        serve = (
            "serve",
            "--data-dir",
            str(self.data_dir),
            "--set",
            "listeners.tcp.1=127.0.0.1:0",
            *UNWATCHED,
        )
        is_plain = files is None and not before and (program is BROKER or is_late)
        if is_forked and is_plain and forking.is_possible():
            changed = program if is_late else ()
            self.process = forking.Forked([*changed, *serve, *arguments], cwd=tmp_path, env=environment())
            return
        words = [*before, *command(*serve, *arguments, program=program)]
        if files is not None:
            words = ["/bin/sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *words]
        self.process: subprocess.Popen[str] = subprocess.Popen(
            [*leash(), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=environment(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        out, _ = self.process.communicate(timeout=END_SECONDS)
        self.look_for_slow_steps(out or "")
        if kind is None:
            self.judge()

    def look_for_slow_steps(self, text: str) -> None:
        """Keep the lines of a part of the log that report slow steps, if they are to be judged."""
        if not self._is_judged:
            return
        self.slow += [line for line in text.splitlines() if SLOW_STEP in line]

    def judge(self) -> None:
        """Raise AssertionError if the log that was read reports a slow step."""
        assert not self.slow, self.slow

    def resident_memory(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024

    def wait_for(self, text: str, seconds: float = START_SECONDS) -> str:
        """Return the next line of the log with ``text``; the process is killed if none comes within so many seconds."""
        with deadline(self.process, seconds) as late:
            for line in self.process.stdout:
                if (match := LISTENING.search(line)) is not None:
                    self.addresses.append((match[1].strip("[]"), int(match[2])))
                    self.address = self.addresses[0]
                if (match := LISTENING_TLS.search(line)) is not None:
                    self.tls_address = (match[1].strip("[]"), int(match[2]))
                self.look_for_slow_steps(line)
                self.lines.append(line)
                if text in line:
                    return line
            why = f"within {seconds} s" if late.is_set() else self.process.stderr.read()
        raise AssertionError(f"no line with {text!r}: {why}")

    def stopped_by(self, number: signal.Signals) -> tuple[int, str, str]:
        """Return the exit code, the rest of the log and stderr after a signal."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=15)
        self.look_for_slow_steps(out)
        self.judge()
        return self.process.returncode, out, err


@contextmanager
def serving(
    folder: Path, *arguments: str, settings: Mapping[str, object] | None = None, **options: Any
) -> Iterator[Running]:
    """Run a broker that clients may connect to; `options` are those of `Running`."""
    words = [word for key, value in (settings or {}).items() for word in ("--set", f"{key}={value}")]
    with Running(folder, *arguments, *words, **options) as running:
        running.wait_for("Server startup complete")
        yield running


@contextmanager
def channel_to(address: tuple[str, int]) -> "Iterator[BlockingChannel]":
    """Open a channel of pika on a connection of its own, which is closed at the end of the block."""
    import pika

    with pika.BlockingConnection(pika.ConnectionParameters(*address)) as connection:
        yield connection.channel()


@contextmanager
def deadline(process: "subprocess.Popen[Any]", seconds: float) -> Iterator[threading.Event]:
    """Kill a process and its children if the block takes longer; the event is set then.

    A reader of its pipes gets EOF then.
    """
    late = threading.Event()

    def end() -> None:
        late.set()
        for pid in (*children(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield late
    finally:
        timer.cancel()


def children(pid: int) -> list[int]:
    """Return the processes that all threads of a process have started, and theirs."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text().split())
    return [*found, *(grandchild for child in found for grandchild in children(child))]


def leash() -> list[str]:
    """Return words before a command that let its process end with the test run that started it, however that ends."""
    setpriv = shutil.which("setpriv")
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return []  # a leash to a thread ends with that thread
    return [setpriv, "--pdeathsig", "KILL"]


def command(*arguments: str, program: Sequence[str] = BROKER) -> list[str]:
    """Return the command line of a broker with warnings as errors, as for the tests themselves."""
    return [sys.executable, "-W", "error", *program, *arguments]


def write_command(folder: Path) -> Path:
    """Write the command `leveret` into a new folder for the PATH, which is returned."""
    folder.mkdir()
    leveret = folder / "leveret"
    leveret.write_text(f'#!/bin/sh\nexec {shlex.join(command())} "$@"\n', encoding="utf-8")
    leveret.chmod(0o755)
    return folder


def finished(*words: str, cwd: Path, seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run a command of `leveret` to its end; it is killed after so many seconds, and TimeoutExpired raised."""
    if not forking.is_possible():
        return execute(command(*words), cwd=cwd, env=environment(), timeout=seconds)
    with forking.Forked(words, cwd=cwd, env=environment()) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        finally:
            process.kill()
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def environment() -> dict[str, str]:
    """Return an environment in which only the test configures the broker."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("LEVERET_", "RABBITMQ_"))
    }
    return clean | {
        "PYTHONPATH": str(ROOT),
        "XDG_RUNTIME_DIR": os.devnull,
    }  # commands of other tests do not find it

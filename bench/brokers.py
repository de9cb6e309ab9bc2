"""Starts and stops the brokers of a benchmark, each in its own process on an ephemeral port.

Four are known: `leveret` (this checkout), `rabbitmq` (the machine's own installation, with a node name, ports and a
data directory of its own), `rabbitmq-4.3` (the same of `make peer-4.3`; needs root) and `relay` (`bench/relay.py`, the
yardstick). Nothing outside the given directory is written, and only processes started here are stopped.
"""

import contextlib
import dataclasses
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ("-m", "leveret")
FORMER = ("-m", "broker")
"""Program arguments for revisions without the package `leveret`."""
NAMES = ("leveret", "rabbitmq", "rabbitmq-4.3", "relay")
SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
PEER_ROOT = os.environ.get("PEER_ROOT") or str(ROOT / "build" / "rabbitmq-4.3")
IN_PEER_ROOT = (str(ROOT / "tests" / "services" / "rabbitmq_root.sh"), "run", PEER_ROOT)
"""Beginning of a command that runs in the folder of RabbitMQ 4.3."""
ERLANG_FLAGS = "+sbwt none"
START_LIMIT = 60.0
STOP_LIMIT = 20.0
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
COUNTER = re.compile(r"(\w+)=(\d+)")
LISTENING = re.compile(rb"started TCP listener on \S*?:(\d+)")
LISTENER = re.compile(r"listeners\.tcp\.1 = 127\.0\.0\.1:(\d+)")
READY = b"Server startup complete"


class BrokerError(Exception):
    """Raised when a broker cannot be started here; the text says why."""


@dataclasses.dataclass(slots=True)
class Broker:
    """A running broker: its port, its process and its settings."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    pid: int
    started_in: float
    settings: str
    log: Path

    def cpu_seconds(self) -> float:
        """Return the user and system time used by the broker's process so far, in seconds."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND

    def rss(self) -> int:
        """Return the resident memory of the broker's process, in bytes."""
        return self._status("VmRSS")

    def peak_rss(self) -> int:
        """Return the peak resident memory since the start or the last `reset_peak`, in bytes."""
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        """Reset `peak_rss`, if the kernel permits."""
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def _status(self, field: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
        return 0

    def disk_octets(self) -> int:
        """Return the bytes that the broker's process has caused to be written to a disk so far."""
        return self._io("write_bytes")

    def written_octets(self) -> int:
        """Return the bytes that the broker's process has written to files and sockets so far."""
        return self._io("wchar")

    def _io(self, field: str) -> int:
        for line in Path(f"/proc/{self.pid}/io").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1])
        return 0

    def anonymous_rss(self) -> int:
        """Return the anonymous resident memory of the broker's process, in bytes."""
        return self._status("RssAnon")

    def file_systems(self) -> set[str]:
        """Return type and source of each file system on which the process has files open for writing."""
        found = set()
        for link in Path(f"/proc/{self.pid}/fd").iterdir() if self.pid else ():
            with contextlib.suppress(OSError):
                flags = Path(f"/proc/{self.pid}/fdinfo/{link.name}").read_text().split()[3]
                writes = int(flags, 8) & os.O_ACCMODE
                if writes and link.is_file() and int(link.name) > 2:  # those up to 2 are its log
                    found.add(file_system(link.stat().st_dev))
        return found

    def storage_counters(self) -> dict[str, int]:
        """Return the storage counters that Leveret logged when it stopped; empty if it logged none."""
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if "storage: " in line]
        found = [dict(COUNTER.findall(line)) for line in lines]
        counters = next((each for each in reversed(found) if "commits" in each), {})
        return {name: int(value) for name, value in counters.items()}

    def control_directory(self) -> Path:
        """Return the directory with the socket of the management API."""
        (found,) = self.log.parent.rglob("ctl.sock")
        return found.parent

    def kill(self) -> None:
        """Kill the process with SIGKILL, and wait for it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self, limit: float = STOP_LIMIT) -> None:
        """Ask the process to end, wait `limit` seconds, and end its process group if it does not."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            try:
                self.process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()


@contextlib.contextmanager
def running(
    names: Sequence[str], settings: Sequence[str] = (), relay: Path | None = None
) -> Iterator[dict[str, Broker]]:
    """Run the named brokers for the duration of a `with` block.

    Args:
        names: which of `NAMES`.
        settings: `KEY=VALUE` pairs for Leveret's `--set`.
        relay: a script to run with a port instead of the project's own relay.

    Raises:
        BrokerError: one of them is not installed or does not come up within a minute.
    """
    with (
        tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as scratch,
        contextlib.ExitStack() as stack,
    ):
        # If the benchmark is interrupted, the brokers end with it.
        previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        stack.callback(signal.signal, signal.SIGTERM, previous)
        brokers = {}
        for name in names:
            directory = Path(scratch, name)
            directory.mkdir()
            brokers[name] = broker = start(name, directory, settings, relay)
            stack.callback(broker.stop)
        yield brokers


@contextlib.contextmanager
def alone(
    settings: Sequence[str] = (), parent: str | None = None, limit: float = STOP_LIMIT
) -> Iterator[Broker]:
    """Run Leveret in a new directory, below `parent`, for the duration of a `with` block; `limit` is of its stop."""
    with tempfile.TemporaryDirectory(
        prefix="leveret-bench-", dir=parent, ignore_cleanup_errors=True
    ) as scratch:
        broker = start("leveret", Path(scratch), settings)
        try:
            yield broker
        finally:
            broker.stop(limit)


def start(
    name: str,
    directory: Path,
    settings: Sequence[str] = (),
    relay: Path | None = None,
    *,
    root: Path = ROOT,
    limit: float = START_LIMIT,
    program: Sequence[str] = PROGRAM,
    rabbitmq: Sequence[str] = (),
    plugins: Sequence[str] = (),
) -> Broker:
    """Start one broker with its files under `directory`, and return when clients can connect.

    Args:
        name: one of `NAMES`.
        directory: directory of its log and data; data of an earlier start is recovered.
        settings: `KEY=VALUE` pairs for Leveret's `--set`.
        relay: a script to run instead of the project's own relay.
        root: the checkout whose Leveret is started.
        limit: maximum seconds to start.
        program: Python arguments that run Leveret.
        rabbitmq: lines for RabbitMQ's configuration, after the port.
        plugins: those that RabbitMQ loads.

    Raises:
        BrokerError: it is not installed, ended at once, or was not ready within a minute.
    """
    match name:
        case "leveret":
            return _start_leveret(directory, settings, root, limit, program)
        case "rabbitmq":
            return _start_rabbitmq(name, _installed(), directory, rabbitmq, plugins)
        case "rabbitmq-4.3":
            return _start_rabbitmq(name, _of_folder(), directory, rabbitmq, plugins)
        case "relay":
            return _start_relay(directory, relay)
    message = f"no broker called {name!r}; known: {', '.join(NAMES)}"
    raise BrokerError(message)


def machine_cpu_seconds() -> float:
    """Return the CPU time used by the whole machine so far, in seconds."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND


def flushes(directory: Path) -> int | None:
    """Return the flushes finished so far by the disk of `directory`, for all processes; None if unknown."""
    device = directory.stat().st_dev
    counters = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    fields = counters.read_text().split() if counters.exists() else []
    return int(fields[15]) if len(fields) > 15 else None


def file_system(device: int) -> str:
    """Return type and source of the file system of a device number (`st_dev`)."""
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if line.split()[2] == number:
            return " ".join(line.partition(" - ")[2].split()[:2])
    return f"device {number}"


def free_port() -> int:
    """Return a TCP port on loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _start_leveret(
    directory: Path, settings: Sequence[str], root: Path, limit: float, program: Sequence[str]
) -> Broker:
    chosen = ["listeners.tcp.1=127.0.0.1:0", *settings]
    if program == PROGRAM and not (root / "leveret").is_dir():
        program = FORMER
    command = [sys.executable, *program, "serve", "--data-dir", str(directory / "data")]
    command += [word for setting in chosen for word in ("--set", setting)]
    process, log, began = _launch(command, directory, {}, root)
    text = _wait_for(process, log, READY, "leveret", limit)
    found = LISTENING.search(text)
    if found is None:
        message = f"leveret did not log its port, see {log}"
        raise BrokerError(message)
    return Broker(
        name="leveret",
        port=int(found[1]),
        process=process,
        pid=process.pid,
        started_in=time.monotonic() - began,
        settings=" ".join([*settings, f"(Python {sys.version.split()[0]} of {sys.base_prefix})"]),
        log=log,
    )


def _start_relay(directory: Path, script: Path | None) -> Broker:
    port = free_port()
    program = [str(script)] if script else ["-m", "bench.relay"]
    process, log, began = _launch([sys.executable, *program, str(port)], directory, {})
    while not _listens(port):
        if process.poll() is not None or time.monotonic() - began > START_LIMIT:
            message = f"the relay does not listen: {log.read_text()[-300:]}"
            raise BrokerError(message)
        time.sleep(0.005)
    return Broker(
        name="relay",
        port=port,
        process=process,
        pid=process.pid,
        started_in=time.monotonic() - began,
        settings=f"{script or 'bench/relay.py'}: no checks, no storage, no flow control",
        log=log,
    )


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _installed() -> list[str]:
    """Return the command of this machine's RabbitMQ."""
    found = SERVER if Path(SERVER).exists() else shutil.which("rabbitmq-server")
    if found is None:
        message = "rabbitmq-server is not installed (Debian: rabbitmq-server); leave it out with --brokers"
        raise BrokerError(message)
    return [found]


def _of_folder() -> list[str]:
    """Return the command of the RabbitMQ 4.3 in its folder."""
    if os.geteuid() != 0 or not Path(PEER_ROOT + SERVER).is_symlink():
        message = f"RabbitMQ 4.3 is not in {PEER_ROOT} (make peer-4.3), or this is not root; see --brokers"
        raise BrokerError(message)
    return [*IN_PEER_ROOT, SERVER]


def rabbitmq_environment(directory: Path, node: str) -> dict[str, str]:
    """Return the variables that name RabbitMQ's node, and have it keep all its files in a directory."""
    return {
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_DIST_PORT": str(free_port()),
        "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
        "RABBITMQ_LOG_BASE": str(directory / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_CONF_ENV_FILE": str(directory / "env"),
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERLANG_FLAGS,
    }


def _start_rabbitmq(
    name: str, command: list[str], directory: Path, lines: Sequence[str], plugins: Sequence[str]
) -> Broker:
    file = directory / "rabbitmq.conf"
    former = (
        LISTENER.search(file.read_text()) if file.exists() else None
    )  # the data belong to the node of that name
    port = int(former[1]) if former else free_port()
    (directory / "plugins").write_text(f"[{','.join(plugins)}].\n")
    (directory / "env").write_text("")
    configuration = [f"listeners.tcp.1 = 127.0.0.1:{port}", *lines]
    file.write_text("\n".join(configuration) + "\n")
    environment = {"HOME": str(directory), **rabbitmq_environment(directory, f"bench{port}@localhost")}
    process, log, began = _launch(command, directory, environment)
    _wait_for(process, log, READY, name)
    return Broker(
        name=name,
        port=port,
        process=process,
        pid=_descendant(process.pid, "beam.smp"),
        started_in=time.monotonic() - began,
        settings=f"{', '.join(lines) or 'defaults'}, {', '.join(plugins) or 'no plugins'}, {ERLANG_FLAGS}",
        log=log,
    )


def _launch(
    command: list[str], directory: Path, environment: dict[str, str], root: Path = ROOT
) -> tuple[subprocess.Popen[bytes], Path, float]:
    log = directory / "output.log"
    began = time.monotonic()
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command,
            cwd=root,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return process, log, began


def _wait_for(
    process: subprocess.Popen[bytes], log: Path, line: bytes, name: str, limit: float = START_LIMIT
) -> bytes:
    """Return the output of a starting broker once it contains `line`; otherwise end the broker."""
    try:
        return _printed(process, log, line, name, limit)
    except BaseException:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        raise


def _printed(process: subprocess.Popen[bytes], log: Path, line: bytes, name: str, limit: float) -> bytes:
    deadline = time.monotonic() + limit
    while line not in (text := log.read_bytes()):
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            tail = b"\n".join(text.splitlines()[-5:]).decode(errors="replace")
            reason = "ended at once" if ended else f"is not ready after {limit:.0f} s"
            message = f"{name} {reason}; its last lines:\n{tail}"
            raise BrokerError(message)
        time.sleep(0.005)
    return text


def _descendant(pid: int, command: str) -> int:
    """Return the process named `command` at or below `pid`; `pid` itself if there is none."""
    waiting = [pid]
    while waiting:
        candidate = waiting.pop()
        if Path(f"/proc/{candidate}/comm").read_text().strip() == command:
            return candidate
        for task in Path(f"/proc/{candidate}/task").iterdir():
            waiting += map(int, (task / "children").read_text().split())
    return pid

"""NATS JetStream beside the brokers: another protocol, by its own server and its own client for Java (`Load.java`).

The server is Debian's `nats-server` on the path, or the program that `NATS_SERVER` names. It confirms a message without
a flush of the disk: it flushes every two minutes.
"""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import brokers, maven, perftest

NAME = "nats"
LOAD = Path(__file__).with_name("Load.java")
ARTIFACT = ("io.nats", "jnats", "2.20.5")
START_SECONDS = 10.0
SHAPES = {  # of each workload: queues, connections that publish to each, their channels, connections that consume
    "persist-1500": (1, 1, 1, 1),
    "paper-1q": (1, 2, 2, 3),
    "paper-15q": (15, 2, 2, 3),
    "store-1500": (1, 1, 1, 0),
}
"""The workloads that it takes part in, all with windows of 200 and messages of 1,500 bytes."""


@contextmanager
def running() -> Iterator[tuple[str, str]]:
    """Run a server on a port of its own with an empty directory; yields its URL and its version.

    Raises:
        BrokerError: it is not there, or does not start.

    """
    program = os.environ.get("NATS_SERVER") or shutil.which("nats-server") or "/usr/sbin/nats-server"
    if not Path(program).exists():
        message = "nats-server is not installed (Debian: nats-server), and NATS_SERVER does not name it"
        raise brokers.BrokerError(message)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    port = brokers.free_port()
    with tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as scratch:
        words = ["--jetstream", "--store_dir", scratch, "--addr", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen([program, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not _listens(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    message = "nats-server does not listen"
                    raise brokers.BrokerError(message)
                time.sleep(0.05)
            yield f"nats://127.0.0.1:{port}", version.strip().removeprefix("nats-server: v")
        finally:
            process.terminate()
            process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def rate(url: str, workload: str, seconds: int, warm_up: int) -> float | None:
    """Return the messages a second of one run, the least of confirmed and consumed; None if it has no such workload.

    Raises:
        PerfTestError: the client is not there, or failed.

    """
    shape = SHAPES.get(workload)
    if shape is None:
        return None
    try:
        folder = maven.fetched(*ARTIFACT, perftest.CACHE)
    except maven.MavenError as error:
        raise perftest.PerfTestError(str(error)) from error
    numbers = [*shape, 200, 1500, seconds, warm_up]
    words = ["java", "-cp", f"{folder}/*", str(LOAD), url, *map(str, numbers)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=seconds + perftest.GRACE
    )
    found = re.search(r"^(\d+) (\d+) ([\d.]+)$", done.stdout, re.MULTILINE)
    if done.returncode or found is None:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"]
        message = f"the client of NATS failed: {lines[0]}"
        raise perftest.PerfTestError(message)
    confirmed, consumed, p99 = float(found[1]), float(found[2]), float(found[3])
    print(f"      {workload:<16}{NAME:<10}{confirmed:>9,.0f} {consumed:>9,.0f}  p99 {p99:.1f} ms", flush=True)
    return min(confirmed, consumed) if shape[-1] else confirmed

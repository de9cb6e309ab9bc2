"""Bad handshakes in full counts, and reloads (`make campaign NAME=handshakes`): 2,000 stalled, 100,000 mutated, 100,000 cycles.

Prints figures, and fails if the broker logs a traceback, leaks a socket, keeps a healthy client waiting, or grows by
more than 5 MiB over the cycles.
"""

import argparse
import contextlib
import random
import resource
import signal
import ssl
import sys
import tempfile
import threading
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))

from handshakes.attacks import (
    Healthy,
    client_hello,
    come_and_go,
    log_in,
    mutated,
    open_files,
    reload_under_load,
    send,
    settle,
    stalled,
    words,
)
from processes.running import Running, serving
from samples.certificates import Authority, Issued

STALLED = 2000
PARTS = ("reloads", "stalled", "mutated", "cycles")
GROWTH = 5 << 20
PATIENCE = 2.0
"""Seconds that 99 per cent of the answers to a healthy client may take at most beside stalled handshakes."""


class Reader(threading.Thread):
    """Reads the log of a broker, so that its pipe does not fill, and keeps the lines of tracebacks."""

    def __init__(self, running: Running) -> None:
        super().__init__(daemon=True)
        self.found: list[str] = []
        self._running = running
        self.start()

    def run(self) -> None:
        """Read until the broker ends."""
        for line in self._running.process.stdout:
            if "Traceback" in line or self.found:
                self.found.append(line)


def stall(running: Running, count: int) -> None:
    """Hold stalled handshakes beside a healthy client."""
    before, memory = open_files(running), running.resident_memory()
    with Healthy(running.tls_address) as healthy:
        healthy.go_on(500)
        alone = healthy.worst(0.99)
        since = len(healthy.seconds)
        with stalled(running.tls_address, count, [f"127.0.0.{each}" for each in range(2, 10)]):
            log_in(running.tls_address)
            healthy.go_on(2000)
            files, grown = open_files(running), running.resident_memory() - memory
        beside = healthy.worst(0.99, since)
        settle(running, before + 1)
    print(
        f"{count} stalled: p99 {beside * 1000:.1f} ms (alone {alone * 1000:.1f} ms), "
        f"{files - before} files more, {grown >> 20} MiB more"
    )
    assert beside <= PATIENCE, beside


def mutate(running: Running, count: int, seed: int) -> None:
    """Send mutated ClientHellos beside a healthy client."""
    chance = random.Random(seed)
    hellos = [client_hello(), client_hello(ssl.TLSVersion.TLSv1_2)]
    before, memory = open_files(running), running.resident_memory()
    with Healthy(running.tls_address) as healthy:
        for _ in range(count):
            send(running.tls_address, mutated(chance.choice(hellos), chance))
        healthy.go_on(10)
        settle(running, before + 1)
    log_in(running.tls_address)
    print(f"{count} mutated, seed {seed}: {(running.resident_memory() - memory) >> 10} KiB more")


def cycle(running: Running, count: int) -> None:
    """Connect and close, after a tenth to warm up."""
    come_and_go(running.tls_address, count // 10)
    memory = running.resident_memory()
    come_and_go(running.tls_address, count)
    grown = running.resident_memory() - memory
    print(f"{count} cycles: {grown >> 10} KiB more")
    assert grown <= GROWTH, grown


def reload(folder: Path, count: int) -> None:
    """Replace the certificate under load; every connection must be served, and every reload be in the audit log."""
    (other := folder / "other").mkdir()
    names = [Authority(folder, "first").server("old"), Authority(other, "second").server("new")]
    current = Issued(folder, "current", names[0].certificate, names[0].key)
    audit = folder / "audit.log"
    settings = ("ssl_handshake_rate=infinity", f"log.audit.file={audit}")
    with serving(folder, *words(folder, current, *settings), is_judged=False) as running:
        counts, failures = reload_under_load(running, current, names, count)
        code, out, _ = running.stopped_by(signal.SIGTERM)
    recorded = audit.read_text().count('"tls.reload"')
    print(
        f"{count} reloads beside {sum(counts)} connections: {len(failures)} failed, {recorded} in the audit log"
    )
    assert ([], 0, False, count) == (failures, code, "Traceback" in out, recorded)


def main() -> None:
    """Run all of them, each with a broker of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000, help="mutated ClientHellos, and cycles")
    parser.add_argument("--reloads", type=int, default=100)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="some of them")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    parts = {
        "stalled": lambda running: stall(running, STALLED),
        "mutated": lambda running: mutate(running, given.count, given.seed),
        "cycles": lambda running: cycle(running, given.count),
    }
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        folder = Path(place)
        (replaced := folder / "replaced").mkdir()
        if "reloads" in given.parts:
            reload(replaced, given.reloads)
        server = Authority(folder).server()
        for name, part in parts.items():
            if name not in given.parts:
                continue
            own = folder / name
            own.mkdir()
            settings = words(own, server, "ssl_handshake_rate=infinity")
            with serving(own, *settings, is_judged=False, is_forked=False) as running:
                reader = Reader(running)
                log_in(running.tls_address)
                part(running)
                running.process.send_signal(signal.SIGTERM)
                reader.join()
                assert (0, []) == (running.process.wait(), reader.found)


if __name__ == "__main__":
    main()

"""Benchmark of TLS beside plain connections: `make bench NAME=tls`.

Reports the rate and the latency under PerfTest over TLS beside plain ones, for each broker in the same run, the memory
of idle connections, the processor time of full and of resumed handshakes, and the time until new connections get a
renewed certificate: after SIGHUP, and after its files were replaced without a word. The certificate has a P-256 key;
clients speak TLS 1.3. A connection counts up to the broker's first method, with all that it costs beside the handshake.

A resumed handshake is hardly cheaper than a full one: with a P-256 key it spares one signature and the certificate,
about a fifth of OpenSSL's time, but not the key exchange, which TLS 1.3 repeats, nor the new tickets.
"""

import argparse
import asyncio
import contextlib
import os
import resource
import signal
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import uvloop

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from samples.certificates import Authority, client_context

from bench import brokers, loads, perftest
from bench.scale import SPARE, Idler
from bench.workloads import WORKLOADS

RATE_BAR, LATENCY_BAR = 0.5, 1.5
IDLE_BAR = 40 * 1024
FULL_BAR, RESUMED_BAR = 500, 1200
SIGNAL_BAR, FILES_BAR = 1.0, 65.0
"""Seconds until a renewed certificate is shown; the broker looks at the files once a minute."""
PARTS = ("rate", "latency", "idle", "handshakes", "reload")
LATENCY_FLAGS = "-x1 -y1 -q200 -s12 -r20000"
WARM_UP = 2
HEADER = b"AMQP\0\0\x09\x01"


@contextlib.contextmanager
def started(name: str, ca: Authority, *more: str) -> Iterator[tuple[brokers.Broker, int]]:
    """Run a broker with both kinds of listeners; yields it, and the port with TLS."""
    server = ca.server()
    port = brokers.free_port()
    keys = {
        "listeners.ssl.default": f"127.0.0.1:{port}",
        "ssl_options.certfile": server.certfile,
        "ssl_options.keyfile": server.keyfile,
        "ssl_options.cacertfile": ca.file,
    }
    versions = ["ssl_options.versions.1 = tlsv1.3", "ssl_options.versions.2 = tlsv1.2"]
    with tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as folder:
        broker = brokers.start(
            name,
            Path(folder),
            [f"{key}={value}" for key, value in keys.items()] + list(more),
            rabbitmq=[f"{key} = {value}" for key, value in keys.items()] + versions,
        )
        try:
            yield broker, port
        finally:
            broker.stop()


def perf_test(folder: Path, uri: str, flags: list[str], seconds: int) -> perftest.Figures:
    command = [
        "java",
        "-cp",
        f"{folder}/*",
        "com.rabbitmq.perf.PerfTest",
        "-h",
        uri,
        "-z",
        str(seconds),
        *flags,
    ]
    return perftest.parse(perftest._output(command, seconds), WARM_UP)


def loaded(options: argparse.Namespace, ca: Authority, parts: list[str]) -> bool:
    """Measure rates and latencies in turn; returns whether the bars were cleared."""
    folder = perftest.fetch()
    cleared = True
    for name in options.brokers.split(","):
        with started(name, ca) as (broker, port):
            uris = {
                "plain": f"amqp://guest:guest@127.0.0.1:{broker.port}",
                "TLS": f"amqps://guest:guest@localhost:{port}",
            }
            if "rate" in parts:
                workload = WORKLOADS["persist-1500"]
                rates: dict[str, list[float]] = {kind: [] for kind in uris}
                for number in range(options.rounds):
                    for kind, uri in uris.items():
                        tag = f"tls-{number}-{kind}"
                        (flags,) = loads.prepare(broker.port, workload, tag)
                        figures = perf_test(folder, uri, flags, options.seconds)
                        rates[kind].append(min(figures.sent, figures.received))
                        asyncio.run(loads.clean(broker.port, workload, tag))
                ratios = [one / other for one, other in zip(rates["TLS"], rates["plain"], strict=True)]
                print(
                    f"{name}, persist-1500: plain {median(rates['plain']):,.0f}/s, TLS {median(rates['TLS']):,.0f}/s, "
                    f"ratio {median(ratios):.2f} ({', '.join(f'{each:.2f}' for each in ratios)}), bar {RATE_BAR}",
                    flush=True,
                )
                cleared &= name != "leveret" or median(ratios) >= RATE_BAR
            if "latency" in parts:
                found: dict[str, list[float]] = {kind: [] for kind in uris}
                for _ in range(options.rounds):
                    for kind, uri in uris.items():
                        figures = perf_test(folder, uri, LATENCY_FLAGS.split(), options.seconds)
                        found[kind].append(figures.p99_latency_us or 0.0)
                ratio = median(found["TLS"]) / max(median(found["plain"]), 1.0)
                print(
                    f"{name}, 20,000 messages/s: p99 plain {median(found['plain']):,.0f} us, TLS "
                    f"{median(found['TLS']):,.0f} us, ratio {ratio:.2f}, bar {LATENCY_BAR}",
                    flush=True,
                )
                cleared &= name != "leveret" or ratio <= LATENCY_BAR
    return cleared


async def idle(port: int, count: int, context: ssl.SSLContext | None) -> list[Idler]:
    """Open connections that stay."""
    loop = asyncio.get_running_loop()
    left = iter(range(count))
    made: list[Idler] = []
    options = {} if context is None else {"ssl": context, "server_hostname": "localhost"}

    async def worker() -> None:
        for _ in left:
            _, idler = await loop.create_connection(lambda: Idler(0), "127.0.0.1", port, **options)
            await idler.done
            made.append(idler)

    await asyncio.gather(*[worker() for _ in range(32)])
    return made


async def memory(options: argparse.Namespace, ca: Authority) -> bool:
    """Measure the memory of idle connections."""
    cleared = True
    for kind in ("plain", "TLS"):
        with started("leveret", ca, "ssl_handshake_rate=infinity") as (broker, port):
            context = client_context(ca) if kind == "TLS" else None
            address = port if kind == "TLS" else broker.port
            first = await idle(address, 100, context)
            before = broker.rss()
            more = await idle(address, options.connections, context)
            await asyncio.sleep(1)
            each = (broker.rss() - before) / len(more)
            bar = f", bar {IDLE_BAR / 1024:.0f}" if kind == "TLS" else ""
            print(f"{len(more)} idle connections, {kind}: {each / 1024:.1f} KiB each{bar}", flush=True)
            cleared &= kind == "plain" or each <= IDLE_BAR
            for idler in (*first, *more):
                idler.transport.abort()
    return cleared


def handshakes(options: argparse.Namespace, ca: Authority) -> bool:
    """Measure the processor time of handshakes, up to the broker's first method."""
    cleared = True
    with started("leveret", ca, "ssl_handshake_rate=infinity") as (broker, port):
        plain = spent(broker, ca, broker.port, options.handshakes, None)
        print(
            f"{options.handshakes} plain connections: {plain * 1e3:.3f} ms of processor time each", flush=True
        )
        for kind, resumes, bar in (("full", False, FULL_BAR), ("resumed", True, RESUMED_BAR)):
            seconds = spent(broker, ca, port, options.handshakes, resumes)
            print(
                f"{options.handshakes} {kind} handshakes: {seconds * 1e3:.3f} ms of processor time each: "
                f"{1 / seconds:,.0f}/s on one core, bar {bar}",
                flush=True,
            )
            cleared &= 1 / seconds >= bar
    return cleared


def spent(broker: brokers.Broker, ca: Authority, port: int, count: int, resumes: bool | None) -> float:
    """Return the seconds of the broker's processor time per connection; without TLS if `resumes` is None."""
    connect_some(ca, port, count // 10, resumes)
    before = broker.cpu_seconds()
    clients = [threading.Thread(target=connect_some, args=(ca, port, count // 2, resumes)) for _ in range(2)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return (broker.cpu_seconds() - before) / (count // 2 * 2)


def connect_some(ca: Authority, port: int, count: int, resumes: bool | None) -> None:
    context = client_context(ca)
    session = None
    for number in range(count):
        with socket.create_connection(("127.0.0.1", port), 60) as raw:
            if resumes is None:
                raw.sendall(HEADER)
                raw.recv(4096)
                continue
            with context.wrap_socket(raw, server_hostname="localhost", session=session) as client:
                client.sendall(HEADER)
                client.recv(4096)
                if resumes:
                    if number and not client.session_reused:
                        raise SystemExit("a session was not resumed")
                    session = client.session


def reloads(options: argparse.Namespace, ca: Authority) -> bool:
    """Measure how long it takes until new connections get a renewed certificate."""
    with started("leveret", ca) as (broker, port):
        by_signal = []
        for _ in range(options.reloads):
            serial = ca.server().certificate.serial_number
            began = time.perf_counter()
            os.kill(broker.pid, signal.SIGHUP)
            by_signal.append(shown_after(ca, port, serial, began, 10 * SIGNAL_BAR, 0.001))
        print(
            f"{len(by_signal)} renewed certificates after SIGHUP: {min(by_signal) * 1e3:.0f} to "
            f"{max(by_signal) * 1e3:.0f} ms, bar {SIGNAL_BAR * 1e3:.0f}",
            flush=True,
        )
        silent = []
        for _ in range(options.replacements):
            serial = ca.server().certificate.serial_number
            silent.append(shown_after(ca, port, serial, time.perf_counter(), 2 * FILES_BAR, 0.05))
        if silent:
            print(
                f"{len(silent)} files replaced without a word: {min(silent):.1f} to {max(silent):.1f} s, "
                f"bar {FILES_BAR:.0f}",
                flush=True,
            )
    return max(by_signal) <= SIGNAL_BAR and max(silent, default=0.0) <= FILES_BAR


def shown_after(ca: Authority, port: int, serial: int, began: float, limit: float, pause: float) -> float:
    """Connect until the broker shows a certificate; returns the seconds since `began`, or raises SystemExit."""
    context = client_context(ca)
    while time.perf_counter() - began < limit:
        with (
            socket.create_connection(("127.0.0.1", port), 60) as raw,
            context.wrap_socket(raw, server_hostname="localhost") as client,
        ):
            if int(client.getpeercert()["serialNumber"], 16) == serial:
                return time.perf_counter() - began
        time.sleep(pause)
    raise SystemExit(f"the renewed certificate was not shown within {limit:.0f} s")


def main() -> int:
    """Measure, print, and return 0 if all bars were cleared, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--brokers", default="leveret,rabbitmq", help="for the rate and the latency")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=7, help="length of a run of PerfTest")
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--handshakes", type=int, default=4000)
    parser.add_argument("--reloads", type=int, default=20, help="after SIGHUP")
    parser.add_argument(
        "--replacements", type=int, default=1, help="of the files without a word, a minute each"
    )
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard != resource.RLIM_INFINITY and hard < options.connections + SPARE:
        raise SystemExit(f"{hard} file descriptors are too few for {options.connections} connections")
    print(f"{os.cpu_count()} processors, {ssl.OPENSSL_VERSION}")
    cleared = True
    with tempfile.TemporaryDirectory() as name:
        ca = Authority(Path(name))
        if "handshakes" in options.parts:
            cleared &= handshakes(options, ca)
        if "reload" in options.parts:
            cleared &= reloads(options, ca)
        if "idle" in options.parts:
            cleared &= uvloop.run(memory(options, ca))
        if {"rate", "latency"} & set(options.parts):
            try:
                cleared &= loaded(options, ca, options.parts)
            except (brokers.BrokerError, perftest.PerfTestError) as error:
                print(f"bench: {error}", file=sys.stderr)
                return 2
    return 0 if cleared else 1


if __name__ == "__main__":
    sys.exit(main())

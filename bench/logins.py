"""Benchmark of logins that a web service decides: `make bench NAME=logins`.

`silent`: the service takes requests and never answers. How long it takes until logins are refused, and the latency of
another client, which has logged in before, meanwhile and before. Its messages are timed from when they were due.
`cache`: logins a second of the broker's processor time that the cache decides, that the internal database does, and
that the service is asked about each time. A login counts up to the broker's second method, without TLS.
"""

import argparse
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import median

from pamqp import commands, frame

from bench import brokers, open_loop
from bench.endpoint import endpoint

REFUSED_BAR = 5.2
"""Seconds until a login is refused; the broker waits 5 for the service."""
LATENCY_BAR = 1.5
LOGINS_BAR = 1000
PARTS = ("silent", "cache")
AT_ONCE = 12
"""Logins that ask the silent service together."""
RATE = 2000
"""Messages a second of the other client."""
SECONDS = 6.0
"""Seconds of it before and meanwhile."""
ASKED = 1.0
"""Seconds after which a refusal cannot have come without asking the service."""
LIMIT = 30.0
"""Maximum seconds of a login."""
HEADER = b"AMQP\0\0\x09\x01"
TUNE, CLOSE = b"\x00\x0a\x00\x1e", b"\x00\x0a\x00\x32"


class Allowing(BaseHTTPRequestHandler):
    """A service that allows everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Allow."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"allow")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def allowing() -> Iterator[int]:
    """Run a service that allows everything; yields its port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Allowing) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


@contextlib.contextmanager
def silent() -> Iterator[int]:
    """Listen at a port where connections are accepted by the system, and nobody reads; yields it."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        yield listener.getsockname()[1]


def asking(port: int, *chain: str) -> list[str]:
    """Return the settings of a broker that asks a service of this machine."""
    paths = [
        f"auth_http.{kind}_path=http://127.0.0.1:{port}/{kind}"
        for kind in ("user", "vhost", "resource", "topic")
    ]
    steps = [f"auth_backends.{number}={name}" for number, name in enumerate(chain, 1)]
    cached = ["auth_cache.cached_backend=http"] if "cache" in chain else []
    return [*steps, *paths, *cached, "auth_http.http_method=post", "auth.max_failures=infinity"]


def log_in(port: int, user: str, password: str) -> tuple[bool, float]:
    """Log in once; returns whether the broker went on with the handshake, and the seconds until it answered."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as sock:
        sock.sendall(HEADER)
        sock.recv(4096)
        began = time.perf_counter()
        capabilities = {"capabilities": {"authentication_failure_close": True}}
        method = commands.Connection.StartOk(capabilities, "PLAIN", f"\0{user}\0{password}", "en_US")
        sock.sendall(frame.marshal(method, 0))
        while len(answer) < 11:
            octets = sock.recv(4096)
            if not octets:
                raise SystemExit("the broker has closed a connection without an answer")
            answer += octets
        took = time.perf_counter() - began
    if answer[7:11] not in {TUNE, CLOSE}:
        raise SystemExit(f"not an answer to a login: {answer[:40]!r}")
    return answer[7:11] == TUNE, took


def asked_in_vain(rounds: int) -> bool:
    """Measure refusals and the latency of another client while the service is silent."""
    load = open_loop.Load(RATE, SECONDS - open_loop.WARM_UP, persistent=False)
    refused: list[float] = []
    ratios: list[float] = []
    with silent() as service:
        for _ in range(rounds):
            # A broker of its own: after some failures it refuses logins without asking, for a while.
            with brokers.alone(asking(service, "internal", "http")) as broker:
                before, meanwhile = (measured(broker, load, count, refused) for count in (0, AT_ONCE))
            ratios.append(meanwhile / before)
            print(
                f"another client at {RATE:,} messages/s: p99 {before * 1e3:.1f} ms before, {meanwhile * 1e3:.1f} ms "
                f"while {AT_ONCE} logins wait for a silent service",
                flush=True,
            )
    print(
        f"{len(refused)} logins refused after {min(refused):.2f} to {max(refused):.2f} s, bar {REFUSED_BAR}; p99 of "
        f"the other client {median(ratios):.2f} x ({', '.join(f'{each:.2f}' for each in ratios)}), bar {LATENCY_BAR}",
        flush=True,
    )
    return max(refused) <= REFUSED_BAR and median(ratios) <= LATENCY_BAR


def measured(broker: brokers.Broker, load: open_loop.Load, count: int, refused: list[float]) -> float:
    """Return the p99 of a load in seconds, while so many strangers try to log in; adds when they are refused."""
    answers: list[tuple[bool, float]] = []
    strangers = [
        threading.Thread(target=lambda: answers.append(log_in(broker.port, "stranger", "x")))
        for _ in range(count)
    ]
    # Let the client have its connections and its first second first.
    timer = threading.Timer(open_loop.WARM_UP, lambda: [each.start() for each in strangers])
    timer.start()
    outcome = open_loop.run(endpoint(broker.port), load)
    timer.join()
    for each in strangers:
        each.join()
    if outcome.missing:
        raise SystemExit(f"{outcome.missing} messages are missing")
    if len(answers) < count or any(is_in or took < ASKED for is_in, took in answers):
        raise SystemExit(f"not all of {count} strangers were refused after the service was asked: {answers}")
    refused += [took for _, took in answers]
    return open_loop.percentile(outcome.confirmed, 99)


def counted(count: int) -> bool:
    """Measure logins a second of the broker's processor time."""
    found = {}
    with allowing() as service:
        for kind in ("internal", "http", "cache"):
            with brokers.alone(asking(service, kind)) as broker:
                user, password = ("guest", "guest") if kind == "internal" else ("somebody", "secret")
                many(broker.port, user, password, count // 10)
                before = broker.cpu_seconds()
                clients = [
                    threading.Thread(target=many, args=(broker.port, user, password, count // 2))
                    for _ in range(2)
                ]
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                found[kind] = count // 2 * 2 / (broker.cpu_seconds() - before)
                bar = f", bar {LOGINS_BAR:,}" if kind == "cache" else ""
                print(f"{count} logins, {kind}: {found[kind]:,.0f}/s of processor time{bar}", flush=True)
    return found["cache"] >= LOGINS_BAR


def many(port: int, user: str, password: str, count: int) -> None:
    """Log in so many times, one after the other."""
    for _ in range(count):
        is_in, _ = log_in(port, user, password)
        if not is_in:
            raise SystemExit(f"user {user} was refused")


def main() -> int:
    """Measure, print, and return 0 if all bars were cleared, 1 if not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, default=5, help="of the silent service")
    parser.add_argument("--logins", type=int, default=4000)
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no part called {', '.join(sorted(unknown))}")
    print(f"{os.cpu_count()} processors")
    cleared = True
    if "cache" in options.parts:
        cleared &= counted(options.logins)
    if "silent" in options.parts:
        cleared &= asked_in_vain(options.rounds)
    return 0 if cleared else 1


if __name__ == "__main__":
    sys.exit(main())

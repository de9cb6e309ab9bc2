"""The longest step of a broker's event loop while a client does something large, and the confirms of another meanwhile.

Each case runs beside a broker process of its own, which says at its end how much processor time its longest step took
and what that was. The lowest of several runs counts: the cost of a page fault or of a cold cache is not the broker's.

With `LEVERET_LOOP_RESULT`, the name of a file, a canary publishes to the same broker during the case, and to a
broker of its own for as long, and what was found is written to the file (`loop.steps` makes a table of that). The clients
of the case then leave the processors to the broker and the canary, as far as they want them.
"""

import json
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from conformance.codec import BODY, HEADER, METHOD, encode_header, encode_method, frame
from conformance.wire import Channel, Client
from loop.canary import Canary, Measurement
from processes.running import Running

BAR_MS = 50.0
"""Milliseconds of processor time that no step may take."""
BAR_P99_MS, BAR_P99_RATIO = 100.0, 3.0
"""The slowest hundredth of confirms beside a case may take so long, or so many times what it takes without the case."""
RUNS = int(os.environ.get("LEVERET_LOOP_RUNS", "3"))
RESULT = os.environ.get("LEVERET_LOOP_RESULT")
NICE = 10
"""Niceness of a case's clients beside the broker and the canary."""
IS_FULL = os.environ.get("LEVERET_LOOP_SIZES") == "full"
WAIT_SECONDS = 300.0 if IS_FULL else 50.0
_LONGEST = re.compile(r"longest step of the event loop: ([0-9.]+) ms, (.*)")


def size(full: int, short: int) -> int:
    """Return the number of objects that a case makes."""
    return full if IS_FULL else short


class Step(NamedTuple):
    """The longest step of one run, or the shortest of those of several."""

    milliseconds: float
    what: str


class Site:
    """A running broker, for one run of a case."""

    def __init__(self, broker: Running, canary: Canary | None = None) -> None:
        self.broker = broker
        self.clients: list[Client] = []
        self._canary = canary

    def prepared(self) -> None:
        """Judge the confirms of others from now on only: so far the case was prepared."""
        if self._canary is not None:
            self._canary.restart()

    def client(self, **tune: int) -> Client:
        """A client that has opened the default virtual host."""
        client = Client(self.broker.address, WAIT_SECONDS).login(**tune)
        self.clients.append(client)
        return client

    def channel(self, number: int = 1) -> Channel:
        return self.client().channel(number)


class Run(NamedTuple):
    """One run of a case.

    Attributes:
        step: the longest of the broker.
        seconds: how long the case took.
        beside: confirms beside it; None without a canary.
        alone: confirms of as long a run without the case; None if there was none.

    """

    step: Step
    seconds: float
    beside: Measurement | None
    alone: Measurement | None

    @property
    def is_prompt(self) -> bool:
        """Return whether confirms came in time, as far as there were any."""
        if self.beside is None or self.alone is None:
            return True
        return self.beside.since_sent.p99 <= max(BAR_P99_MS, BAR_P99_RATIO * self.alone.since_sent.p99)


def longest_step(home: Path, case: Callable[[Site], None], *settings: str, runs: int = RUNS) -> Step:
    """Run a case, up to so many times until a run is below all bars; returns the shortest longest step."""
    return best_of(
        run(home / str(number), case, *settings, has_canary=RESULT is not None) for number in range(runs)
    )


def best_of(runs: Iterable[Run]) -> Step:
    """Return the shortest longest step of runs, which end with one below all bars, and write the result if wanted."""
    found: list[Run] = []
    for each in runs:
        found.append(each)
        if each.step.milliseconds <= BAR_MS and each.is_prompt:
            break
    if RESULT is not None:
        _write(Path(RESULT), found)
    return min(each.step for each in found)


def run(home: Path, case: Callable[[Site], None], *settings: str, has_canary: bool) -> Run:
    """Run a case once; with a canary beside it, and as long without it, if wanted."""
    step, seconds, beside = _run(home, case, settings, has_canary=has_canary)
    alone = None
    if has_canary and RESULT is not None:
        _, _, alone = _run(
            home.with_name(f"{home.name}-alone"), lambda _: time.sleep(seconds), settings, has_canary=True
        )
    return Run(step, seconds, beside, alone)


def _run(
    home: Path, case: Callable[[Site], None], settings: Iterable[str], *, has_canary: bool
) -> tuple[Step, float, Measurement | None]:
    home.mkdir()
    words = [word for setting in settings for word in ("--set", setting)]
    broker = Running(
        home,
        *words,
        "--set",
        "log.connection.level=error",
        "--set",
        "log.channel.level=none",
        is_judged=False,
        is_forked=False,  # what is loaded late is a step, too
    )
    with ExitStack() as stack:
        stack.enter_context(broker)
        broker.wait_for("Server startup complete")
        canary = stack.enter_context(Canary(broker.address)) if has_canary else None
        site = Site(broker, canary)
        began = time.monotonic()
        try:
            if RESULT is None:
                case(site)
            else:
                _behind(case, site)
            seconds = time.monotonic() - began
            measured = canary.end() if canary is not None else None
        finally:
            for client in site.clients:
                client.close_socket()
        broker.process.send_signal(signal.SIGTERM)
        out, err = broker.process.communicate(timeout=WAIT_SECONDS)
    match = _LONGEST.search(out)
    assert match is not None, out[-2000:] + err[-2000:]
    assert "internal error" not in out, out[-4000:]
    return Step(float(match[1]), match[2]), seconds, measured


def _behind(case: Callable[[Site], None], site: Site) -> None:
    """Run a case in a thread that leaves the processors to others, if these want them: the broker and the canary."""
    failures: list[BaseException] = []

    def work() -> None:
        os.nice(NICE)  # of this thread only, on Linux
        try:
            case(site)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def _write(path: Path, found: list[Run]) -> None:
    """Keep the shortest step, and the confirms of the run in which these were best."""
    step = min(each.step for each in found)
    best = min(
        found, key=lambda each: (not each.is_prompt, each.beside.since_sent.p99 if each.beside else 0.0)
    )
    kept = {
        "milliseconds": step.milliseconds,
        "what": step.what,
        "runs": len(found),
        "seconds": round(best.seconds, 1),
        "is_prompt": best.is_prompt,
        "beside": best.beside and best.beside._asdict(),
        "alone": best.alone and best.alone._asdict(),
    }
    path.write_text(json.dumps(kept), encoding="utf-8")


# -- octets to send --------------------------------------------------------------------------------------------------


def method(name: str, channel: int = 1, **fields: Any) -> bytes:
    return frame(METHOD, channel, encode_method(name, **fields))


def publish(
    exchange: str, routing_key: str, body: bytes = b"", *, channel: int = 1, **properties: Any
) -> bytes:
    octets = method("basic.publish", channel, exchange=exchange, routing_key=routing_key)
    octets += frame(HEADER, channel, encode_header(len(body), **properties))
    return octets + frame(BODY, channel, body) if body else octets


def queues(channel: Channel, names: Iterable[str], **fields: Any) -> list[str]:
    """Declare queues, all at once; returns their names."""
    made = list(names)
    channel.client.raw(
        b"".join(method("queue.declare", channel.number, queue=name, nowait=True, **fields) for name in made)
    )
    sync(channel)
    return made


def bind(channel: Channel, names: Iterable[str], exchange: str, routing_key: str = "") -> None:
    """Bind queues, all at once."""
    channel.client.raw(
        b"".join(
            method(
                "queue.bind",
                channel.number,
                queue=name,
                exchange=exchange,
                routing_key=routing_key,
                nowait=True,
            )
            for name in names
        )
    )
    sync(channel)


def sync(channel: Channel) -> None:
    """Wait until the broker has carried out everything that was sent on the channel."""
    channel.call("basic.qos", prefetch_count=0)


def settled(channel: Channel, names: Iterable[str]) -> int:
    """Wait until queues have what was published to them; returns how many messages are ready."""
    return sum(channel.call("queue.declare", queue=name, passive=True).message_count for name in names)


def drain(client: Client, marker: bytes) -> None:
    """Read and forget everything up to octets that stand at the end of what is to come."""
    client.socket.settimeout(WAIT_SECONDS)
    tail, client._buffer = client._buffer, b""
    while marker not in tail[-len(marker) - 16 :]:
        data = client.socket.recv(1 << 20)
        if not data:
            raise AssertionError("the broker has closed the connection")
        tail = tail[-64:] + data


def fill(channel: Channel, queue: str, count: int, *, body: bytes = b"x", **properties: Any) -> None:
    """Put so many equal messages into a queue, and a last one with the body `last`."""
    one = publish("", queue, body, channel=channel.number, **properties)
    many = max(1, 1_000_000 // len(one))
    left = count - 1
    while left > 0:
        channel.client.raw(one * min(many, left))
        left -= many
    channel.client.raw(publish("", queue, b"last one", channel=channel.number, **properties))
    sync(channel)


def consume_all(channel: Channel, queue: str, *, multiple_channels: int = 1) -> None:
    """Consume a filled queue without a prefetch, until the last message is here and nothing is acked."""
    del multiple_channels
    channel.call("basic.consume", queue=queue, consumer_tag="c")
    drain(channel.client, b"last one\xce")


def cut(client: Client) -> None:
    """Lose the connection without a word."""
    client.socket.shutdown(socket.SHUT_RDWR)
    client.close_socket()

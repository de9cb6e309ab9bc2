"""Microseconds per message of the broker's own code, without sockets: `make bench NAME=hotpath`.

Each case feeds prepared reads one by one to a `Connection` whose driver discards the frames, and prints process CPU per
message: the least of several rounds, because noise only ever adds. The difference between two lines is the cost of the
stage between them. `--against REF` runs the same cases on another git revision, interleaved, and prints the ratios.
"""

import argparse
import contextlib
import gc
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from struct import pack
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = (
    "leveret.storage.store.lmdb_environment",
    "leveret.storage.store.lmdb_transactions",
    "leveret.storage.store.tables",
    "storage.table",
)
"""Modules with the size of LMDB's map, of this revision and of earlier ones."""
READ = 64 * 1024
JOIN_LIMIT = 128 * 1024  # that of the driver
LARGE_ROUND = 3  # messages of 1 MiB
NOW = 0.0
ENOUGH = 20
MOST = 1.02
JUDGED = {
    "hand over, no ack",
    "hand over, ack each",
    "hand over, ack each, prefetch 200",
    "hand over, ack multiple",
    "hand over, ack each, confirm",
    "fan-out to 5, no ack, per copy",
}
"""Bars of autoack-12, fan-1x5, ack and confirm-ack: features for durable messages must not slow down transient ones."""

# Former paths of the measured modules, because earlier revisions run the same cases.
FORMER = {
    "leveret.broker.amqp.codec": "broker.amqp.codec",
    "leveret.broker.amqp.commands": "broker.amqp.commands",
    "leveret.broker.config.config": "broker.config",
    "leveret.broker.connection.connection": "broker.connection",
    "leveret.broker.counters.sampling": "broker.meters",
    "leveret.broker.persistence.data_store": "broker.disk",
    "leveret.broker.scheduling.time_slices": "broker.slices",
    "leveret.broker.server.server": "broker.server",
}


def measured(name: str, *attributes: str) -> Any:
    """Return attributes of a module of the measured revision; None if that lacks one.

    That revision's folder is first on the path, whatever is installed: one without a folder `leveret` has the modules
    at their former places.
    """
    found = importlib.util.find_spec("broker")
    places = list(found.submodule_search_locations or ()) if found is not None else []
    if places and not (Path(places[0]).parent / "leveret").is_dir():
        name = FORMER[name]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return None
    values = [
        getattr(module, next(one for one in each.split("|") if hasattr(module, one))) for each in attributes
    ]
    return values[0] if len(values) == 1 else values


encode_method = measured("leveret.broker.amqp.codec", "encode_method")
Basic, Channel, Confirm, Wire, Queue, make = measured(
    "leveret.broker.amqp.commands", "Basic", "Channel", "Confirm", "Connection", "Queue", "make"
)
Config = measured("leveret.broker.config.config", "Config")
Connection = measured("leveret.broker.connection.connection", "Connection")
Server = measured("leveret.broker.server.server", "Server")


class Sink:
    """A driver that counts bytes and keeps the delivery tags to ack."""

    def __init__(self) -> None:
        self.octets = 0
        self.connection = None

    def flush(self) -> None:
        """Take the contents of the outbox."""
        outbox = self.connection.outbox
        if outbox.pending > JOIN_LIMIT:
            self.octets += sum(map(len, outbox.frames))
        else:
            self.octets += len(b"".join(outbox.frames))
        outbox.frames.clear()
        outbox.drained()

    def close(self, delay: float = 0.0) -> None:
        """Do nothing: there is no socket."""

    def admitted(self) -> None:
        """Do nothing on login."""

    def is_heard(self) -> bool:
        """Return whether data was received lately."""
        return True


def new_server(*, measured_for_export: bool = False):
    """Return a server whose loop never runs, with a disk and measured as for an export if this revision can."""

    store = measured("leveret.broker.persistence.data_store", "DataStore|Disk")
    if store is None:  # earlier revisions have none
        server = Server(Config())
    else:
        for name in ENVIRONMENTS:
            with contextlib.suppress(ModuleNotFoundError):
                # nothing is written, and valgrind has no space for more
                importlib.import_module(name).MAP_SIZE = 1 << 26
        directory = tempfile.TemporaryDirectory(prefix="hotpath-")
        config = Config()
        disk = store(Path(directory.name), config.storage, ram_limit=config.storage.ram_limit)
        server = Server(config, disk)
        disk.environment.close()
        server.scratch = directory  # removed with the server
        if hasattr(server.turn, "is_backlogged"):
            server.turn.is_backlogged = lambda: False  # nothing commits what is journaled here
    getattr(server, "loop", server).now = lambda: NOW
    slices = measured("leveret.broker.scheduling.time_slices", "TimeSlices|Slices")
    if slices is not None:
        server.turn.slices = slices()  # no step ends early, however slow a profiler makes the broker
    events = measured("leveret.broker.counters.sampling", "Events") if measured_for_export else None
    if events is not None:
        context_of(server).events = events()
    return server


def connect(server, channels: Sequence[int] = (1,)):
    """Return an open connection and its sink."""

    sink = Sink()
    connection = sink.connection = Connection(server, sink, ("127.0.0.1", 1), ("127.0.0.1", 2), NOW)
    connection.receive(
        b"AMQP\x00\x00\x09\x01"
        + encode_method(0, make(Wire.StartOk, {}, "PLAIN", "\0guest\0guest", "en_US"))
        + encode_method(0, Wire.TuneOk(2047, 131072, 0))
        + encode_method(0, make(Wire.Open, "/", "", False))
        + b"".join(encode_method(number, make(Channel.Open, "0")) for number in channels)
    )
    finish(server)
    assert connection.state == "open", connection.close_reason
    return connection


def context_of(server):
    """Return the object with the time of the turn and the latencies: the turn itself in earlier revisions."""
    return getattr(server, "context", server.turn)


def finish(server) -> None:
    """Do the driver's work after a read."""
    outboxes, server.turn.outboxes = server.turn.outboxes, []
    for outbox in outboxes:
        outbox.flush()
    latencies = getattr(context_of(server), "latencies", None)
    if latencies is not None and latencies.is_ending:
        latencies.settle(time.monotonic_ns())
    while server.turn.unfinished or server.turn.queues:
        server.turn.resume_unfinished()
        server.turn.run()
        finish(server)


def frame(kind: int, number: int, payload: bytes) -> bytes:
    """Return one frame."""
    return pack(">BHI", kind, number, len(payload)) + payload + b"\xce"


def publish(
    exchange: str, key: str, body: bytes, number: int = 1, properties: bytes = b"\x10\x00\x01"
) -> bytes:
    """Return the three frames of one publish."""
    address = bytes((len(exchange),)) + exchange.encode() + bytes((len(key),)) + key.encode()
    method = frame(1, number, b"\x00\x3c\x00\x28\x00\x00" + address + b"\x00")
    header = frame(2, number, pack(">HHQ", 60, 0, len(body)) + properties)
    return method + header + (frame(3, number, body) if body else b"")


def reads(messages: Sequence[bytes], size: int = READ) -> list[bytes]:
    """Split a stream into reads at arbitrary places."""
    stream = b"".join(messages)
    return [stream[at : at + size] for at in range(0, len(stream), size)]


def run(
    count: int, prepared: Sequence[bytes], server, connection, after: Callable[[], None] | None = None
) -> float:
    """Return the CPU microseconds per message of feeding the reads."""
    gc.collect()  # garbage of earlier cases must not count here
    began = time.process_time()
    context = context_of(server)
    timed = hasattr(context, "now")
    for data in prepared:
        if timed:
            context.now = time.monotonic_ns()
        connection.receive(data)
        finish(server)
        if after is not None:
            after()
    return (time.process_time() - began) / count * 1e6


def declare(server, connection, name: str, **consume: object):
    """Declare a queue, and optionally a consumer."""

    arguments = {"x-confirm-mode": ("longstr", consume["mode"])} if "mode" in consume else {}
    connection.receive(
        encode_method(1, make(Queue.Declare, 0, name, False, False, False, False, False, arguments))
    )
    if consume:
        prefetch = consume.get("prefetch", 0)
        connection.receive(encode_method(1, make(Basic.Qos, 0, prefetch, False)))
        connection.receive(
            encode_method(1, make(Basic.Consume, 0, name, "ctag", False, consume["no_ack"], False, False, {}))
        )
    finish(server)


def simple(
    count: int,
    *,
    queue: bool = True,
    body: bytes = b"x" * 12,
    vary: bool = False,
    measured: bool = False,
    octets: int = READ,
    **consume: object,
) -> float:
    """Publish through the default exchange to one queue, in reads of `octets` bytes."""
    server = new_server(measured_for_export=measured)
    publisher, consumer = connect(server), connect(server)
    if queue:
        declare(server, consumer, "q", **consume)
    if vary:
        messages = [publish("", "q", body, properties=b"\x00\x80\x08%08d" % n) for n in range(count)]
    else:
        messages = [publish("", "q", body)] * count
    confirming = consume.get("confirm")
    if confirming:
        publisher.receive(encode_method(1, Confirm.Select()))
    acked = 0

    def ack() -> None:
        nonlocal acked
        channel = consumer.channels[1]
        last = channel.delivery_tag
        if last == acked:
            return
        if consume.get("multiple"):
            data = frame(1, 1, pack(">HHQB", 60, 80, last, 1))
        else:
            data = b"".join(frame(1, 1, pack(">HHQB", 60, 80, tag, 0)) for tag in range(acked + 1, last + 1))
        acked = last
        consumer.receive(data)
        finish(server)
        if len(channel.unacked):
            ack()

    prepared = reads(messages, octets)
    if consume and not consume["no_ack"]:
        cost = run(count, prepared, server, publisher, ack)
    else:
        cost = run(count, prepared, server, publisher)
    if consume:
        assert consumer.channels[1].delivered == count
    return cost


def fan_out(count: int, copies: int = 5) -> float:
    """Publish to a fanout exchange with a no-ack consumer on each of five queues; the result is per copy."""

    server = new_server()
    publisher = connect(server)
    for index in range(copies):
        consumer = connect(server)
        declare(server, consumer, f"q{index}", no_ack=True)
        consumer.receive(encode_method(1, make(Queue.Bind, 0, f"q{index}", "amq.fanout", "", False, {})))
    return run(count * copies, reads([publish("amq.fanout", "k", b"x" * 12)] * count), server, publisher)


def topics(count: int) -> float:
    """Publish with a thousand routing keys to a topic exchange with one queue bound by a wildcard."""

    server = new_server()
    publisher, consumer = connect(server), connect(server)
    declare(server, consumer, "q", no_ack=True)
    consumer.receive(encode_method(1, make(Queue.Bind, 0, "q", "amq.topic", "a.*.#", False, {})))
    messages = [publish("amq.topic", f"a.{n % 1000}.b", b"x" * 12) for n in range(count)]
    return run(count, reads(messages), server, publisher)


def interleaved(count: int) -> float:
    """Publish on two channels whose frames alternate, as a Java client's do: no content is contiguous."""
    server = new_server()
    publisher, consumer = connect(server, (1, 2)), connect(server)
    declare(server, consumer, "q", no_ack=True)
    one, two = publish("", "q", b"x" * 12, 1), publish("", "q", b"x" * 12, 2)
    cut = len(one) - 20
    header = cut - 23
    woven = b"".join((one[:header], two[:header], one[header:cut], two[header:cut], one[cut:], two[cut:]))
    return run(count, reads([woven] * (count // 2)), server, publisher)


def large(count: int) -> float:
    """Publish bodies of 1 MiB in eight frames each."""
    server = new_server()
    publisher, consumer = connect(server), connect(server)
    declare(server, consumer, "q", no_ack=True)
    method = publish("", "q", b"")[:-23]
    body = 1024 * 1024
    header = frame(2, 1, pack(">HHQ", 60, 0, body) + b"\x10\x00\x01")
    chunk = 131072 - 8
    frames = b"".join(frame(3, 1, b"x" * min(chunk, body - at)) for at in range(0, body, chunk))
    # the same few reads again and again, because what a driver reads is still in the processor's cache
    rounds = -(-count // LARGE_ROUND)
    prepared = reads([method + header + frames] * LARGE_ROUND) * rounds
    return run(rounds * LARGE_ROUND, prepared, server, publisher)


CASES: dict[str, Callable[[int], float]] = {
    "parse and route, nowhere to go": lambda n: simple(n, queue=False),
    "+ enqueue (no consumer)": simple,
    "hand over, no ack": lambda n: simple(n, no_ack=True),
    "hand over, ack each": lambda n: simple(n, no_ack=False),
    "hand over, ack each, prefetch 200": lambda n: simple(n, no_ack=False, prefetch=200),
    "hand over, ack multiple": lambda n: simple(n, no_ack=False, multiple=True),
    "hand over, ack each, confirm": lambda n: simple(n, no_ack=False, confirm=True),
    "... measured for an export": lambda n: simple(n, no_ack=False, confirm=True, measured=True),
    "... ten a read": lambda n: simple(n, no_ack=False, confirm=True, octets=720),
    "... ten a read, measured": lambda n: simple(n, no_ack=False, confirm=True, octets=720, measured=True),
    "... consumer-ack": lambda n: simple(n, no_ack=False, confirm=True, mode="consumer-ack"),
    "... consumer-ack-light": lambda n: simple(n, no_ack=False, confirm=True, mode="consumer-ack-light"),
    "properties differ each time, no ack": lambda n: simple(n, no_ack=True, vary=True),
    "1,500 octets, no ack": lambda n: simple(n, no_ack=True, body=b"x" * 1500),
    "fan-out to 5, no ack, per copy": fan_out,
    "topic, 1,000 keys, no ack": topics,
    "two channels interleaved, no ack": interleaved,
    "1 MiB bodies, no ack": lambda n: large(max(1, n // 500)),
}


def measure(count: int, cases: Sequence[str]) -> dict[str, float]:
    """Run one round of these cases."""
    return {name: CASES[name](count) for name in cases}


def in_process(folder: Path, count: int) -> dict[str, float]:
    """Run one round in a fresh interpreter, on the code in `folder`."""
    script = Path(__file__).resolve()
    command = [sys.executable, str(script), "--count", str(count), "--once"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=environment)
    return dict(json.loads(done.stdout))


def compare(ref: str, rounds: int, count: int) -> bool:
    """Run this and another revision alternately and print the ratios; return whether none of `JUDGED` is slower.

    Two ratios are shown: of the least figures, because noise only ever adds, and the median of the rounds' own. The
    first is judged, over at least `ENOUGH` rounds.
    """
    from bench.revision import revision  # noqa: PLC0415 - `--once` runs where there may be no such module

    results: dict[str, list[dict[str, float]]] = {"here": [], ref: []}
    with revision(ref) as other:
        for number in range(rounds):
            turn = [("here", ROOT), (ref, other)]
            for name, folder in turn if number % 2 else reversed(turn):
                results[name].append(in_process(folder, count))
    print(
        f"CPU microseconds per message, least of {rounds} interleaved rounds of {count:,} messages; bar {MOST}"
    )
    print(f"{'':38}{'here':>10}{ref[:10]:>12}{'ratio':>8}{'median':>8}  verdict")
    slower = 0
    for case in CASES:
        pairs = [(ours[case], theirs[case]) for ours, theirs in zip(*results.values(), strict=True)]
        ours, theirs = (min(figures) for figures in zip(*pairs, strict=True))
        ratio = ours / theirs
        verdict = "-"
        if case in JUDGED:
            verdict = f"too few rounds, {ENOUGH} are asked for" if rounds < ENOUGH else "pass"
            if ratio > MOST and rounds >= ENOUGH:
                verdict, slower = "FAIL", slower + 1
        middle = median(one / another for one, another in pairs)
        print(f"{case:38}{ours:10.2f}{theirs:12.2f}{ratio:8.3f}{middle:8.3f}  {verdict}")
    print(f"{len(JUDGED) - slower} of {len(JUDGED)} judged cases are at most {MOST} times {ref}'s")
    return not slower


def main() -> int:
    """Measure and print; return 1 if a case is slower than another revision's by more than its bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40_000, help="messages per case and round")
    parser.add_argument("--rounds", type=int, help=f"default 5, beside another revision {ENOUGH}")
    parser.add_argument("--against", metavar="REF", help="a git revision to compare with")
    parser.add_argument("--once", nargs="*", metavar="CASE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once is not None:
        print(json.dumps(measure(options.count, options.once or list(CASES))))
        return 0
    if options.against:
        return 0 if compare(options.against, options.rounds or ENOUGH, options.count) else 1
    rounds = options.rounds or 5
    results = [in_process(ROOT, options.count) for _ in range(rounds)]
    print(f"CPU microseconds per message, least of {rounds} rounds of {options.count:,} messages")
    for case in CASES:
        print(f"{case:38}{min(found[case] for found in results):12.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

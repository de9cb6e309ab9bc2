"""Stalls of the broker's event loop: `python -m bench.stalls` or `make bench NAME=stalls`.

Thirty queues concurrently get more messages than fit in memory, are drained while more come, are drained to the end,
filled again and deleted. A ticker inside the broker's process schedules a call every 10 ms and notes its lateness, and
how much of that time the loop's own thread was computing. `--trace` adds the Python stacks of the longest stalls.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import json
import multiprocessing
import re
import select
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from pamqp import commands

from bench import brokers
from bench.bulk import Bulk, BulkError, Drain, chunks
from bench.results import Report

QUEUES = 30
TICK = 0.01
NOTED = 0.005
"""Minimum lateness to be noted, in seconds."""
TRACED = 0.08
STALL_MS = 100.0
WINDOW = 20_000
CALL = re.compile(r'File "([^"]+)", line (\d+) in (\S+)')


# -- inside the broker's process ----------------------------------------------------------------------------------


class Collector:
    """Adds up the time of garbage collections, in any thread."""

    def __init__(self) -> None:
        self.seconds = self.began = 0.0
        gc.callbacks.append(self.called)

    def called(self, phase: str, _info: object) -> None:
        """Handle the begin or end of a collection."""
        if phase == "start":
            self.began = time.monotonic()
        else:
            self.seconds += time.monotonic() - self.began


async def tick(notes: Path, *, trace: bool) -> None:
    """Note the lateness of the loop, until cancelled.

    Each line has time, lateness, computing time and the garbage collector's part of it, in seconds.
    """
    collector = Collector()
    with notes.open("w") as sink, notes.with_suffix(".trace").open("w") as traces:
        try:
            while True:
                began, cpu, collected = time.monotonic(), time.thread_time(), collector.seconds
                if trace:
                    faulthandler.dump_traceback_later(TICK + TRACED, file=traces)
                await asyncio.sleep(TICK)
                late = time.monotonic() - began - TICK
                if late > NOTED:
                    computed = time.thread_time() - cpu
                    sink.write(json.dumps([began, late, computed, collector.seconds - collected]) + "\n")
                    sink.flush()
        finally:
            faulthandler.cancel_dump_traceback_later()


def serve(arguments: Sequence[str]) -> None:
    """Run the broker with a ticker in its loop. The first argument is the file of the notes."""
    from leveret.broker.cli import main as cli  # noqa: PLC0415 - only here is the broker in this process

    notes, trace, *rest = arguments
    original = cli._serve

    async def with_ticker(*given: object) -> int:
        ticker = asyncio.create_task(tick(Path(notes), trace=trace == "trace"))
        try:
            return await original(*given)
        finally:
            ticker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticker

    cli._serve = with_ticker
    sys.argv = ["leveret", *rest]
    cli.main()


# -- the load ----------------------------------------------------------------------------------------------------


def publish(port: int, first: int, count: int, size: int, *, persistent: bool) -> None:
    """Publish `count` messages to each of the queues, a chunk each in turn, confirmed if persistent."""
    client = Bulk(port)
    if persistent:
        client.call(commands.Confirm.Select())
        client.confirming = True
    waiting = [
        chunks(f"stall-{number}", first, count, size, persistent=persistent) for number in range(QUEUES)
    ]
    while waiting:
        for each in list(waiting):
            octets, many = next(each, (None, 0))
            if octets is None:
                waiting.remove(each)
                continue
            client._write(octets)
            client.sent += many
            while persistent and client.sent - client.confirmed > WINDOW:
                client._confirms()
    while persistent and client.confirmed < client.sent:
        client._confirms()
    client.ready_messages("stall-0")
    client.close()


def drain(port: int, first: int, count: int) -> None:
    """Drain `count` messages from each of the queues, a connection each, and check their order."""
    drains = {}
    for number in range(QUEUES):
        client = Bulk(port)
        drains[client.socket] = each = Drain(client, f"stall-{number}", first, count)
        each.begin()
    deadline = time.monotonic() + 120
    for each in list(drains.values()):
        if each.step():  # deliveries that came together with consume-ok
            drains.pop(each.client.socket)
    while drains:
        readable, _, _ = select.select(list(drains), [], [], 10.0)
        for sock in readable:
            drains[sock].client.read()
            if drains[sock].step():
                drains.pop(sock).client.close()
        if time.monotonic() > deadline and not readable:
            message = f"{len(drains)} queues were not drained"
            raise BulkError(message)


def prepare(port: int) -> None:
    """Declare the queues."""
    client = Bulk(port)
    for number in range(QUEUES):
        client.declare(f"stall-{number}")
    client.close()


def delete(port: int) -> None:
    """Delete the queues concurrently."""
    client = Bulk(port)
    for number in range(QUEUES):
        client.send(commands.Queue.Delete(queue=f"stall-{number}"))
    for _ in range(QUEUES):
        client.reply()
    client.close()


@contextlib.contextmanager
def beside(what: Callable[..., None], *given: object, **named: object) -> Iterator[None]:
    """Run a function in a process of its own during a `with` block.

    Raises:
        BulkError: the function failed.
    """
    process = multiprocessing.get_context("fork").Process(target=what, args=given, kwargs=named)
    process.start()
    try:
        yield
        process.join(300)
    finally:
        if process.is_alive():
            process.terminate()
        process.join()
    if process.exitcode:
        message = "a client failed"
        raise BulkError(message)


def phases(port: int, options: argparse.Namespace, *, persistent: bool) -> Iterator[str]:
    """Run the phases one after the other; yield the name of each before it begins."""
    count, size = options.messages, options.size
    yield "filling"
    prepare(port)
    publish(port, 0, count, size, persistent=persistent)
    yield "filling and draining"
    with beside(drain, port, 0, count):
        publish(port, count, count // 2, size, persistent=persistent)
    yield "draining"
    drain(port, count, count // 2)
    yield "idle"
    time.sleep(1.0)
    yield "filling again"
    publish(port, 0, count, size, persistent=persistent)
    yield "deleting"
    delete(port)
    time.sleep(1.0)


def summary(traces: str) -> str:
    """Return the places of the loop's thread during stalls, the most frequent first."""
    places: Counter[str] = Counter()
    for stall in traces.split("Timeout (")[1:]:
        for thread in stall.split("\nThread "):
            if "_run_module_as_main" in thread:
                calls = [f"{Path(file).name}:{line} {name}" for file, line, name in CALL.findall(thread)]
                places[" < ".join(calls[:6])] += 1
    rows = [f"  {count:>4}  {place}" for place, count in places.most_common(12)]
    return "\n".join([f"  stalls of more than {1000 * (TICK + TRACED):.0f} ms, innermost call first", *rows])


def measure(options: argparse.Namespace, *, persistent: bool) -> int:
    """Run all phases against one broker and print the longest stall of each; return the number above the limit."""
    kind = "persistent" if persistent else "transient"
    total = options.messages * QUEUES
    print(f"\n{QUEUES} durable queues, {total:,} {kind} messages of {options.size} octets, twice", flush=True)
    report = Report(f"stalls {kind}")
    marks: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory(
        prefix="leveret-bench-", dir=options.dir, ignore_cleanup_errors=True
    ) as scratch:
        notes = Path(scratch, "notes")
        program = ("-m", "bench.stalls", "--child", str(notes), "trace" if options.trace else "-")
        broker = brokers.start("leveret", Path(scratch), options.set, program=program)
        anonymous = 0
        try:
            for phase in phases(broker.port, options, persistent=persistent):
                marks.append((time.monotonic(), phase))
                anonymous = max(anonymous, broker.anonymous_rss())
            marks.append((time.monotonic(), "end"))
        except (BulkError, OSError):
            print(f"  during {marks[-1][1]!r}; the broker's last lines:")
            print("\n".join(broker.log.read_text(errors="replace").splitlines()[-12:]))
            raise
        finally:
            broker.stop()
            late = [json.loads(line) for line in notes.read_text().splitlines()]
            if options.trace:
                print(summary(notes.with_suffix(".trace").read_text()))
    print(f"  RssAnon between phases, most: {anonymous / 2**20:,.0f} MB")
    print(
        f"  {'phase':<24}{'s':>8}{'longest ms':>12}{'computing':>12}{'collecting':>12}{'> 20 ms':>9}{'> 100 ms':>9}"
    )
    longest = 0.0
    for (began, phase), (ended, _) in pairwise(marks):
        inside = [note for note in late if began <= note[0] < ended]
        worst = max(inside, key=lambda note: note[1], default=[0.0] * 4)
        longest = max(longest, worst[1] * 1000)
        counts = [sum(note[1] > limit for note in inside) for limit in (0.02, 0.1)]
        print(
            f"  {phase:<24}{ended - began:>8.1f}"
            + "".join(f"{part * 1000:>12.1f}" for part in worst[1:])
            + f"{counts[0]:>9}{counts[1]:>9}",
            flush=True,
        )
    report.line("longest stall of the event loop", longest, "ms", most=STALL_MS)
    return report.missed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; return 0 if no stall was too long, 1 if one was, 2 if something could not run."""
    parser = argparse.ArgumentParser(prog="python -m bench.stalls", description="Stalls of the event loop")
    parser.add_argument("--messages", type=int, default=30_000, help="per queue (default 30,000)")
    parser.add_argument("--size", type=int, default=1500, help="octets of each body (default 1500)")
    parser.add_argument("--kind", choices=("persistent", "transient", "both"), default="both")
    parser.add_argument(
        "--trace",
        action="store_true",
        help="print where the longest stalls were (looking at a running thread may crash the broker)",
    )
    parser.add_argument("--dir", type=Path, help="a folder on the disk to be used (default: the system's)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    missed = 0
    try:
        for kind in ("persistent", "transient"):
            if options.kind in {kind, "both"}:
                missed += measure(options, persistent=kind == "persistent")
    except (brokers.BrokerError, BulkError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 1 if missed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        serve(sys.argv[2:])
    else:
        sys.exit(main())

"""Compares Leveret with RabbitMQ and the relay under PerfTest: `python -m bench.compare` or `make bench`.

Every round runs every workload against every broker in turn, so that a slow minute of the machine affects all of them.
The measured rate is min(sent, received, confirmed) after a warm-up (Java compiles itself during the first seconds), and
the verdict is the *lowest* of the rounds' paired ratios; for the workloads that keep messages, where a shared disk
scatters single rounds, their median. Every run is appended to `bench/results/` as a line of JSON.
"""

import argparse
import asyncio
import dataclasses
import os
import platform
import resource
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median

import uvloop

from bench import brokers, loads, peers, perftest, results
from bench.client import Client
from bench.workloads import FAIR, RELAY_BAR, WORKLOADS, Workload

WARM_UP = 2
PATIENCE = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """One run of one workload against one broker."""

    workload: str
    broker: str
    round: int
    figures: perftest.Figures
    counted: float
    """Messages a second after the warm-up: the least of received and, times copies, sent and confirmed."""
    whole: float
    """Messages a second from PerfTest's own averages over the whole run, including the warm-up."""
    cpu_us: float
    """Microseconds of the broker's CPU time per message received (or sent, whichever is more)."""
    peak_rss: int
    other: float
    """Share of the machine's CPU time used by processes other than the broker and PerfTest, in per cent."""
    left: int | None
    """Ready messages left in the queue after the clients have closed; None if the queue is auto-delete."""
    flushes: float | None
    """Flushes of the disk per message, by all processes."""
    disk_octets: float
    """Bytes that the broker had written to a disk, per message."""
    storage: dict[str, int] = dataclasses.field(default_factory=dict)
    """Storage counters logged by the broker, if it was started for this run alone."""

    @property
    def messages(self) -> int:
        """Return the number of messages sent to queues or taken from them, whichever is more; at least 1."""
        sent = self.figures.sent_total * WORKLOADS[self.workload].copies
        return max(self.figures.received_total, sent, WORKLOADS[self.workload].drained, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 0 if all bars were cleared, 1 if not, 2 if something could not run."""
    options = parser().parse_args(arguments)
    try:
        folder = perftest.fetch(options.perf_test)
        with peers.running(options.brokers, options.peer, options.set, options.relay) as started:
            described = uvloop.run(describe(started.values()))
            print_setting(options, started, described)
            runs = []
            for run in measure(options, started, folder):
                runs.append(run)
                record(options, described, run)
        cleared = report(runs, list(started))
        if "leveret" in options.brokers and not options.no_accounts:
            account(options, folder, described)
    except (brokers.BrokerError, perftest.PerfTestError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0 if cleared else 1


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(
        prog="python -m bench.compare", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    made.add_argument(
        "--workload",
        nargs="+",
        choices=WORKLOADS,
        default=list(WORKLOADS),
        metavar="NAME",
        help=", ".join(WORKLOADS),
    )
    made.add_argument(
        "--brokers",
        type=broker_names,
        default=[name for name in brokers.NAMES if name != "rabbitmq-4.3"],
        metavar="NAMES",
        help="comma-separated: leveret,rabbitmq,relay (default), rabbitmq-4.3",
    )
    peers.option(made)
    made.add_argument("--rounds", type=int, default=3, help="how often everything is run (default 3)")
    made.add_argument("--seconds", type=int, default=7, help="length of one run (default 7)")
    made.add_argument(
        "--warm-up",
        type=int,
        default=WARM_UP,
        help=f"first seconds of a run that do not count (default {WARM_UP})",
    )
    made.add_argument(
        "--quiet",
        type=float,
        metavar="PERCENT",
        help=f"repeat a run, up to {PATIENCE} times, beside which other processes took more of the machine",
    )
    made.add_argument(
        "--no-accounts", action="store_true", help="leave out the runs that count what was written"
    )
    made.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="handed to `leveret serve --set`"
    )
    made.add_argument(
        "--relay", type=Path, metavar="FILE", help="another script to serve as relay; it is given the port"
    )
    made.add_argument(
        "--perf-test",
        default=perftest.VERSION,
        metavar="VERSION",
        help=f"PerfTest's version (default {perftest.VERSION})",
    )
    return made


def broker_names(text: str) -> list[str]:
    """Split a comma-separated list of brokers.

    Raises:
        argparse.ArgumentTypeError: a broker is unknown.

    """
    names = text.split(",")
    if unknown := [name for name in names if name not in brokers.NAMES]:
        message = f"{unknown[0]!r} is none of {', '.join(brokers.NAMES)}"
        raise argparse.ArgumentTypeError(message)
    return names


def measure(
    options: argparse.Namespace, started: Mapping[str, brokers.Broker], folder: Path
) -> Iterable[Run]:
    """Run all rounds and print a line per run; the order of the brokers rotates with each round."""
    order = list(started.values())
    for number in range(1, options.rounds + 1):
        for name in options.workload:
            for broker in order:
                if broker.name == "relay" and not WORKLOADS[name].relayed:
                    continue
                try:
                    run = run_quietly(WORKLOADS[name], broker, number, options, folder)
                except perftest.PerfTestError as error:
                    print(f"{number:>5} {name:<16}{broker.name:<10}FAILED: {error}", flush=True)
                    continue
                print(line(run), flush=True)
                yield run
        order.append(order.pop(0))


def run_quietly(
    workload: Workload, broker: brokers.Broker, number: int, options: argparse.Namespace, folder: Path
) -> Run:
    """Run once, or repeatedly until undisturbed (see `--quiet`); the least disturbed run is used."""
    runs = [run_once(workload, broker, number, options, folder)]
    while options.quiet is not None and runs[-1].other > options.quiet and len(runs) < PATIENCE:
        runs.append(run_once(workload, broker, number, options, folder))
    return min(runs, key=lambda run: run.other)


def run_once(
    workload: Workload, broker: brokers.Broker, number: int, options: argparse.Namespace, folder: Path
) -> Run:
    """Run one workload against one broker and clean up after it."""
    tag = f"bench-{workload.name}-{os.getpid()}-{number}"
    place = peers.endpoint_of(broker)
    flags = loads.prepare(place, workload, tag)
    broker.reset_peak()
    cpu, began = broker.cpu_seconds(), time.monotonic()
    everything, children = brokers.machine_cpu_seconds(), children_cpu_seconds()
    flushes, octets = brokers.flushes(broker.log), broker.disk_octets()
    seconds = 60 if workload.drained else max(options.seconds, workload.seconds)
    warm_up = 1 if workload.drained else options.warm_up
    figures = perftest.run_all(folder, place, flags, seconds, warm_up)
    flushes = None if flushes is None else (brokers.flushes(broker.log) or 0) - flushes
    octets = broker.disk_octets() - octets
    cpu = broker.cpu_seconds() - cpu
    foreign = brokers.machine_cpu_seconds() - everything - cpu - (children_cpu_seconds() - children)
    capacity = (time.monotonic() - began) * (os.cpu_count() or 1)
    peak = broker.peak_rss()
    left = uvloop.run(loads.clean(place, workload, tag))
    messages = max(figures.received_total, figures.sent_total * workload.copies, workload.drained, 1)
    return Run(
        workload=workload.name,
        broker=broker.name,
        round=number,
        figures=figures,
        counted=counted(workload, figures),
        whole=min(
            rate
            for rate, counts in (
                (figures.whole_run_sent * workload.copies, workload.sends),
                (figures.whole_run_received, workload.receives),
            )
            if counts
        ),
        cpu_us=cpu / messages * 1e6,
        peak_rss=peak,
        other=max(0.0, foreign / capacity * 100),
        left=left,
        flushes=None if flushes is None else flushes / messages,
        disk_octets=octets / messages,
    )


def counted(workload: Workload, figures: perftest.Figures) -> float:
    """Return the least of sent, received and confirmed, as far as the workload has them."""
    bounds = []
    if workload.sends:
        bounds.append(figures.sent * workload.copies)
        if figures.confirmed is not None:
            bounds.append(figures.confirmed * workload.copies)
    if workload.receives:
        bounds.append(figures.received)
    return min(bounds)


def account(options: argparse.Namespace, folder: Path, described: Mapping[str, str]) -> None:
    """Run each workload that keeps messages once more on a Leveret of its own, and report its storage counters."""
    names = [name for name in options.workload if WORKLOADS[name].kept]
    if not names:
        return
    print("\nWhat Leveret wrote, one run each on a broker of its own, per message\n")
    titles = ("written", "early", "commits", "flushes", "disk B", "messages")
    print(f"{'workload':<16}" + "".join(f"{title:>10}" for title in titles))
    for name in names:
        with brokers.running(["leveret"], settings=options.set) as started:
            try:
                run = run_once(WORKLOADS[name], started["leveret"], 0, options, folder)
            except perftest.PerfTestError as error:
                print(f"{name:<16}FAILED: {error}", flush=True)
                continue
            started["leveret"].stop()
            counters = started["leveret"].storage_counters()
        record(options, described, dataclasses.replace(run, storage=counters))
        parts = [
            f"{counters[key] / run.messages:>10.4f}" if key in counters else f"{'-':>10}"
            for key in ("written", "early", "commits")
        ]
        flushes = "-" if run.flushes is None else f"{run.flushes:.4f}"
        print(
            f"{name:<16}{''.join(parts)}{flushes:>10}{run.disk_octets:>10,.0f}{run.messages:>10,}", flush=True
        )


def children_cpu_seconds() -> float:
    """Return the CPU time of our ended children (PerfTest; the brokers still run), in seconds."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


async def describe(started: Iterable[brokers.Broker]) -> dict[str, str]:
    """Return the product and version of every broker, from its `connection.start`."""
    versions = {}
    for broker in started:
        client = await Client.connect(peers.endpoint_of(broker))
        properties = (client.greeting and client.greeting.server_properties) or {}
        versions[broker.name] = " ".join(
            str(properties[key]) for key in ("product", "version", "platform") if key in properties
        )
        client.close()
        await asyncio.sleep(0)
    return versions


def print_setting(
    options: argparse.Namespace, started: Mapping[str, brokers.Broker], described: Mapping[str, str]
) -> None:
    """Print the compared brokers and the machine.

    Raises:
        BrokerError: the brokers write to different file systems, so that their flushes are not comparable.
    """
    length = (
        f"{options.rounds} rounds of {options.seconds} s, the first {options.warm_up} s of each not counted"
    )
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.release()}"
    print(f"PerfTest {options.perf_test}, {length}")
    print(f"{machine}, Python {platform.python_version()}, uvloop {version('uvloop')}")
    print("persistent messages: every broker but the relay confirms after a flush to disk")
    places = {name: ", ".join(sorted(broker.file_systems())) for name, broker in started.items()}
    for name, broker in started.items():
        written = f"; files on {places[name]}" if places[name] else ""
        print(f"  {name:<9} {described[name]}: {broker.settings}; up in {broker.started_in:.2f} s{written}")
    if len(known := {each for each in places.values() if each}) > 1:
        message = f"the brokers write to different file systems, {' and '.join(sorted(known))}: see TMPDIR"
        raise brokers.BrokerError(message)
    rates = f"{'counted':>9}{'sent':>9}{'received':>9}{'confirmed':>10}{'whole run':>10}"
    costs = f"{'CPU us':>8}{'p99 ms':>8}{'peak MB':>8}{'left':>9}{'other %':>8}{'flushes':>9}{'disk B':>8}"
    print(f"\n{'round':>5} {'workload':<16}{'broker':<10}{rates}{costs}")


def line(run: Run) -> str:
    """Format one run as a line of the table."""
    figures = run.figures
    confirmed = "-" if figures.confirmed is None else f"{figures.confirmed:,.0f}"
    p99 = "-" if figures.p99_latency_us is None else f"{figures.p99_latency_us / 1000:.1f}"
    left = "-" if run.left is None else f"{run.left:,}"
    rates = f"{run.counted:>9,.0f}{figures.sent:>9,.0f}{figures.received:>9,.0f}{confirmed:>10}"
    rates += f"{run.whole:>10,.0f}"
    costs = f"{run.cpu_us:>8.2f}{p99:>8}{run.peak_rss / 2**20:>8.0f}{left:>9}{run.other:>8.0f}"
    flushes = "-" if run.flushes is None else f"{run.flushes:.4f}"
    costs += f"{flushes:>9}{run.disk_octets:>8,.0f}"
    return f"{run.round:>5} {run.workload:<16}{run.broker:<10}{rates}{costs}"


def report(runs: Sequence[Run], names: Sequence[str]) -> bool:
    """Print medians, paired ratios and verdicts; return whether all bars were cleared."""
    by_broker = {(run.workload, run.broker, run.round): run for run in runs}
    rounds = {run.round for run in runs}
    print("\nMedians of what counts, messages a second; ratios: the lowest of the rounds (their median)\n")
    peers = f"{'x rabbitmq':>14}{'bar':>5}{'aim':>5}{'x relay':>14}{'bar':>5}{'sent/received':>15}"
    print(f"{'workload':<16}{''.join(f'{name:>10}' for name in names)}{peers}  verdict")
    cleared = bool(runs)
    for name in dict.fromkeys(run.workload for run in runs):
        taking_part = [broker for broker in names if broker != "relay" or WORKLOADS[name].relayed]
        complete = [n for n in rounds if all((name, broker, n) in by_broker for broker in taking_part)]
        if len(complete) < len(rounds):
            print(f"{name:<16} only {len(complete)} of {len(rounds)} rounds are complete")
            cleared = False
        if complete:
            table = {broker: [by_broker[name, broker, n] for n in complete] for broker in taking_part}
            text, failed = verdict(WORKLOADS[name], table, names)
            print(text)
            cleared = cleared and not failed
    return cleared


def verdict(
    workload: Workload, table: Mapping[str, Sequence[Run]], names: Sequence[str]
) -> tuple[str, list[str]]:
    """Return a workload's line of the final table and the names of the bars it missed."""
    medians = {name: median(run.counted for run in runs) for name, runs in table.items()}
    text = f"{workload.name:<16}" + "".join(
        f"{medians[name]:>10,.0f}" if name in medians else f"{'-':>10}" for name in names
    )
    subject = table.get("leveret", next(iter(table.values())))
    failed = []
    for peer, bar, aim in (("rabbitmq", workload.bar, f"{workload.aim:>5.1f}"), ("relay", RELAY_BAR, "")):
        shown = "-"
        if "leveret" in table and peer in table:
            pairs = zip(subject, table[peer], strict=True)
            ratios = [ours.counted / max(theirs.counted, 1.0) for ours, theirs in pairs]
            shown = f"{min(ratios):.2f} ({median(ratios):.2f})"
            if (median(ratios) if workload.kept else min(ratios)) < bar:
                failed.append(peer)
        text += f"{shown:>14}{bar:>5.1f}{aim}"
    spread = (
        max(imbalance(run, workload) for run in subject) if workload.sends and workload.receives else None
    )
    text += f"{'-' if spread is None else f'{spread:.2f}':>15}"
    if "leveret" in table:
        failed += ["depth"] * (not all(depth_is_right(run, workload) for run in subject))
        if workload.fair and spread is not None and spread > FAIR:
            failed.append("fairness")
        text += "  " + ("FAIL: " + ", ".join(failed) if failed else "pass")
    return text, failed


def depth_is_right(run: Run, workload: Workload) -> bool:
    """Return whether the messages left in durable queues match those sent minus received, by PerfTest's rates.

    The rates do not cover PerfTest's last second.
    """
    if not workload.kept or run.left is None:
        return True
    if workload.drained:
        return run.left == 0
    missing = run.figures.sent_total - run.figures.received_total
    return abs(run.left - missing) <= max(2000, 1.5 * run.figures.sent)


def imbalance(run: Run, workload: Workload) -> float:
    """Return the ratio of sent and received of a whole run, the greater over the smaller."""
    sent, received = run.figures.sent_total * workload.copies, run.figures.received_total
    return max(sent, received) / max(min(sent, received), 1)


def record(options: argparse.Namespace, described: Mapping[str, str], run: Run) -> None:
    """Append a run to today's file in `bench/results/` as a line of JSON."""
    entry = {"perf_test": options.perf_test, "seconds": options.seconds, "peer": described[run.broker]}
    results.append({**entry, **dataclasses.asdict(run)})


if __name__ == "__main__":
    sys.exit(main())

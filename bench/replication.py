"""Three replicated nodes beside three of RabbitMQ, and what a failure costs: `make bench NAME=replication`.

Parts:

- `rates`: PerfTest with a quorum queue on the leader of each, in pairs of runs; rate, confirm latency, and bytes and
  processor time for each message in PostgreSQL and in the brokers.
- `kills`: time from `kill -9` of the leader to the next confirm, with many messages stored, copies caught up, and a
  client that tries all addresses each 100 ms.
- `hand-over`: the same from SIGTERM, tried each 20 ms: without load, under a flood, and with much to be logged first.
- `catch-up`: bytes of the log that a node applies a second after it was away.
- `snapshot`: confirm latency of a steady client while a snapshot is put into the database, beside that before.

PostgreSQL runs as a primary with two synchronous standbys (`ANY 1`) on the same disk. As on one node, a message that a
consumer has acknowledged before it was written is confirmed without being written: with consumers that keep up few of
them go through the log, as its bytes show. All of RabbitMQ's do. `store-1500`, which has no bar, has no consumers;
`--set storage.early_confirm=false` has every message written.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from pamqp import commands
from processes.running import children
from replicated.cluster import Cluster, made_cluster

from bench import perftest, rabbitmq_cluster
from bench.brokers import TICKS_PER_SECOND
from bench.bulk import Bulk
from bench.compare import WARM_UP
from bench.replication_load import (
    BODY,
    FILLINGS,
    QUICK_SECONDS,
    caught_up,
    confirm_p99,
    filled,
    flooded,
    next_confirm,
    promised,
    reuse_log_files,
    wait_until,
)
from bench.results import Report
from bench.workloads import WORKLOADS
from leveret.broker.replication.settings import Settings

CHOSEN = ("persist-1500", "paper-1q", "store-1500")
JUDGED = ("persist-1500", "paper-1q")
RATE_BAR, MEDIAN_BAR, P99_BAR = 1.5, 0.5, 1.0
KILL_MEDIAN_BAR, KILL_P99_BAR, HAND_OVER_BAR = 7.0, 9.0, 1.0
CATCH_UP_BAR, SNAPSHOT_BAR = 30.0, 3.0
MEGABYTE = 1_000_000
LARGE_BODY = 16_384
BEFORE_SECONDS = 30.0
"""Of messages that only fill a log."""
SETTINGS = {"prometheus.enabled": "true"}
CONFIGURATION = "shared_buffers = 128MB\nmax_wal_size = 1GB\nwal_keep_size = 512\n"


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor time of processes and their children, those that have ended included."""
    ticks = 0
    for root in pids:
        for pid in (root, *children(root)):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            ticks += sum(map(int, fields[11 : 15 if pid == root else 13]))
    return ticks / TICKS_PER_SECOND


def disk_octets(pids: Sequence[int]) -> int:
    """Return the bytes that processes and their children have caused to be written to a disk."""
    found = 0
    for root in pids:
        for pid in (root, *children(root)):
            try:
                lines = Path(f"/proc/{pid}/io").read_text().splitlines()
            except OSError:
                continue
            found += sum(int(line.split()[1]) for line in lines if line.startswith("write_bytes:"))
    return found


class Cost(NamedTuple):
    """Processor time and bytes so far."""

    brokers: float
    engine: float
    log_octets: int
    disk_octets: int


def cost(cluster: Cluster) -> Cost:
    """Return what a cluster has used so far; `log_octets` is what PostgreSQL's own log has grown by."""
    database, nodes = cluster.database, cluster.nodes
    servers = database.pids()
    query = "select (pg_current_wal_lsn() - '0/0')::bigint"
    ((octets,),) = database.sql(database.primary, query)
    return Cost(
        cpu_seconds([nodes.pid(name) for name in nodes.ports]),
        cpu_seconds(servers),
        int(octets),
        disk_octets(servers),
    )


# -- rates ------------------------------------------------------------------------------------------------------------


def one_run(folder: Path, port: int, workload: str, options: argparse.Namespace) -> perftest.Figures:
    """Run PerfTest with a quorum queue of its own, which is deleted afterwards."""
    queue = f"replicated-{time.time_ns()}"
    flags = [*WORKLOADS[workload].flags.split(), "-qq", "-u", queue]
    try:
        return perftest.run(folder, port, flags, options.seconds, WARM_UP)
    finally:
        client = Bulk(port)
        client.call(commands.Queue.Delete(queue=queue))
        client.close()


def rates(report: Report, options: argparse.Namespace) -> None:
    """Compare rates and confirm latencies."""
    folder = perftest.fetch()
    with (
        tempfile.TemporaryDirectory(prefix="leveret-bench-", ignore_cleanup_errors=True) as scratch,
        rabbitmq_cluster.running(Path(scratch)) as rabbits,
        made_cluster(settings={**SETTINGS, **dict(options.set)}, configuration=CONFIGURATION) as cluster,
    ):
        nodes = cluster.nodes
        caught_up(cluster)
        for workload in options.workload:
            found: dict[str, list[perftest.Figures]] = {"leveret": [], "rabbitmq": []}
            used: list[tuple[Cost, Cost, int]] = []
            for pair in range(options.pairs):
                for name in sorted(found, reverse=bool(pair % 2)):
                    before = cost(cluster)
                    port = nodes.ports[nodes.leader()] if name == "leveret" else rabbits[0].port
                    run = one_run(folder, port, workload, options)
                    found[name].append(run)
                    if name == "leveret":
                        used.append((before, cost(cluster), run.sent_total))
                    print(
                        f"{pair:>3} {workload:<14}{name:<10}{run.sent:>9,.0f}/s sent {run.received:>9,.0f}/s received, "
                        f"confirms p50 {run.median_confirm_us / 1000:,.1f} p99 {run.p99_confirm_us / 1000:,.1f} ms",
                        flush=True,
                    )
            compared(report, workload, found)
            costs(report, workload, used)


def compared(report: Report, workload: str, found: dict[str, list[perftest.Figures]]) -> None:
    """Report the medians of the ratios of all pairs."""

    def ratio(figure: Callable[[perftest.Figures], Any]) -> float:
        pairs = zip(found["leveret"], found["rabbitmq"], strict=True)
        return median(figure(ours) / figure(theirs) for ours, theirs in pairs)

    count = len(found["leveret"])
    report.line(
        f"{workload}: rate, median of {count} ratios", ratio(lambda run: run.sent), "x", least=RATE_BAR
    )
    middle, tail = ratio(lambda run: run.median_confirm_us), ratio(lambda run: run.p99_confirm_us)
    report.line(f"{workload}: confirm p50, median of {count} ratios", middle, "x", most=MEDIAN_BAR)
    report.line(f"{workload}: confirm p99, median of {count} ratios", tail, "x", most=P99_BAR)


def costs(report: Report, workload: str, used: Sequence[tuple[Cost, Cost, int]]) -> None:
    """Report the cost of each message."""
    messages = sum(count for _, _, count in used)

    def each(figure: Callable[[Cost], float]) -> float:
        return sum(figure(after) - figure(before) for before, after, _ in used) / messages

    report.line(f"{workload}: brokers' processor time", 1e6 * each(lambda c: c.brokers), "us a message")
    report.line(f"{workload}: PostgreSQL's, three servers", 1e6 * each(lambda c: c.engine), "us a message")
    report.line(f"{workload}: log of PostgreSQL's primary", each(lambda c: c.log_octets), "bytes a message")
    report.line(f"{workload}: written by all its servers", each(lambda c: c.disk_octets), "bytes a message")


# -- failures ---------------------------------------------------------------------------------------------------------


def kills(report: Report, options: argparse.Namespace) -> None:
    """Measure the time to the next confirm after kill -9 of the leader."""
    with made_cluster(settings=SETTINGS, configuration=CONFIGURATION) as cluster:
        nodes = cluster.nodes
        rate = filled(cluster, options.stored, 100)
        report.line(f"{options.stored:,} messages of 100 bytes stored", rate, "/s")
        gaps = []
        for _ in range(options.kills):
            caught_up(cluster)
            leader = nodes.leader()
            began = time.monotonic()
            nodes.kill(leader)
            gaps.append(next_confirm(list(nodes.ports.values())) - began)
            print(f"  kill of {leader}: {gaps[-1]:.2f} s", flush=True)
            nodes.start(leader)
    gaps.sort()
    report.line(f"next confirm after {len(gaps)} kills: p50", median(gaps), "s", most=KILL_MEDIAN_BAR)
    report.line("  the longest", gaps[-1], "s", most=KILL_P99_BAR)


def hand_over(report: Report, options: argparse.Namespace) -> None:
    """Measure the time to the next confirm after SIGTERM to the leader."""
    loads: dict[str, Callable[[Cluster, argparse.Namespace], Callable[[], object]]] = {
        "without load": lambda *_: bool,
        "while a client publishes as fast as it can": flooded,
        f"with {options.unlogged_mebibytes} MiB of {options.contents} to log first": promised,
    }
    with made_cluster(settings=SETTINGS, configuration=CONFIGURATION) as cluster:
        filled(cluster, 10_000, 100)
        if options.reused_log:
            reuse_log_files(cluster.database)
        for name, load in loads.items():
            gaps = [handed_over(cluster, partial(load, cluster, options)) for _ in range(options.kills)]
            report.line(f"{name}: next confirm after {len(gaps)} SIGTERMs: p50", median(gaps), "s")
            report.line("  the longest", max(gaps), "s", most=HAND_OVER_BAR)


def handed_over(cluster: Cluster, load: Callable[[], Callable[[], object]]) -> float:
    """Put load on the leader, stop it, and return the time to the next confirm of another one."""
    nodes = cluster.nodes
    caught_up(cluster)
    leader = nodes.leader()
    others = [port for name, port in nodes.ports.items() if name != leader]
    end_load = load()
    began = time.monotonic()
    nodes.terminate(leader)
    gap = next_confirm(others, QUICK_SECONDS) - began
    print(f"  SIGTERM to {leader}: {gap:.2f} s", flush=True)
    end_load()
    nodes.end(leader)
    nodes.start(leader)
    return gap


def catch_up(report: Report, options: argparse.Namespace) -> None:
    """Measure how fast a node applies what it has missed, its start included."""
    with made_cluster(settings=SETTINGS, configuration=CONFIGURATION) as cluster:
        nodes = cluster.nodes
        filled(cluster, 1000, BODY)
        caught_up(cluster)
        away = nodes.waiting()[0]
        nodes.kill(away)
        filled(cluster, options.megabytes * MEGABYTE // BODY, BODY)
        began = time.monotonic()
        nodes.start(away)
        caught_up(cluster)
        seconds = time.monotonic() - began
    report.line(
        f"a node that missed {options.megabytes} MB catches up", options.megabytes / seconds, "MB/s", least=CATCH_UP_BAR
    )  # fmt: skip


def snapshot(report: Report, options: argparse.Namespace) -> None:
    """Measure confirms while a snapshot of many messages is made."""
    with made_cluster(settings=SETTINGS, configuration=CONFIGURATION) as cluster:
        database = cluster.database

        def known() -> Any:
            rows = database.sql(
                database.primary,
                "select coalesce(s.log_size, 0), l.total, coalesce(s.total, 0)"
                " from leveret_lease l left join leveret_snapshot s on true",
                database="leveret",
            )
            return rows[0]

        def is_due() -> bool:
            log_octets, total, size = known()
            return bool(total - log_octets >= max(size, Settings().snapshot_octets))

        filled(cluster, options.snapshot_megabytes * MEGABYTE // 2 // LARGE_BODY, LARGE_BODY)
        wait_until(lambda: not is_due())
        made = known()[0]
        end = time.monotonic() + BEFORE_SECONDS
        before = confirm_p99(cluster, lambda: time.monotonic() > end)
        while not is_due():
            filled(cluster, 4 * MEGABYTE // LARGE_BODY, LARGE_BODY)
        began = time.monotonic()
        meanwhile = confirm_p99(cluster, lambda: known()[0] != made)
        seconds = time.monotonic() - began
        _, _, size = known()
    report.line("snapshot, put into the database", size / MEGABYTE, "MB")
    report.line("  time for it", seconds, "s")
    report.line("confirm p99 before it", before, "ms")
    report.line("confirm p99 meanwhile", meanwhile, "ms")
    report.line("  their ratio", meanwhile / before, "x", most=SNAPSHOT_BAR)


PARTS = {"rates": rates, "kills": kills, "hand-over": hand_over, "catch-up": catch_up, "snapshot": snapshot}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns 0 if all bars were cleared, 1 if not, 2 if something could not run."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.replication", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--workload", nargs="+", choices=WORKLOADS, default=list(CHOSEN), metavar="NAME")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of runs of each workload (default 6)")
    parser.add_argument("--seconds", type=int, default=7, help="length of a run of PerfTest (default 7)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        type=lambda text: text.partition("=")[::2],
        metavar="KEY=VALUE",
        help="for the nodes, in the part rates; storage.early_confirm=false has every message written",
    )
    parser.add_argument("--stored", type=int, default=1_000_000, help="messages stored before kills")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--unlogged-mebibytes", type=int, default=64, help="to be logged at a hand-over")
    parser.add_argument("--contents", choices=FILLINGS, default="text", help="of what is to be logged")
    parser.add_argument(
        "--reused-log",
        action="store_true",
        help="hand-overs with servers that use files of PostgreSQL's log again, as those in use do; about 20 s more",
    )
    parser.add_argument("--megabytes", type=int, default=200, help="missed by the node that catches up")
    parser.add_argument("--snapshot-megabytes", type=int, default=2000)
    options = parser.parse_args(arguments)
    report = Report("replication")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(2))  # so that nothing is left running
    failed = False
    for part in options.part:
        print(f"{part}:", flush=True)
        try:
            PARTS[part](report, options)
        except Exception as error:
            print(f"bench: {part}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            failed = True
    return 2 if failed else 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Virtual hosts in processes of their own beside one process with all: `make bench NAME=placement`.

The paper's workload of one queue runs in each virtual host, all at the same time: once in a broker of one process, once
in one with as many processes as virtual hosts, in pairs of new brokers. On a machine with fewer processors than
processes the rates say nothing, so the processor time of the busiest process is compared, for each message of all
virtual hosts: it bounds the rate where there are processors enough. Halves would be 0.5.

PerfTest takes more time for a message than a broker. On two processors it is the limit, and brokers that wait for it
work in smaller portions, which cost more. `--share 15` gives each process of a broker 15 % of a processor, so that
brokers are the limit (needs root and the controller `cpu` of cgroups, version 1).

Before the load, the time of a login is measured: from the connection to `connection.open-ok`.

    make bench NAME=placement
    make bench NAME=placement ARGS="--share 15"
    make bench NAME=placement ARGS="--vhosts 4 --rate 3000"

With `--forwarded` the other broker of a pair is one process whose clients come through a second broker, which forwards
them (`vhosts.broker.NAME`): the busiest process is that of the two which takes more, all together are both.

    make bench NAME=placement ARGS="--forwarded --rate 3000"

With `--logs` virtual hosts are on logs of their own (`bench.placed_logs`), beside RabbitMQ 4.3 (`make peer-4.3`):

    make bench NAME=placement ARGS="--logs 1 2 4"
"""

import argparse
import contextlib
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from pamqp import commands, frame
from processes.running import children

from bench import brokers, perftest, placed_logs
from bench.compare import WARM_UP
from bench.endpoint import Endpoint
from bench.replication import cpu_seconds
from bench.results import Report
from bench.workloads import WORKLOADS

BUSIEST_BAR = 0.55
"""Multiple of the processor time of one process with two virtual hosts."""
HANDSHAKE_BAR = 2.0
"""Milliseconds that a login may take longer."""
WORKLOAD = "paper-1q"
LOGINS, FIRST_LOGINS, FIRST_SECONDS = 300, 30, 4
SETTINGS = ("management.enabled=false", "prometheus.enabled=false", "shovel.enabled=false")
CGROUPS = Path("/sys/fs/cgroup/cpu")
PERIOD_US = 10_000
_OPEN_OK = (10 << 16 | 41).to_bytes(4, "big")


class Trial(NamedTuple):
    """The figures of one run; processor time in microseconds for each message of all virtual hosts."""

    busiest: float
    together: float
    rate: float
    login_ms: float


def settings_of(names: Sequence[str], *, processes: bool) -> list[str]:
    """Return the settings of a broker with these virtual hosts, in as many processes or in one."""
    chosen = [*SETTINGS, f"default_vhost={names[0]}", "default_users.bench.password=bench"]
    chosen += [f"default_vhosts.{at}.name={name}" for at, name in enumerate(names[1:], 1)]
    chosen.append("default_users.bench.vhost_pattern=.*")
    return [*chosen, f"vhosts.processes={len(names)}"] if processes else chosen


def login(place: Endpoint) -> float:
    """Return the milliseconds of one login.

    Raises:
        OSError: the broker has refused it.
    """
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", place.port), timeout=30) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.sendall(b"AMQP\0\0\x09\x01")
        client.recv(65536)
        client.sendall(frame.marshal(commands.Connection.StartOk({}, "PLAIN", place.response, "en_US"), 0))
        client.recv(65536)
        opening = commands.Connection.TuneOk(2047, 131072, 60), commands.Connection.Open(place.vhost)
        client.sendall(b"".join(frame.marshal(each, 0) for each in opening))
        answer = client.recv(65536)
        took = (time.perf_counter() - began) * 1000
    if answer[7:11] != _OPEN_OK:
        message = f"the login was refused: {answer!r}"
        raise OSError(message)
    return took


@contextlib.contextmanager
def limited(pids: Sequence[int], share: int) -> Iterator[None]:
    """Give each process at most so many per cent of a processor; the groups are removed when the processes have ended.

    Raises:
        OSError: this is not permitted here.
    """
    groups = [CGROUPS / f"leveret-bench-{pid}" for pid in pids] if share else []
    try:
        for group, pid in zip(groups, pids, strict=False):
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(PERIOD_US * share // 100))
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group in groups:
            with contextlib.suppress(FileNotFoundError):
                for pid in (group / "cgroup.procs").read_text().split():
                    (CGROUPS / "cgroup.procs").write_text(pid)
                group.rmdir()


def one_trial(folder: Path, names: Sequence[str], options: argparse.Namespace, *, placed: bool) -> Trial:
    """Run the workload in each virtual host of a new broker; with `placed` in processes, or forwarded."""
    flags = WORKLOADS[WORKLOAD].flags.split() + (["-r", str(options.rate)] if options.rate else [])
    in_processes = placed and not options.forwarded
    with contextlib.ExitStack() as ending:
        broker = ending.enter_context(brokers.alone(settings_of(names, processes=in_processes)))
        front, started = broker, [broker]
        if placed and options.forwarded:
            elsewhere = [f"vhosts.broker.{name}=127.0.0.1:{broker.port}" for name in names]
            users = settings_of(["other"], processes=False)
            front = ending.enter_context(brokers.alone([*users, *elsewhere]))
            started.append(front)
        places = [Endpoint(front.port, "bench", "bench", name) for name in names]
        for _ in range(FIRST_LOGINS):
            login(places[0])
        logins = [login(places[0]) for _ in range(LOGINS)]
        pids = children(broker.pid)

        def load(seconds: int, place: Endpoint) -> perftest.Figures:
            return perftest.run(folder, place, [*flags, "-u", f"placed-{place.vhost}"], seconds, WARM_UP)

        with (
            limited(pids or [each.pid for each in started], options.share),
            ThreadPoolExecutor(len(places)) as pool,
        ):
            list(pool.map(partial(load, FIRST_SECONDS), places))  # what a process loads late, it loads once
            before = [cpu_seconds([pid]) for pid in pids] + [each.cpu_seconds() for each in started]
            figures = list(pool.map(partial(load, options.seconds), places))
        after = [cpu_seconds([pid]) for pid in pids] + [each.cpu_seconds() for each in started]
    messages = sum(max(each.received_total, each.sent_total) for each in figures) or 1
    each = [(now - then) / messages * 1e6 for now, then in zip(after, before, strict=True)]
    return Trial(max(each), sum(each), sum(found.received for found in figures), median(logins))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 0 if the bars were cleared, 1 if not, 2 if something could not run."""
    made = argparse.ArgumentParser(
        prog="python -m bench.placement", description=(__doc__ or "").splitlines()[0]
    )
    made.add_argument("--vhosts", type=int, default=2, help="virtual hosts, and processes (default 2)")
    made.add_argument("--pairs", type=int, default=5, help="pairs of runs (default 5)")
    made.add_argument("--seconds", type=int, default=8, help="length of one run (default 8)")
    made.add_argument(
        "--rate", type=int, default=0, help="messages a second of each publisher (default: as many as it can)"
    )
    made.add_argument(
        "--share", type=int, default=0, help="per cent of a processor for each process (default: no limit)"
    )
    made.add_argument(
        "--forwarded", action="store_true", help="forward clients from a second broker, instead of processes"
    )
    made.add_argument(
        "--logs", type=int, nargs="+", default=[], help="so many logs in PostgreSQL instead, such as 1 2 4"
    )
    made.add_argument(
        "--workload",
        choices=sorted(WORKLOADS),
        default="persist-1500",
        help="of --logs (default persist-1500)",
    )
    options = made.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    report = Report("placement", judged=options.vhosts == 2 and not options.forwarded and not options.logs)
    names = [f"v{number}" for number in range(options.vhosts)]
    pairs: list[tuple[Trial, Trial]] = []
    try:
        if options.logs:
            placed_logs.measured(report, options)
            return 0
        folder = perftest.fetch()
        for number in range(options.pairs):
            order = (False, True) if number % 2 else (True, False)
            found = {way: one_trial(folder, names, options, placed=way) for way in order}
            pairs.append((found[False], found[True]))
            print(json.dumps({"one": found[False]._asdict(), "placed": found[True]._asdict()}), flush=True)
    except (brokers.BrokerError, perftest.PerfTestError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    for way, title in (
        (0, "one process"),
        (1, "forwarded" if options.forwarded else f"{options.vhosts} processes"),
    ):
        trials = [pair[way] for pair in pairs]
        report.line(f"{title}: busiest process", median(each.busiest for each in trials), "us a message")
        report.line(f"{title}: all together", median(each.together for each in trials), "us a message")
        report.line(f"{title}: rate", median(each.rate for each in trials), "messages/s")
        report.line(f"{title}: login", median(each.login_ms for each in trials), "ms")
    ratio = median(many.busiest / one.busiest for one, many in pairs)
    report.line(
        "busiest process beside one process, median of pairs",
        ratio,
        "x",
        most=None if options.forwarded else BUSIEST_BAR,
    )
    longer = median(many.login_ms - one.login_ms for one, many in pairs)
    report.line("login, longer by", longer, "ms", most=None if options.forwarded else HANDSHAKE_BAR)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""One run of a sweep: starts a broker in a fresh directory, runs PerfTest, and measures the cost of both."""

import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import uvloop

from bench import brokers, loads, perftest
from bench.client import ClosedError
from bench.compare import children_cpu_seconds, describe
from bench.paper_plan import (
    CONSUMER_CHANNELS,
    CONSUMERS,
    LINES,
    PREFETCH,
    PRODUCER_CHANNELS,
    PRODUCERS,
    SIZE,
    Line,
    Plan,
    Trial,
)
from bench.paper_records import BenchCost, BenchRun, BenchSample
from bench.paper_samples import Sample, SampleError, has_steady, merged, parse, total
from bench.workloads import Workload
from leveret import __version__

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ("-m", "bench.paper_baseline")
FRACTIONS = ("cpu_seconds", "slowest_commit_ms")
"""Logged values besides counters that are not integers."""
LOOK = 0.5
"""Seconds between two checks whether PerfTest has ended."""


class TrialError(Exception):
    """Raised when a run did not finish, so that nothing is recorded; the text says why."""


def measure(
    plan: Plan, trial: Trial, folder: Path, tick: Callable[[float], None], attempt: int = 1
) -> tuple[BenchRun, list[BenchSample], BenchCost]:
    """Start a broker, load it, stop it.

    Args:
        plan: has the duration, and the seconds to exclude.
        trial: the line, number of queues and window.
        folder: the folder of `perftest.fetch`.
        tick: called about twice a second with the seconds since the load began.
        attempt: counts from 1 in a block.

    Raises:
        TrialError: the broker or PerfTest failed, or a second to be measured is missing.

    """
    line = LINES[trial.line]
    run_id = plan.run_id(trial, attempt)
    try:
        with tempfile.TemporaryDirectory(prefix="leveret-paper-", ignore_cleanup_errors=True) as scratch:
            directory = Path(scratch, line.broker)
            directory.mkdir()
            broker = started(line, directory)
            try:
                version = uvloop.run(describe([broker]))[broker.name]
                flags = loads.prepare(broker.port, workload(trial), run_id)
                start = time.time_ns() // 1_000_000
                before, began = Meter.read(broker), time.monotonic()
                parts = generate(
                    folder, broker, flags, plan.seconds, Path(scratch), lambda: tick(time.monotonic() - began)
                )
                used, wall = Meter.read(broker).since(before), time.monotonic() - began
            finally:
                broker.stop()
            counters = logged(broker) if line.broker == "leveret" else {}
        samples = merged(parts)
        if not has_steady(samples, plan.seconds, plan.cut_start, plan.cut_end):
            raise TrialError("in the seconds that count nothing came through")
    except (brokers.BrokerError, perftest.PerfTestError, SampleError, ClosedError, OSError) as error:
        raise TrialError(str(error)) from error
    capacity = wall * (os.cpu_count() or 1)
    run = BenchRun(
        run_id=run_id,
        git=git_revision(),
        host=platform.node(),
        cpu=processor(),
        kernel=platform.release(),
        broker=line.broker,
        version=__version__ if line.broker == "leveret" else version,  # it tells clients it is RabbitMQ
        mode=line.mode,
        sync=line.sync,
        queues=trial.queues,
        producers_q=PRODUCERS,
        consumers_q=CONSUMERS,
        ch_prod=PRODUCER_CHANNELS,
        ch_cons=CONSUMER_CHANNELS,
        size=SIZE,
        persistent=True,
        block=trial.block,
        rep=attempt,
        order_in_block=trial.order,
        start_ts=start,
        dur_s=float(plan.seconds),
    )
    cost = BenchCost(
        run_id=run_id,
        line=line.name,
        window=trial.window,
        prefetch=PREFETCH,
        generators=len(flags),
        settings=broker.settings,
        messages=max(total(samples, "published"), total(samples, "received"), 1),
        cpu_s=used.broker,
        client_cpu_s=used.clients,
        other=max(0.0, used.machine - used.broker - used.clients) / capacity,
        write_bytes=used.write_bytes,
        wchar=used.wchar,
        flushes=used.flushes,
        counters=counters,
    )
    return run, [row(run_id, sample) for sample in samples], cost


def started(line: Line, directory: Path) -> brokers.Broker:
    """Start a line's broker."""
    program = BASELINE if line.tables else brokers.PROGRAM
    lines = []
    if line.plugins:
        lines = [f"management.tcp.port = {brokers.free_port()}", "management.tcp.ip = 127.0.0.1"]
    return brokers.start(
        line.broker, directory, line.settings, program=program, rabbitmq=lines, plugins=line.plugins
    )


def workload(trial: Trial) -> Workload:
    """Return the paper's load for `loads.prepare`, which divides more than 15 queues among two exchanges."""
    channels = f"-X{PRODUCER_CHANNELS} -Y{CONSUMER_CHANNELS}"
    flags = f"{channels} -q{PREFETCH} -c{trial.window} -s{SIZE} -f persistent"
    return Workload("paper", flags, bar=0.0, aim=0.0, kept=True, queues=trial.queues)


def row(run_id: str, sample: Sample) -> BenchSample:
    """Return a sample in its recorded form."""
    return BenchSample(run_id=run_id, t_s=sample.t_s, **sample.rates, **sample.latencies)


def generate(
    folder: Path,
    broker: brokers.Broker,
    flags: Sequence[Sequence[str]],
    seconds: int,
    scratch: Path,
    tick: Callable[[], None],
) -> list[list[Sample]]:
    """Run PerfTests concurrently until they end and return the samples of each.

    All of them have ended when this returns.

    Raises:
        PerfTestError: one failed or did not end in time, or the broker ended.
        SampleError: the output of one cannot be parsed.
    """
    outputs = [scratch / f"perf-test-{at}.csv" for at in range(len(flags))]
    logs = [output.with_suffix(".log") for output in outputs]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for each, output, log in zip(flags, outputs, logs, strict=True):
            command = [*perftest.command_line(folder, broker.port, seconds), "-o", str(output), *each]
            with log.open("wb") as sink:
                processes.append(
                    subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, cwd=scratch
                    )
                )
        deadline = time.monotonic() + seconds + perftest.GRACE
        while any(process.poll() is None for process in processes):
            tick()
            if broker.process.poll() is not None:
                raise perftest.PerfTestError(f"the broker ended: {last_line(broker.log)}")
            if time.monotonic() > deadline:
                message = f"PerfTest did not end {perftest.GRACE:.0f} s after its time: {last_line(logs[0])}"
                raise perftest.PerfTestError(message)
            time.sleep(LOOK)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, log in zip(processes, logs, strict=True):
        if process.returncode:
            raise perftest.PerfTestError(f"PerfTest ended with {process.returncode}: {last_line(log)}")
    return [parse(output.read_text()) for output in outputs]


def logged(broker: brokers.Broker) -> dict[str, int]:
    """Return the counters of storage and messages that a stopped Leveret logged; empty if there are none."""
    counters = broker.storage_counters()
    for line in broker.log.read_text(errors="replace").splitlines():
        if "totals: " in line:
            counters |= {name: int(value) for name, value in brokers.COUNTER.findall(line)}
    return {name: value for name, value in counters.items() if name not in FRACTIONS}


def last_line(log: Path) -> str:
    """Return the last line of a log that is not empty."""
    lines = [each for each in log.read_text(errors="replace").splitlines() if each.strip()]
    return lines[-1] if lines else "(nothing)"


class Meter:
    """Resource usage so far: CPU seconds, bytes, flushes."""

    def __init__(
        self, broker: float, clients: float, machine: float, write_bytes: int, wchar: int, flushes: int | None
    ) -> None:
        self.broker, self.clients, self.machine = broker, clients, machine
        self.write_bytes, self.wchar, self.flushes = write_bytes, wchar, flushes

    @classmethod
    def read(cls, broker: brokers.Broker) -> "Meter":
        """Read all values; among ended processes, our children count as clients."""
        return cls(
            broker.cpu_seconds(),
            children_cpu_seconds(),
            brokers.machine_cpu_seconds(),
            broker.disk_octets(),
            broker.written_octets(),
            brokers.flushes(broker.log),
        )

    def since(self, before: "Meter") -> "Meter":
        """Return the usage since an earlier reading."""
        known = self.flushes is not None and before.flushes is not None
        return Meter(
            self.broker - before.broker,
            self.clients - before.clients,
            self.machine - before.machine,
            self.write_bytes - before.write_bytes,
            self.wchar - before.wchar,
            self.flushes - before.flushes if known else None,
        )


def git_revision() -> str:
    """Return the current commit, with `-dirty` if files differ from it; empty outside of git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def processor() -> str:
    """Return the machine's processor model and number of processors."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (each.partition(":")[2].strip() for each in lines if each.startswith("model name")), "unknown"
    )
    return f"{os.cpu_count()} x {model}"

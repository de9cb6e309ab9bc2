"""RabbitMQ's load generator PerfTest: downloads it from Maven Central on first use, runs it, parses its figures.

PerfTest is Java; `mvn` resolves it by its coordinates into `bench/cache/` (ignored by git), from where
later runs start it without a network.
"""

import dataclasses
import re
import statistics
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import maven
from bench.endpoint import Endpoint, endpoint

CACHE = Path(__file__).resolve().parent / "cache"
VERSION = "2.22.1"
GRACE = 40.0
"""Seconds that PerfTest may take after its own time limit before its run counts as failed."""

interval = re.compile(r"time:? (?P<time>[\d.]+) ?s")
rate = re.compile(r"(sent|received|confirmed|nacked|returned): (\d+) msg/s")
average = re.compile(r"(sending|receiving) rate avg: (\d+) msg/s")
latency = re.compile(r"(consumer|confirm) latency min/median/75th/95th/99th ([\d/]+) (µs|ms)")
NAMES = {"sending": "sent", "receiving": "received"}


class PerfTestError(Exception):
    """Raised when PerfTest is not available or did not run; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Figures:
    """Figures reported by one run of PerfTest, in messages a second unless noted otherwise."""

    sent: float
    received: float
    confirmed: float | None
    sent_total: int
    received_total: int
    whole_run_sent: float
    whole_run_received: float
    median_latency_us: float | None
    p99_latency_us: float | None
    median_confirm_us: float | None = None
    p99_confirm_us: float | None = None


def fetch(version: str = VERSION) -> Path:
    """Return the folder with PerfTest and its dependencies, downloading it the first time.

    Raises:
        PerfTestError: java or mvn is missing, or the download from Maven Central failed.
    """
    try:
        return maven.fetched("com.rabbitmq", "perf-test", version, CACHE)
    except maven.MavenError as error:
        raise PerfTestError(str(error)) from error


def run(folder: Path, place: int | Endpoint, flags: list[str], seconds: int, warm_up: int) -> Figures:
    """Run one PerfTest against a broker on loopback and parse its figures; see `run_all`."""
    return run_all(folder, place, [flags], seconds, warm_up)


def run_all(
    folder: Path, place: int | Endpoint, flags: list[list[str]], seconds: int, warm_up: int
) -> Figures:
    """Run several PerfTests concurrently against a broker on loopback and add up their figures.

    Args:
        folder: the folder of `fetch`.
        place: the broker's AMQP port on 127.0.0.1, where guest may log in, or its endpoint.
        flags: the workload of each.
        seconds: duration of sending (`-z`).
        warm_up: initial seconds excluded from `sent`, `received` and `confirmed`.

    Raises:
        PerfTestError: one failed, hung or reported nothing.
    """
    command = command_line(folder, place, seconds)
    with ThreadPoolExecutor(len(flags)) as pool:
        outputs = list(pool.map(lambda each: _output([*command, *each], seconds), flags))
    return added([parse(output, warm_up) for output in outputs])


def command_line(folder: Path, place: int | Endpoint, seconds: int) -> list[str]:
    """Return the command of a PerfTest that sends for `seconds` to a broker on loopback, without a workload."""
    command = ["java", "-cp", f"{folder}/*", "com.rabbitmq.perf.PerfTest"]
    return [*command, "-h", endpoint(place).url, "-z", str(seconds)]


def _output(command: list[str], seconds: int) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + GRACE)
    except subprocess.TimeoutExpired as error:
        message = f"PerfTest did not end {GRACE:.0f} s after its time; its last line: {_last(error.stdout)}"
        raise PerfTestError(message) from error
    if done.returncode:
        message = f"PerfTest ended with {done.returncode}: {_last(done.stdout)}"
        raise PerfTestError(message)
    return done.stdout


def added(parts: list[Figures]) -> Figures:
    """Return the combined figures of several PerfTests: rates and counts added, the worst latencies."""
    if len(parts) == 1:
        return parts[0]
    confirmed = [part.confirmed for part in parts if part.confirmed is not None]
    return Figures(
        sent=sum(part.sent for part in parts),
        received=sum(part.received for part in parts),
        confirmed=sum(confirmed) if confirmed else None,
        sent_total=sum(part.sent_total for part in parts),
        received_total=sum(part.received_total for part in parts),
        whole_run_sent=sum(part.whole_run_sent for part in parts),
        whole_run_received=sum(part.whole_run_received for part in parts),
        median_latency_us=max((part.median_latency_us or 0.0 for part in parts), default=None),
        p99_latency_us=max((part.p99_latency_us or 0.0 for part in parts), default=None),
        median_confirm_us=max((part.median_confirm_us or 0.0 for part in parts), default=None),
        p99_confirm_us=max((part.p99_confirm_us or 0.0 for part in parts), default=None),
    )


def parse(output: str, warm_up: int) -> Figures:
    """Parse PerfTest's report (its default metrics format).

    A run that ended by itself before the first whole second after the warm-up has the averages of its whole time.

    Raises:
        PerfTestError: there is no whole second after the warm-up in it.
    """
    steady: dict[str, list[float]] = {}
    totals: dict[str, float] = {}
    before = 0.0
    for line in output.splitlines():
        if (found := interval.search(line)) is None:
            continue
        now = float(found["time"])
        if now - before < 0.05:
            continue  # the rate of a very short interval is arbitrarily large
        for name, value in rate.findall(line):
            totals[name] = totals.get(name, 0.0) + float(value) * (now - before)
            if now > warm_up + 0.5 and now - before > 0.5:
                steady.setdefault(name, []).append(float(value))
        before = now
    averages = {name: float(value) for name, value in average.findall(output)}
    if not steady and "reached message limit" in output:
        steady = {NAMES[name]: [value] for name, value in averages.items()}
    if not steady:
        message = f"PerfTest reported no interval after {warm_up} s: {_last(output)}"
        raise PerfTestError(message)
    means = {name: statistics.fmean(values) for name, values in steady.items()}
    percentiles: dict[str, list[float | None]] = {}
    for kind, values, unit in latency.findall(output):
        percentiles.setdefault(
            kind, [float(value) * (1000.0 if unit == "ms" else 1.0) for value in values.split("/")]
        )
    consumed, confirmed = (percentiles.get(kind, [None] * 5) for kind in ("consumer", "confirm"))
    return Figures(
        sent=means.get("sent", 0.0),
        received=means.get("received", 0.0),
        confirmed=means.get("confirmed"),
        sent_total=round(totals.get("sent", 0.0)),
        received_total=round(totals.get("received", 0.0)),
        whole_run_sent=averages.get("sending", 0.0),
        whole_run_received=averages.get("receiving", 0.0),
        median_latency_us=consumed[1],
        p99_latency_us=consumed[4],
        median_confirm_us=confirmed[1],
        p99_confirm_us=confirmed[4],
    )


def _last(output: str | bytes | None) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "(nothing)"

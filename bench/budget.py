"""Divides the processor time of a message, for each broker: `python -m bench.budget` or `make bench NAME=budget`.

Each workload of `bench.field` runs twice under PerfTest. In the first run `perf` (Linux; needs root) samples the
broker's threads: user time, and the kernel's by the system call that it works for. Their sum is the scheduler's figure.
In the second run `perf` counts system calls and their bytes, which slows them down; nothing else of that run is used.

Figures are for each message that is delivered, or sent where nobody consumes: microseconds, or numbers; bytes for each
call. *Loop* is the thread that works most: Leveret's event loop, that of LavinMQ's fibers; *others* are all others:
Leveret's writer, LavinMQ's collector of garbage. On a busy machine a broker waits for a core, and finds more in a read.
"""

import argparse
import contextlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import uvloop

from bench import brokers, compare, loads, peers, perftest, results
from bench.workloads import FIELD, Workload

CHOSEN = ("autoack-12", "ack-batch", "fan-1x5", "paper-15q", "awaited", "ten-10")
LEAST = 0.0005  # of a figure that is shown
THREADS = ("loop", "others")
FUNCTIONS = {  # of the kernel; the first kind of which one is on a sample's stack counts
    "send": ("__sys_sendto", "__sys_sendmsg", "sock_write_iter"),
    "receive": ("__sys_recvfrom", "__sys_recvmsg", "sock_read_iter"),
    "epoll": ("sys_epoll_wait", "sys_epoll_pwait", "sys_epoll_pwait2", "sys_epoll_ctl"),
    "futex": ("sys_futex",),
    "file": ("vfs_write", "vfs_fsync_range", "sys_io_submit", "sys_fdatasync", "sys_msync", "sys_syncfs"),
    "memory": ("exc_page_fault", "asm_exc_page_fault", "sys_mmap", "sys_munmap", "sys_madvise"),
}
CALLS = {  # numbers of system calls (x86-64)
    "receive": (0, 19, 45, 47),
    "send": (1, 20, 44, 46),
    "file": (17, 18, 295, 296, 209),
    "flush": (26, 74, 75, 277, 306),
    "epoll": (232, 233, 281, 441),
    "futex": (202,),
}
WAKE = 8  # bytes of a read or write of an eventfd, by which a thread wakes another
SAMPLES = ("-g", "-e", "cpu-clock", "-F", "3989")
EXITS = ("-m", "4M", "-e", "raw_syscalls:sys_exit")
frame = re.compile(r"^\s+[0-9a-f]+ (?P<name>\S+) \(.*kernel.*\)$")
call = re.compile(r"^\s*(?P<tid>\d+)\s+NR (?P<number>-?\d+) = (?P<result>-?\d+)$")
waits = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


def kind_of(functions: Iterable[str]) -> str:
    """Return the kind of a sample by the functions of the kernel on its stack; with none it is user time."""
    names = {name.removeprefix("__x64_") for name in functions}
    kinds = (kind for kind, some in FUNCTIONS.items() if not names.isdisjoint(some))
    return next(kinds, "other") if names else "user"


def samples_of(script: str, loop: int) -> Counter[tuple[str, str]]:
    """Count samples of `perf script -F tid,ip,sym,dso` by thread and kind."""
    counts = Counter[tuple[str, str]]()
    for block in script.strip().split("\n\n"):
        head, *lines = block.strip("\n").splitlines() or [""]
        if head.strip().isdigit():
            names = [found["name"] for line in lines if (found := frame.match(line))]
            counts[THREADS[int(head) != loop], kind_of(names)] += 1
    return counts


def calls_of(script: str, loop: int) -> tuple[Counter[str], Counter[str]]:
    """Return the number of system calls of each kind in `perf script -F tid,trace`, and their bytes."""
    kinds = {number: kind for kind, numbers in CALLS.items() for number in numbers}
    counts, octets = Counter[str](), Counter[str]()
    for found in filter(None, map(call.match, script.splitlines())):
        kind, result = kinds.get(int(found["number"]), "other"), int(found["result"])
        if kind in ("receive", "send"):
            if result == WAKE:
                kind = "wake"
            elif int(found["tid"]) != loop:
                kind = "file"
            octets[kind] += max(result, 0)
        counts[kind] += 1
    return counts, octets


def used(broker: int, client: int) -> dict[str, float]:
    """Return what the two processes have used so far: microseconds of each thread, and how often the broker waited."""
    found = {"switches": 0.0}
    for task in Path(f"/proc/{broker}/task").iterdir():
        found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1000
        found["switches"] += sum(map(int, waits.findall((task / "status").read_text())))
    ticks = Path(f"/proc/{client}/stat").read_text().rpartition(")")[2].split()
    user, kernel = (int(each) / brokers.TICKS_PER_SECOND * 1e6 for each in ticks[11:13])
    return found | {"PerfTest, user": user, "PerfTest, kernel": kernel}


def watched(
    workload: Workload, broker: brokers.Broker, options: argparse.Namespace, perf: Sequence[str], fields: str
) -> tuple[dict[str, float], str]:
    """Run a workload; return what was used after the warm-up, with the messages, and these fields of `perf`'s samples.

    Raises:
        PerfTestError: nothing was reported in that time.

    """
    place = peers.endpoint_of(broker)
    tag = f"budget-{workload.name}-{time.time_ns()}"
    (flags,) = loads.prepare(place, workload, tag)
    flags += ["--rate", str(options.rate)] if options.rate else []
    command = perftest.command_line(options.folder, place, options.warm_up + options.seconds + 3)
    counted = "received" if workload.receives else "sent"
    messages = since = 0.0
    before, found = dict[str, float](), dict[str, float]()
    with tempfile.NamedTemporaryFile() as file, contextlib.ExitStack() as stack:
        process = stack.enter_context(subprocess.Popen([*command, *flags], stdout=subprocess.PIPE, text=True))
        for line in process.stdout or ():
            interval, rates = perftest.interval.search(line), dict(perftest.rate.findall(line))
            if found or interval is None or counted not in rates:
                continue
            now = float(interval["time"])
            if before:
                messages += float(rates[counted]) * (now - since)
            since = now
            if not before and now >= options.warm_up:
                recording = ["perf", "record", "-q", "-o", file.name, "-p", str(broker.pid), *perf]
                recorder = stack.enter_context(subprocess.Popen(recording, stderr=subprocess.DEVNULL))
                before = used(broker.pid, process.pid)
            elif before and now >= options.warm_up + options.seconds:
                now_used = used(broker.pid, process.pid)
                found = {name: value - before.get(name, 0.0) for name, value in now_used.items()}
                recorder.send_signal(signal.SIGINT)
        uvloop.run(loads.clean(place, workload, tag))
        if not messages or not found:
            raise perftest.PerfTestError(f"PerfTest reported nothing with {workload.name} and {broker.name}")
        recorder.wait()
        script = subprocess.check_output(["perf", "script", "-i", file.name, "-F", fields], text=True)
    return found | {"messages": messages}, script


def measured(workload: Workload, broker: brokers.Broker, options: argparse.Namespace) -> dict[str, float]:
    """Return the figures of a broker, with the names of the table's lines."""
    line: dict[str, float] = {}
    found, script = watched(workload, broker, options, SAMPLES, "tid,ip,sym,dso")
    messages = found.pop("messages")
    threads = {int(name): found.pop(name) for name in list(found) if name.isdigit()}
    loop = max(threads, key=threads.__getitem__)
    samples = samples_of(script, loop)
    for thread, spent in zip(THREADS, (threads[loop], sum(threads.values()) - threads[loop]), strict=True):
        total = sum(count for (one, _), count in samples.items() if one == thread)
        line[thread] = spent / messages
        for kind in ("user", *FUNCTIONS, "other"):
            line[f"{thread}, {kind}"] = line[thread] * samples[thread, kind] / (total or 1)
    line |= {name: value / messages for name, value in found.items()}
    found, script = watched(workload, broker, options, EXITS, "tid,trace")
    counts, octets = calls_of(script, loop)
    line |= {f"calls, {kind}": count / found["messages"] for kind, count in sorted(counts.items())}
    line |= {f"bytes, {kind}": octets[kind] / counts[kind] for kind in ("receive", "send") if counts[kind]}
    return line | {"messages a second": messages / options.seconds}


def table(workload: str, lines: Mapping[str, Mapping[str, float]]) -> str:
    """Return the table of a workload: a column for each broker."""
    rows = [f"| {workload} | {' | '.join(lines)} |", f"|---|{'---|' * len(lines)}"]
    for name in dict.fromkeys(name for line in lines.values() for name in line):
        values = [line.get(name, 0.0) for line in lines.values()]
        if any(value >= LEAST for value in values):
            shown = (f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values)
            rows.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0, or 2 if something could not run."""
    parser = argparse.ArgumentParser(prog="python -m bench.budget", description="processor time of a message")
    parser.add_argument("--brokers", type=compare.broker_names, default=["leveret"], metavar="NAMES")
    peers.option(parser)
    parser.add_argument("--workload", nargs="+", choices=FIELD, default=CHOSEN, metavar="NAME")
    parser.add_argument("--seconds", type=int, default=5, help="after the warm-up (default 5)")
    parser.add_argument("--warm-up", type=int, default=4, help="seconds before (default 4)")
    parser.add_argument("--rate", type=int, help="messages a second of each producer (default: full speed)")
    options = parser.parse_args(arguments)
    try:
        options.folder = perftest.fetch()
        with peers.running(options.brokers, options.peer) as started:
            for name in options.workload:
                lines = {each: measured(FIELD[name], broker, options) for each, broker in started.items()}
                results.append({"tool": "budget", "workload": name, "rate": options.rate, "lines": lines})
                print(table(name, lines), end="\n\n", flush=True)
    except (brokers.BrokerError, perftest.PerfTestError, OSError, subprocess.CalledProcessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

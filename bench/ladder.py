"""Cost of each delivery guarantee: `python -m bench.ladder` or `make bench NAME=ladder`.

One producer and one consumer under PerfTest, and each rung adds one guarantee: none, consumer acks, publisher confirms,
persistent messages in a durable queue. RabbitMQ 2.8.1 was measured in this way (two Xeon E5530, 40 GB, Erlang R15B with
HiPE); the ratios of its rungs are printed next to today's. Message size, prefetch count and window of that measurement
are not published: the first two are PerfTest's defaults here (12 bytes, no limit), the window is `--window`.

`ack` and `ack-light` are Leveret with `confirm.mode` consumer-ack and consumer-ack-light. They differ from `leveret`
only with confirms, so only those rungs are run, and their ratios are to the first rung of `leveret`. All brokers run
throughout and take turns within a round, each with a data directory of its own. The measured rate is the least of sent,
received and confirmed after the warm-up, as in `bench.compare`.
"""

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import uvloop

from bench import brokers, compare, perftest, results
from bench.workloads import Workload

SETTINGS = {"ack": "confirm.mode=consumer-ack", "ack-light": "confirm.mode=consumer-ack-light"}
NAMES = ("leveret", "rabbitmq", *SETTINGS)
PUBLISHED = {"no-acks": 44_824, "acks": 32_005, "confirms": 26_103, "persistence": 4_725}
"""Published send rates of RabbitMQ 2.8.1 in messages a second, by rung."""
FIRST = next(iter(PUBLISHED))
FLAGS = {"no-acks": "-x1 -y1 -a", "acks": "-x1 -y1", "confirms": "-x1 -y1 -c{window}"}
FLAGS["persistence"] = FLAGS["confirms"] + " -f persistent -ad false"

Rates = Mapping[tuple[str, str], Mapping[int, float]]
"""Messages a second by (rung, broker), and then by round."""


def rungs(window: int) -> list[Workload]:
    """Return the rungs from the cheapest to the most expensive, with at most `window` unconfirmed messages."""
    return [
        Workload(name, flags.format(window=window), bar=0.0, aim=0.0, kept=name == "persistence")
        for name, flags in FLAGS.items()
    ]


def turns(
    steps: Sequence[Workload], names: Sequence[str], rounds: int
) -> Iterator[tuple[int, Workload, str]]:
    """Yield (round, rung, broker): each rung on each broker affected by it, with the first broker rotating by round."""
    for number in range(1, rounds + 1):
        shift = (number - 1) % len(names)
        for rung in steps:
            for name in [*names[shift:], *names[:shift]]:
                if name not in SETTINGS or "-c" in rung.flags:
                    yield number, rung, name


def ratio(over: Mapping[int, float], under: Mapping[int, float]) -> float | None:
    """Return the median ratio over the rounds that have both rates; None if there are none."""
    rounds = over.keys() & under.keys()
    return median(over[at] / under[at] for at in rounds) if rounds else None


def table(rates: Rates, names: Sequence[str]) -> str:
    """Return medians of the rounds, ratios to the first rung, and those published; "-" for missing results.

    Args:
        rates: the measured rates.
        names: the brokers, a pair of columns each.
    """
    heads = "".join(f"{name:>12}{'ratio':>8}" for name in ("2.8.1", *names))
    lines = [f"{'messages a second':<18}{heads}"]
    for rung, said in PUBLISHED.items():
        text = f"{rung:<18}{said:>12,}{said / PUBLISHED[FIRST]:>8.3f}"
        for name in names:
            measured = rates.get((rung, name), {})
            base = rates.get((FIRST, "leveret" if name in SETTINGS else name), {})
            part = ratio(measured, base)
            text += f"{median(measured.values()):>12,.0f}" if measured else f"{'-':>12}"
            text += f"{'-':>8}" if part is None else f"{part:>8.3f}"
        lines.append(text)
    return "\n".join(lines)


def parser() -> argparse.ArgumentParser:
    """Return the command line's parser."""
    made = argparse.ArgumentParser(prog="python -m bench.ladder", description="What each promise costs")
    made.add_argument(
        "--brokers", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME", help=", ".join(NAMES)
    )
    made.add_argument("--rounds", type=int, default=3, help="how often everything is run (default 3)")
    made.add_argument("--seconds", type=int, default=7, help="length of one run (default 7)")
    made.add_argument("--warm-up", type=int, default=compare.WARM_UP, help="first seconds that do not count")
    made.add_argument(
        "--window", type=int, default=1000, help="messages that may wait for their confirm (default 1000)"
    )
    made.add_argument(
        "--quiet",
        type=float,
        metavar="PERCENT",
        help="repeat a run beside which others took more, as in bench.compare",
    )
    made.add_argument("--perf-test", default=perftest.VERSION, metavar="VERSION", help="PerfTest's version")
    made.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="handed to every `leveret serve --set`",
    )
    return made


@contextlib.contextmanager
def running(names: Sequence[str], settings: Sequence[str]) -> Iterator[dict[str, brokers.Broker]]:
    """Run the brokers of the named columns for the duration of a `with` block.

    Args:
        names: which of `NAMES`.
        settings: `KEY=VALUE` pairs for each Leveret's `--set`.

    Raises:
        BrokerError: one of them is not installed or does not come up.
    """
    with contextlib.ExitStack() as stack:
        started = {}
        for name in names:
            program = "leveret" if name in SETTINGS else name
            own = [SETTINGS[name]] if name in SETTINGS else []
            broker = stack.enter_context(brokers.running([program], [*settings, *own]))[program]
            broker.name = name
            started[name] = broker
        yield started


def measure(options: argparse.Namespace, rates: dict[tuple[str, str], dict[int, float]]) -> int:
    """Run everything, print each run, collect the rates; return the number of failed runs."""
    folder = perftest.fetch(options.perf_test)
    failed = 0
    with running(options.brokers, options.set) as started:
        peers = uvloop.run(compare.describe(started.values()))
        if SETTINGS.keys() & started.keys():
            print(
                f"{', '.join(SETTINGS)}: confirmed when the consumer has acknowledged, not when it is on disk"
            )
        compare.print_setting(options, started, peers)
        for number, rung, name in turns(rungs(options.window), options.brokers, options.rounds):
            try:
                run = compare.run_quietly(rung, started[name], number, options, folder)
            except perftest.PerfTestError as error:
                print(f"{number:>5} {rung.name:<16}{name:<10}FAILED: {error}", flush=True)
                failed += 1
                continue
            print(compare.line(run), flush=True)
            entry = {"tool": "ladder", "peer": peers[name], **vars(options), **dataclasses.asdict(run)}
            results.append(entry)
            rates.setdefault((rung.name, name), {})[number] = run.counted
    return failed


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; return 0, 1 if a run failed, 2 if a broker or PerfTest is not available."""
    options = parser().parse_args(arguments)
    rates: dict[tuple[str, str], dict[int, float]] = {}
    try:
        failed = measure(options, rates)
    except (brokers.BrokerError, perftest.PerfTestError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    print(f"\nwindow {options.window:,}; medians, and medians of each round's ratios to the first rung\n")
    print(table(rates, options.brokers))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

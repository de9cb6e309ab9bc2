"""The table of a sweep: rates, speed-ups next to the paper's, and the cost of a message; made from records only."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from bench.paper_plan import (
    BUSY,
    CONSUMER_CHANNELS,
    CONSUMERS,
    LINES,
    PREFETCH,
    PRODUCER_CHANNELS,
    PRODUCERS,
    Plan,
    counted,
)
from bench.paper_records import BenchCost, BenchRun, BenchSample, done
from bench.paper_samples import Sample, SampleError, Steady, steady
from bench.paper_stats import ENOUGH, NOT_SLOWER, Ratio, paired, ratio

BASELINES = ("default", "paper-standard")
JUDGED = ("consumer-ack", "consumer-ack-light")
PAPER = {
    "consumer-ack": {1: 3.08, 2: 2.01, 15: 1.41, 30: 1.40},
    "consumer-ack-light": {1: 3.48, 2: 2.16, 15: 1.53, 30: 1.53},
}
"""New rate over old by number of queues, from the paper."""
PAPER_ABOVE_THREE = {"consumer-ack": 1.429, "consumer-ack-light": 1.565}
"""Its mean over all queue counts above 3."""
GENERATORS = (
    "Up to 15 queues: one PerfTest, one durable direct exchange. More: two PerfTests at once, each with an "
    "exchange\nand half of the queues, because a PerfTest publishes to one exchange only; their rates are added, of "
    "their\nlatencies the worse counts."
)


LEGEND = (
    "msg/s      the least of published, confirmed and received; mean of the blocks",
    "x          geometric mean of the ratios to the baseline in the same block [95 % interval]; paper: its own figure",
    "confirm    median of the seconds' medians of the time from publish to confirm, ms",
    "the rest   per message of the whole run: CPU of the broker and of PerfTest, octets to the disk; commits, flushes",
    "           and early confirms as the broker counts them; by disk: flushes as the disk counts them, anybody's",
    "",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One recorded run and the figures of its steady seconds."""

    run: BenchRun
    cost: BenchCost
    steady: Steady


def results(
    plan: Plan, runs: Iterable[BenchRun], samples: Iterable[BenchSample], costs: Iterable[BenchCost]
) -> list[Result]:
    """Join the tables: the attempts that count.

    A run without a steady second or without its cost is left out, as if it were missing.
    """
    runs, costs = list(runs), list(costs)
    chosen = counted(plan, list(done(plan, runs, costs)))
    ids = {plan.run_id(trial, chosen[trial.number][0]) for trial in plan.trials if trial.number in chosen}
    intervals: dict[str, list[Sample]] = {}
    for row in samples:
        rows = intervals.setdefault(row.run_id, [])
        rates = {
            name: getattr(row, name) for name in ("published", "confirmed", "returned", "nacked", "received")
        }
        rows.append(Sample(rows[-1].t_s if rows else 0.0, row.t_s, rates, {"c_p50": row.c_p50}))
    cost_of = {cost.run_id: cost for cost in costs}
    joined = []
    for run in runs:
        if run.run_id not in ids:
            continue
        try:
            figures = steady(intervals.get(run.run_id, []), plan.seconds, plan.cut_start, plan.cut_end)
        except SampleError:
            continue
        if run.run_id in cost_of:
            joined.append(Result(run, cost_of[run.run_id], figures))
    return joined


def setting(plan: Plan) -> Iterator[str]:
    """Yield the description of the measured lines and their baselines."""
    first, last = plan.cut_start, plan.seconds - plan.cut_end
    yield f"sweep {plan.sweep}, seed {plan.seed}, git {plan.git or 'unknown'}, PerfTest {plan.perf_test}"
    yield (
        f"per queue {PRODUCERS} producers x {PRODUCER_CHANNELS} channels and {CONSUMERS} consumers x "
        f"{CONSUMER_CHANNELS} channels, 1,500 octets, persistent, confirms, acks one by one, prefetch {PREFETCH}"
    )
    counted = f"{first:g} s to {last:g} s count"
    yield f"runs of {plan.seconds} s, of which {counted}; {plan.blocks} block(s), lines in random order"
    for name in plan.lines():
        line = LINES[name]
        baseline = "BASELINE " if name in BASELINES else ""
        settings = " ".join(line.settings)
        yield f"  {name:<20}{baseline}{line.description}{f' [{settings}]' if settings else ''}"
    if any(queues > 15 for _, queues in plan.cells()):
        yield GENERATORS


def report(plan: Plan, found: Sequence[Result]) -> tuple[list[str], bool]:
    """Return the lines of the whole report, and whether no verdict is against us."""
    text = [*setting(plan), ""]
    if missing := len(plan.trials) - len(found):
        text += [f"NOT COMPLETE: {missing} of {len(plan.trials)} runs are missing", ""]
    text += LEGEND
    for window in sorted({window for window, _ in plan.cells()}):
        text += table(plan, [result for result in found if result.cost.window == window], window)
    verdicts, good = judge(plan, found)
    text += [*verdicts, *remarks(found)]
    return text, good


def table(plan: Plan, found: Sequence[Result], window: int) -> list[str]:
    """Return the table of one publisher window."""
    ratios = "".join(f"{'x ' + baseline:>21}" for baseline in BASELINES)
    costs = "".join(
        f"{title:>10}"
        for title in ("CPU us", "client us", "disk B", "commits", "flushes", "early", "by disk")
    )
    text = [
        f"Publisher window -c {window}",
        "",
        f"{'queues':>6}  {'line':<19}{'n':>3}{'msg/s':>9}{ratios}{'paper':>7}{'confirm':>10}{costs}",
    ]
    for queues in sorted({queues for each, queues in plan.cells() if each == window}):
        here = [result for result in found if result.run.queues == queues]
        for name in plan.lines():
            mine = [result for result in here if result.cost.line == name]
            start = f"{queues:>6}  {name:<19}{len(mine):>3}"
            text.append(start + (figures(name, queues, mine, here) if mine else f"{'not measured':>14}"))
        text.append("")
    means = [line for name in JUDGED if name in plan.lines() and (line := above_three(name, found))]
    return [*text, *means, *([""] if means else [])]


def figures(name: str, queues: int, mine: Sequence[Result], here: Sequence[Result]) -> str:
    """Return the table's text for one line and number of queues, after its name."""
    text = f"{fmean(result.steady.counted for result in mine):>9,.0f}"
    for baseline in BASELINES:
        text += f"{'-' if baseline == name else shown(speed_up(name, baseline, here)):>21}"
    theirs = PAPER.get(name, {}).get(queues)
    text += f"{'-' if theirs is None else f'{theirs:.2f}':>7}"
    text += mean(
        mine, lambda r: None if r.steady.confirm_p50_us is None else r.steady.confirm_p50_us / 1000, ",.1f"
    )
    text += mean(mine, lambda r: r.cost.cpu_s / r.cost.messages * 1e6, ",.1f")
    text += mean(mine, lambda r: r.cost.client_cpu_s / r.cost.messages * 1e6, ",.1f")
    text += mean(mine, lambda r: r.cost.write_bytes / r.cost.messages, ",.0f")
    for each in ("commits", "flushes", "early"):
        text += mean(mine, lambda r, each=each: counter(r.cost, each), ".5f")
    return text + mean(
        mine, lambda r: None if r.cost.flushes is None else r.cost.flushes / r.cost.messages, ".5f"
    )


def mean(found: Sequence[Result], of: Callable[[Result], float | None], form: str) -> str:
    """Return the mean of a figure, ten wide; a dash if none of the runs has it."""
    values = [value for value in map(of, found) if value is not None]
    return f"{format(fmean(values), form) if values else '-':>10}"


def counter(cost: BenchCost, name: str) -> float | None:
    """Return one of the broker's own counters per message; None if it did not log it."""
    return cost.counters[name] / cost.messages if name in cost.counters else None


def by_block(name: str, found: Iterable[Result]) -> dict[int, float]:
    """Return a line's rate in each block."""
    return {result.run.block: result.steady.counted for result in found if result.cost.line == name}


def speed_up(name: str, baseline: str, here: Sequence[Result]) -> Ratio | None:
    """Return a line's rate over a baseline's; the results are those of one queue count and window."""
    return ratio(paired(by_block(name, here), by_block(baseline, here)))


def shown(found: Ratio | None) -> str:
    """Return a ratio with its interval, if it has one."""
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.mean:.2f} [one pair]"
    return f"{found.mean:.2f} [{found.low:.2f}, {found.high:.2f}]"


def above_three(name: str, found: Sequence[Result]) -> str:
    """Return the mean speed-up over all queue counts above 3 with the paper's; empty if there is none."""
    counts = sorted({result.run.queues for result in found if result.run.queues > 3})
    texts = []
    for baseline in BASELINES:
        ratios = [speed_up(name, baseline, [r for r in found if r.run.queues == count]) for count in counts]
        if means := [each.mean for each in ratios if each is not None]:
            texts.append(f"{fmean(means):.2f} x {baseline} ({len(means)} queue counts)")
    theirs = f"; the paper, over all it measured: {PAPER_ABOVE_THREE[name]:.2f}"
    return f"  {name}, mean over more than 3 queues: {', '.join(texts)}{theirs}" if texts else ""


def judge(plan: Plan, found: Sequence[Result]) -> tuple[list[str], bool]:
    """Return the verdicts, and whether none is against us."""
    names = [name for name in JUDGED if name in plan.lines()]
    if not names or "default" not in plan.lines():
        return [], True
    good = True
    text = [
        f"consumer-ack modes not slower than default: lower 95 % bound >= {NOT_SLOWER}, of {ENOUGH} blocks or more"
    ]
    for window, queues in plan.cells():
        here = [each for each in found if (each.cost.window, each.run.queues) == (window, queues)]
        for name in names:
            compared = speed_up(name, "default", here)
            if compared is None or not compared.judged:
                pairs = 0 if compared is None else compared.n
                verdict = f"not judged: {pairs} of {ENOUGH} blocks"
            else:
                verdict = "holds" if compared.not_slower else "DOES NOT HOLD"
                good = good and compared.not_slower
            text.append(f"  -c {window:<5} {queues:>3} queues  {name:<19} {shown(compared):<21} {verdict}")
    return [*text, ""], good


def remarks(found: Sequence[Result]) -> Iterator[str]:
    """Yield the reasons for doubting runs."""
    yield from named(
        found, f"more than {BUSY:.0%} of the machine went to something else", lambda r: r.cost.other > BUSY
    )
    yield from named(found, "messages were refused in the seconds that count", lambda r: r.steady.nacked > 0)
    yield from named(
        found,
        "the broker logged no counters",
        lambda r: r.run.broker == "leveret" and not r.cost.counters,
    )
    revisions: Mapping[str, None] = dict.fromkeys(result.run.git for result in found)
    if len(revisions) > 1:
        yield f"runs of {len(revisions)} revisions: {', '.join(revisions)}"


def named(found: Sequence[Result], what: str, doubtful: Callable[[Result], bool]) -> Iterator[str]:
    """Yield the number of runs that meet a condition, line by line, if any."""
    lines = [result.cost.line for result in found if doubtful(result)]
    if lines:
        counts = ", ".join(f"{name} {lines.count(name)}" for name in LINES if name in lines)
        yield f"{what}: {len(lines)} of {len(found)} runs ({counts})"

"""Text and figures of a sweep for docs/paper-report.md, from its records alone. Pure."""

import math
import statistics
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from bench.paper_design import Effect, effects
from bench.paper_plan import BUSY, DESIGN, LINES, Done, Plan, cells_of, counted
from bench.paper_report import JUDGED, PAPER, PAPER_ABOVE_THREE, Result, by_block
from bench.paper_stats import ENOUGH, Ratio, paired, ratio, t_95
from leveret.analytics.figures import Panel, Panels, Series, panels

OLD = ("paper-baseline", "paper-standard", "default", "rabbitmq", "rabbitmq-plugins")
"""The lines that the modes are compared with."""
ABOVE = 3
WIDTH = 120
FIGURES = {"consumer-ack": 5, "consumer-ack-light": 6}


def ratio_text(found: Ratio | Effect | None) -> str:
    """Return a ratio with its 95 % interval, as far as there is any."""
    if found is None:
        return "-"
    value = found.mean if isinstance(found, Ratio) else found.ratio
    if found.low is None or found.high is None:
        return f"{value:.2f} (one block)"
    return f"{value:.2f} ({found.low:.2f} to {found.high:.2f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *[f"| {' | '.join(row)} |" for row in rows],
        "",
    ]


def values(found: Sequence[Result], line: str, of: Callable[[Result], float]) -> dict[int, float]:
    """Return a figure of a line in each block; the results are those of one queue count."""
    return {each.run.block: of(each) for each in found if each.cost.line == line}


def rate(result: Result) -> float:
    """Return messages per second."""
    return result.steady.counted


def cpu(result: Result) -> float:
    """Return the broker's processor time for a message, in microseconds."""
    return result.cost.cpu_s / result.cost.messages * 1e6


def client_cpu(result: Result) -> float:
    """Return PerfTest's processor time for a message, in microseconds."""
    return result.cost.client_cpu_s / result.cost.messages * 1e6


def disk(result: Result) -> float:
    """Return the bytes written to disk for a message; one byte in all if there are none, as ratios need it."""
    return max(result.cost.write_bytes, 1) / result.cost.messages


def compare(
    found: Sequence[Result], new: str, old: str, of: Callable[[Result], float] = rate
) -> Ratio | None:
    """Return a line's figure divided by another's of the same block."""
    return ratio(paired(values(found, new, of), values(found, old, of)))


def improvement(found: Sequence[Result], new: str, old: str) -> float | None:
    """Return the paper's speed-up: the mean rate of a line divided by that of another, without an interval."""
    after, before = by_block(new, found), by_block(old, found)
    both = after.keys() & before.keys()
    if not both:
        return None
    return statistics.fmean(after[each] for each in both) / statistics.fmean(before[each] for each in both)


def verdict(found: Ratio | None) -> str:
    """Return in words whether the interval is above 1, below, or neither; too few blocks are no verdict."""
    if found is None or found.low is None or found.high is None:
        return "not judged"
    said = "faster" if found.low > 1 else "slower" if found.high < 1 else "no difference shown"
    return said if found.judged else f"{said}, of {found.n} blocks (a verdict needs {ENOUGH})"


def at_each(found: Sequence[Result]) -> list[tuple[int, list[Result]]]:
    """Return the results of each queue count, in order."""
    ordered = sorted(found, key=lambda each: each.run.queues)
    return [(queues, list(some)) for queues, some in groupby(ordered, key=lambda each: each.run.queues)]


def page(plan: Plan, found: Sequence[Result], done: Sequence[Done], figures: Mapping[int, str]) -> list[str]:
    """Return the lines of a sweep's part of the page.

    Args:
        plan: the sweep's plan.
        found: the runs that count.
        done: all recorded runs.
        figures: the path of the figure of the paper's Figures 5 and 6.
    """
    text = [*facts(plan, found, done)]
    for number, path in figures.items():
        text += [f"![The paper's Figure {number} with these runs]({path})", ""]
    for title, part in (
        ("Beside the paper", beside(found)),
        ("More than three queues", above_three(found)),
        ("The default beside the paper's standard", default(found)),
        ("Cost of the timer, the late confirms and the tables", design(found)),
        ("Rates and costs", rates(found)),
        ("Shape of the lines", shapes(found)),
        ("RabbitMQ's plugins", plugins(found)),
    ):
        if lines := list(part):
            text += [f"### {title}", "", *lines]
    return [wrapped for line in text for wrapped in (wrap(line) if line[:1].isalpha() else [line])]


def wrap(line: str) -> list[str]:
    """Return a paragraph as lines of the page's width."""
    return textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)


def facts(plan: Plan, found: Sequence[Result], done: Sequence[Done]) -> Iterator[str]:
    """Yield what was measured where and when, and what was left out and why."""
    days = sorted({time.strftime("%-d %B %Y", time.gmtime(each.run.start_ts / 1000)) for each in found})
    machines = sorted({f"{each.run.cpu}, Linux {each.run.kernel}" for each in found})
    revisions = sorted({each.run.git for each in found})
    brokers = sorted({each.run.version for each in found if each.run.broker == "rabbitmq"})
    marked = {number for number, (_, spoiled) in counted(plan, done).items() if spoiled}
    cells = cells_of(plan)
    again = [
        cell for cell in cells if any(each.attempt > 1 for each in done if each.number == cell[0].number)
    ]
    spoiled = [cell for cell in cells if any(trial.number in marked for trial in cell)]
    listed = ", ".join(f"block {cell[0].block} with {cell[0].queues} queues" for cell in spoiled)
    missing = len(plan.trials) - len(found)
    yield (
        f"Sweep {plan.sweep} of {' and '.join(days)}, revision {', '.join(revisions)}, on {'; '.join(machines)}"
        f"{''.join(f', {each}' for each in brokers)}, PerfTest {plan.perf_test}. Runs of {plan.seconds} s, of which "
        f"{plan.cut_start:g} s to {plan.seconds - plan.cut_end:g} s count; {plan.blocks} blocks planned."
    )
    yield ""
    yield (
        f"Of {len(plan.trials)} planned runs {len(found)} count. Measured again, because other programs took more than "
        f"{BUSY:.0%} of the machine's processor time during a run: {len(again)} of {len(cells)} cells "
        f"(a queue count in a block). Counted although disturbed: {len(spoiled)} cells"
        + (f" ({listed})." if listed else ".")
    )
    if missing:
        counts: dict[str, list[str]] = {}
        there = {(each.run.block, each.run.queues, each.cost.line) for each in found}
        for trial in plan.trials:
            if (trial.block, trial.queues, trial.line) not in there:
                counts.setdefault(f"block {trial.block}", []).append(f"{trial.line} at {trial.queues}")
        listed = "; ".join(
            f"{block}: {len(each)} runs" if len(each) > ABOVE else f"{block}: {', '.join(each)}"
            for block, each in counts.items()
        )
        yield ""
        yield f"Not measured, because the machine was needed for other work: {missing} runs ({listed})."
    yield ""


def beside(found: Sequence[Result]) -> Iterator[str]:
    """Yield the speed-ups by the paper's own definition beside its claims, and with intervals."""
    rows = []
    for line in JUDGED:
        for queues, here in at_each(found):
            if not by_block(line, here):
                continue
            claim = PAPER[line].get(queues)
            own = improvement(here, line, "paper-baseline")
            against = compare(here, line, "paper-baseline")
            rows.append(
                [
                    str(queues),
                    f"`{line}`",
                    "-" if claim is None else f"{claim:.2f}",
                    "-" if own is None else f"{own:.2f}",
                    *[ratio_text(compare(here, line, old)) for old in OLD],
                    verdict(against),
                ]
            )
    if rows:
        yield from table(
            ["queues", "line", "the paper", "by its definition", *[f"x `{old}`" for old in OLD], "verdict"],
            rows,
        )
        yield (
            "The paper's definition: mean rate of the runs with the optimisation, divided by that without, here "
            "`paper-baseline`. The other columns are geometric means of the ratios in each block, with 95 % intervals. "
            "The verdict is that beside `paper-baseline`."
        )
        yield ""


def above_three(found: Sequence[Result]) -> Iterator[str]:
    """Yield the mean speed-up over all queue counts above three, which the paper gives."""
    rows = []
    for line in JUDGED:
        for old in OLD:
            ratios = [
                each
                for queues, here in at_each(found)
                if queues > ABOVE and (each := compare(here, line, old)) is not None
            ]
            if ratios:
                mean = statistics.fmean(each.mean for each in ratios)
                rows.append(
                    [
                        f"`{line}`",
                        f"`{old}`",
                        str(len(ratios)),
                        f"{mean:.2f}",
                        f"{PAPER_ABOVE_THREE[line]:.3f}",
                    ]
                )
    if rows:
        yield from table(["line", "divided by", "queue counts", "mean", "the paper"], rows)


def default(found: Sequence[Result]) -> Iterator[str]:
    """Yield the default's rate and processor time divided by those of the paper's standard."""
    rows = []
    for queues, here in at_each(found):
        of_rate = compare(here, "default", "paper-standard")
        if of_rate is not None:
            costs = [
                ratio_text(compare(here, "default", "paper-standard", of)) for of in (cpu, client_cpu, disk)
            ]
            rows.append([str(queues), ratio_text(of_rate), *costs, verdict(of_rate)])
    if rows:
        yield from table(["queues", "rate", "broker's time", "PerfTest's time", "disk", "verdict"], rows)
        yield (
            "The default divided by `paper-standard`: the rate, the processor time of the broker and of PerfTest for a "
            "message, and the bytes written to disk for it."
        )
        yield ""


def design(found: Sequence[Result]) -> Iterator[str]:
    """Yield the effects of the 2^3 design on the rate and on the broker's processor time."""
    rows = []
    blocks = set()
    for queues, here in at_each(found):
        of_rate = effects({line: values(here, line, rate) for line in DESIGN})
        of_cpu = effects({line: values(here, line, cpu) for line in DESIGN})
        for rates_, cpus in zip(of_rate, of_cpu, strict=True):
            blocks.add(rates_.blocks)
            rows.append([str(queues), rates_.name, ratio_text(rates_), ratio_text(cpus)])
    if rows:
        numbers = " or ".join(map(str, sorted(blocks)))
        yield from table(["queues", "effect", "rate", "broker's processor time a message"], rows)
        yield (
            "Factors by which a value changes when the factor is on, over the four lines with it and the four without; "
            "an interaction is half the difference of an effect with and without the other factor. A value of 1 is no "
            f"effect. Intervals are of the residuals of all eight lines; complete blocks: {numbers}. "
            "`timer`: a commit every 200 ms, at once when idle; `late`: no early confirms; `tables`: "
            "RabbitMQ's tables of each message."
        )
        yield ""


def rates(found: Sequence[Result]) -> Iterator[str]:
    """Yield the mean rate of each line with its interval, and the cost of a message."""
    rows = []
    for queues, here in at_each(found):
        for line in LINES:
            mine = [each for each in here if each.cost.line == line]
            if not mine:
                continue
            confirms = [each.steady.confirm_p50_us for each in mine if each.steady.confirm_p50_us is not None]
            messages = [each.cost.messages for each in mine]
            commits = [each.cost.counters["commits"] for each in mine if "commits" in each.cost.counters]
            rows.append(
                [
                    str(queues),
                    f"`{line}`",
                    str(len(mine)),
                    mean_text([rate(each) for each in mine]),
                    f"{statistics.fmean(confirms) / 1000:,.1f}" if confirms else "-",
                    f"{statistics.fmean(map(cpu, mine)):.1f}",
                    f"{statistics.fmean(map(client_cpu, mine)):.1f}",
                    f"{sum(each.cost.write_bytes for each in mine) / sum(messages):,.0f}",
                    f"{sum(commits) / sum(messages) * 1000:.2f}" if commits else "-",
                ]
            )
    yield from table(
        [
            "queues",
            "line",
            "runs",
            "messages/s",
            "confirm, ms",
            "broker, us",
            "PerfTest, us",
            "disk, bytes",
            "commits",
        ],
        rows,
    )
    yield (
        "Mean rate with the 95 % interval of the mean; the median of the seconds' medians from publish to confirm; "
        "processor time and bytes written for a message of the whole run; commits for a thousand messages."
    )
    yield ""


def mean_text(numbers: Sequence[float]) -> str:
    """Return a mean with its 95 % interval, if it has any."""
    mean = statistics.fmean(numbers)
    if len(numbers) == 1:
        return f"{mean:,.0f}"
    half = t_95(len(numbers) - 1) * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return f"{mean:,.0f} ± {half:,.0f}"


def shapes(found: Sequence[Result]) -> Iterator[str]:
    """Yield how each line's rate changes with the number of queues."""
    rows = []
    for line in LINES:
        means = {
            queues: statistics.fmean(mine)
            for queues, here in at_each(found)
            if (mine := [rate(each) for each in here if each.cost.line == line])
        }
        if len(means) < 2:
            continue
        best = max(means, key=lambda queues: means[queues])
        first, last = min(means), max(means)
        shape = (
            "falls" if best == first else "rises" if best == last else f"rises to {best} queues, then falls"
        )
        rows.append(
            [f"`{line}`", *[f"{means[best] / means[each]:.2f}" for each in (first, last)], str(best), shape]
        )
    if rows:
        yield from table(
            ["line", "greatest / fewest queues", "greatest / most queues", "greatest at", "shape"], rows
        )


def plugins(found: Sequence[Result]) -> Iterator[str]:
    """Yield what the plugins management and top cost RabbitMQ."""
    rows = []
    for queues, here in at_each(found):
        of_rate = compare(here, "rabbitmq-plugins", "rabbitmq")
        if of_rate is not None:
            of_cpu = compare(here, "rabbitmq-plugins", "rabbitmq", cpu)
            rows.append([str(queues), ratio_text(of_rate), ratio_text(of_cpu), verdict(of_rate)])
    if rows:
        yield from table(["queues", "rate", "processor time a message", "verdict"], rows)


def figure(line: str, found: Sequence[Result]) -> Panels:
    """Return the paper's figure of an optimised line: rates on the left, speed-ups on the right."""
    there = {each.cost.line for each in found}
    left = [_rates(name, found) for name in (*OLD, line) if name in there]
    right = [_ratios(f"beside {old}", line, old, found) for old in OLD if old in there]
    paper = PAPER[line]
    right.append(Series("the paper", list(paper), list(paper.values()), marker="D", joined=False))
    return panels(
        Panel("queues", "messages/s", left, categories=True, zero=True),
        Panel("queues", "speed-up", right, categories=True, zero=True, rule=1),
    )


def _rates(name: str, found: Sequence[Result]) -> Series:
    points = []
    for queues, here in at_each(found):
        if mine := [rate(each) for each in here if each.cost.line == name]:
            mean = statistics.fmean(mine)
            half = (
                t_95(len(mine) - 1) * statistics.stdev(mine) / math.sqrt(len(mine)) if len(mine) > 1 else None
            )
            points.append((queues, mean, *((None, None) if half is None else (mean - half, mean + half))))
    return _series(name, points)


def _ratios(label: str, new: str, old: str, found: Sequence[Result]) -> Series:
    ratios = [(queues, compare(here, new, old)) for queues, here in at_each(found)]
    return _series(
        label, [(queues, each.mean, each.low, each.high) for queues, each in ratios if each is not None]
    )


def _series(label: str, points: Sequence[tuple[int, float, float | None, float | None]]) -> Series:
    xs, ys, lows, highs = (list(each) for each in zip(*points, strict=True)) if points else ([], [], [], [])
    return Series(label, xs, ys, lows, highs)

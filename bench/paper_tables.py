"""Text and figures of a sweep, for pages, reports and the console, from the tables of `confirm-compare`."""

import dataclasses
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from pyspark.sql import Row, SparkSession

from bench.paper_design import Effect, effects
from bench.paper_plan import BUSY, DESIGN, LINES, Plan, cells_of
from leveret.analytics.confirm_compare import (
    ABOVE,
    BASELINES,
    FIGURES,
    PAPER,
    PAPER_ABOVE_THREE,
    compute,
    paper_figure,
)
from leveret.analytics.figures import Panels
from leveret.analytics.reading import Input

WIDTH = 120
ENOUGH = 6
"""Minimum number of blocks for a verdict."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tables:
    """The tables of the job `confirm-compare` about a sweep, of one publisher window."""

    runs: Sequence[Row]
    rates: Sequence[Row]
    speed_ups: Sequence[Row]
    above_three: Sequence[Row]

    def of(self, window: int) -> "Tables":
        """Return what is of a publisher window."""
        tables = (self.runs, self.rates, self.speed_ups, self.above_three)
        return Tables(*([row for row in rows if row["window"] == window] for rows in tables))

    @property
    def found(self) -> list[Row]:
        """The runs that count."""
        return [row for row in self.runs if row["refused"] is None]

    def ratio(self, queues: int, new: str, old: str, what: str = "rate") -> Row | None:
        """Return a line's figure divided by another's of the same block; None if there is no such pair."""
        key = (queues, new, old, what)
        names = ("queues", "line", "baseline", "what")
        return next((row for row in self.speed_ups if tuple(row[name] for name in names) == key), None)

    def by_block(self, queues: int, line: str, what: str) -> dict[int, float]:
        """Return a figure of a line in each block."""
        return {
            row["block"]: row[what] for row in self.found if (row["queues"], row["line"]) == (queues, line)
        }

    @property
    def counts(self) -> list[int]:
        """The queue counts."""
        return sorted({row["queues"] for row in self.rates})


def tables_of(spark: SparkSession, directory: Path) -> Tables:
    """Return the tables of the job about the records of a sweep, packed or not.

    Raises:
        leveret.analytics.reading.InputError: there is no run.
    """
    with tempfile.TemporaryDirectory() as aside:
        made = compute(Input(spark, directory, Path(aside)))
        return Tables(*(made[field.name].collect() for field in dataclasses.fields(Tables)))


def ratio_text(found: Row | Effect | None) -> str:
    """Return a ratio with its 95 % interval, as far as there is any."""
    if found is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.ratio:.2f} (one block)"
    return f"{found.ratio:.2f} ({found.low:.2f} to {found.high:.2f})"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
        *[f"| {' | '.join(row)} |" for row in rows],
        "",
    ]


def verdict(found: Row | None) -> str:
    """Return in words whether the interval is above 1, below, or neither; too few blocks are no verdict."""
    if found is None or found.low is None or found.high is None:
        return "not judged"
    said = "faster" if found.low > 1 else "slower" if found.high < 1 else "no difference shown"
    return said if found.n >= ENOUGH else f"{said}, of {found.n} blocks (a verdict needs {ENOUGH})"


def page(plan: Plan, found: Tables, figures: Mapping[int, str], *, summary: bool = False) -> list[str]:
    """Return the lines of a sweep's report, or with `summary` of its part of docs/paper-report.md.

    Args:
        plan: the sweep's plan.
        found: its tables.
        figures: the path of the figure of the paper's Figures 5 and 6.
        summary: only the speed-ups.
    """
    text = [*facts(plan, found)]
    for number, path in figures.items():
        text += [f"![The paper's Figure {number} with these runs]({path})", ""]
    parts = (
        ("Beside the paper", beside(found)),
        ("More than three queues", above_three(found)),
        ("The default beside the paper's standard", default(found)),
        ("Cost of the timer, the late confirms and the tables", design(found)),
        ("Rates and costs", rates(found)),
        ("Shape of the lines", shapes(found)),
        ("RabbitMQ's plugins", plugins(found)),
    )
    for title, part in parts[:2] if summary else parts:
        if lines := list(part):
            text += [f"### {title}", "", *lines]
    return [wrapped for line in text for wrapped in (wrap(line) if line[:1].isalpha() else [line])]


def wrap(line: str) -> list[str]:
    """Return a paragraph as lines of the page's width."""
    return textwrap.wrap(line, WIDTH, break_long_words=False, break_on_hyphens=False)


def facts(plan: Plan, tables: Tables) -> Iterator[str]:
    """Yield what was measured where and when, and what was left out and why."""
    found = tables.found
    days = sorted({time.strftime("%-d %B %Y", time.gmtime(row["start_ts"] / 1000)) for row in found})
    machines = sorted({f"{row['cpu']}, Linux {row['kernel']}" for row in found})
    revisions = sorted({row["git"] for row in found})
    brokers = sorted({row["version"] for row in found if row["broker"] == "rabbitmq"})
    cell_of = itemgetter("block", "window", "queues")
    marked = {cell_of(row) for row in found if row["other"] > BUSY}
    again = {cell_of(row) for row in tables.runs if row["rep"] > 1}
    cells = [(cell[0].block, cell[0].window, cell[0].queues) for cell in cells_of(plan)]
    spoiled = [cell for cell in cells if cell in marked]
    listed = ", ".join(f"block {block} with {queues} queues" for block, _, queues in spoiled)
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
        there = {(row["block"], row["queues"], row["line"]) for row in found}
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


def beside(found: Tables) -> Iterator[str]:
    """Yield the speed-ups by the paper's own definition beside its claims, and with intervals."""
    rows = []
    for line in FIGURES:
        for queues in found.counts:
            if not found.by_block(queues, line, "rate"):
                continue
            claim = PAPER[line].get(queues)
            against = found.ratio(queues, line, BASELINES[0])
            sent = found.ratio(queues, line, BASELINES[0], "published")
            own = [
                "-" if value is None else f"{value:.2f}"
                for value in (claim, sent and sent["by_means"], against and against["by_means"])
            ]
            others = [ratio_text(found.ratio(queues, line, old)) for old in BASELINES]
            rows.append([str(queues), f"`{line}`", *own, *others, verdict(against)])
    if rows:
        heads = [f"x `{old}`" for old in BASELINES]
        yield from table(
            ["queues", "line", "the paper", "by its definition", "least of three", *heads, "verdict"], rows
        )
        yield (
            "The paper's definition: mean sending rate of the runs with the optimisation, divided by that without, "
            "here `paper-baseline`. In all other columns the rate is the least of those of sent, confirmed and "
            "received messages, which a sender ahead of its confirms does not raise. First comes the same quotient of "
            "means, then geometric means of the ratios in each block, with 95 % intervals. The verdict is that "
            "beside `paper-baseline`."
        )
        yield ""


def above_three(found: Tables) -> Iterator[str]:
    """Yield the mean speed-up over all queue counts above three, which the paper gives."""
    means = {(row["line"], row["baseline"], row["what"]): row for row in found.above_three}
    rows = [
        [
            f"`{line}`",
            f"`{old}`",
            str(means[line, old, "rate"]["cells"]),
            *[ratio_text(means.get((line, old, what))) for what in ("rate", "published")],
            f"{PAPER_ABOVE_THREE[line]:.3f}",
        ]
        for line in FIGURES
        for old in BASELINES
        if (line, old, "rate") in means
    ]
    if rows:
        yield from table(
            ["line", "divided by", "queue counts", "mean", "of the sending rate", "the paper"], rows
        )
        yield "The intervals are a bootstrap over whole blocks."
        yield ""


def default(found: Tables) -> Iterator[str]:
    """Yield the default's rate and processor time divided by those of the paper's standard."""
    rows = []
    for queues in found.counts:
        of_rate = found.ratio(queues, "default", "paper-standard")
        if of_rate is not None:
            costs = [
                ratio_text(found.ratio(queues, "default", "paper-standard", what))
                for what in ("cpu_us", "client_cpu_us", "disk_bytes")
            ]
            rows.append([str(queues), ratio_text(of_rate), *costs, verdict(of_rate)])
    if rows:
        yield from table(["queues", "rate", "broker's time", "PerfTest's time", "disk", "verdict"], rows)
        yield (
            "The default divided by `paper-standard`: the rate, the processor time of the broker and of PerfTest for a "
            "message, and the bytes written to disk for it."
        )
        yield ""


def design(found: Tables) -> Iterator[str]:
    """Yield the effects of the 2^3 design on the rate and on the broker's processor time."""
    rows = []
    blocks = set()
    for queues in found.counts:
        of_rate, of_cpu = (
            effects({line: found.by_block(queues, line, what) for line in DESIGN})
            for what in ("rate", "cpu_us")
        )
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


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Return rows by queue count, and in the order of `LINES`."""
    return sorted(rows, key=lambda row: (row["queues"], list(LINES).index(row["line"])))


def rates(found: Tables) -> Iterator[str]:
    """Yield the mean rate of each line with its interval, and the cost of a message."""

    def number(value: float | None, form: str) -> str:
        return "-" if value is None else format(value, form)

    rows = []
    for row in ordered(found.rates):
        half = "" if row["high"] is None else f" ± {row['high'] - row['mean_rate']:,.0f}"
        rows.append(
            [
                str(row["queues"]),
                f"`{row['line']}`",
                str(row["runs"]),
                f"{row['mean_rate']:,.0f}{half}",
                number(row["mean_published"], ",.0f"),
                number(row["confirm_p50_ms"], ",.1f"),
                f"{row['cpu_us']:.1f}",
                f"{row['client_cpu_us']:.1f}",
                f"{row['disk_bytes']:,.0f}",
                "-" if row["commits"] is None else f"{row['commits'] * 1000:.2f}",
            ]
        )
    heads = ("runs", "messages/s", "sent/s", "confirm, ms", "broker, us", "PerfTest, us", "disk, bytes")
    yield from table(["queues", "line", *heads, "commits"], rows)
    yield (
        "Mean rate with the 95 % interval of the mean, and the mean sending rate; the median of the seconds' medians "
        "from publish to confirm; processor time and bytes written for a message of the whole run; commits for a "
        "thousand messages."
    )
    yield ""


def shapes(found: Tables) -> Iterator[str]:
    """Yield how each line's rate changes with the number of queues."""
    rows = []
    by_line = sorted(ordered(found.rates), key=lambda row: list(LINES).index(row["line"]))
    for line, mine in groupby(by_line, itemgetter("line")):
        means = {row["queues"]: row["mean_rate"] for row in mine}
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


def plugins(found: Tables) -> Iterator[str]:
    """Yield what the plugins management and top cost RabbitMQ."""
    rows = []
    for queues in found.counts:
        of_rate = found.ratio(queues, "rabbitmq-plugins", "rabbitmq")
        if of_rate is not None:
            of_cpu = found.ratio(queues, "rabbitmq-plugins", "rabbitmq", "cpu_us")
            rows.append([str(queues), ratio_text(of_rate), ratio_text(of_cpu), verdict(of_rate)])
    if rows:
        yield from table(["queues", "rate", "processor time a message", "verdict"], rows)


def figure(line: str, found: Tables) -> Panels:
    """Return the paper's figure of an optimised line: rates on the left, speed-ups on the right."""
    gains = [row for row in found.speed_ups if row["what"] == "rate"]
    return paper_figure(line, found.rates, gains)

"""The report of a sweep on the console: the tables of the page, verdicts, and reasons for doubting runs."""

from collections.abc import Callable, Iterator, Sequence

from pyspark.sql import Row

from bench.paper_plan import BUSY, LINES, Plan
from bench.paper_tables import ENOUGH, Tables, page, ratio_text
from leveret.analytics.confirm_compare import FIGURES

NOT_SLOWER = 0.95
"""Lower bound of a mode's rate beside the default's from which it is not slower."""


def report(plan: Plan, found: Tables) -> tuple[list[str], bool]:
    """Return the lines of the whole report, and whether no verdict is against us."""
    text = []
    for name in plan.lines():
        settings = " ".join(LINES[name].settings)
        text.append(f"  {name:<20}{LINES[name].description}{f' [{settings}]' if settings else ''}")
    text.append("")
    if missing := len(plan.trials) - len(found.found):
        text += [f"NOT COMPLETE: {missing} of {len(plan.trials)} runs are missing", ""]
    for window in sorted({window for window, _ in plan.cells()}):
        text += [f"Publisher window -c {window}", "", *page(plan, found.of(window), {})]
    verdicts, good = judge(plan, found)
    return [*text, *verdicts, *remarks(found.found)], good


def judge(plan: Plan, found: Tables) -> tuple[list[str], bool]:
    """Return the verdicts, and whether none is against us."""
    names = [name for name in FIGURES if name in plan.lines()]
    if not names or "default" not in plan.lines():
        return [], True
    good = True
    text = [
        f"consumer-ack modes not slower than default: lower 95 % bound >= {NOT_SLOWER}, of {ENOUGH} blocks or more"
    ]
    for window, queues in plan.cells():
        for name in names:
            ratio = found.of(window).ratio(queues, name, "default")
            if ratio is None or ratio.n < ENOUGH:
                verdict = f"not judged: {0 if ratio is None else ratio.n} of {ENOUGH} blocks"
            else:
                holds = ratio.low >= NOT_SLOWER
                verdict = "holds" if holds else "DOES NOT HOLD"
                good = good and holds
            text.append(f"  -c {window:<5} {queues:>3} queues  {name:<19} {ratio_text(ratio):<21} {verdict}")
    return [*text, ""], good


def remarks(found: Sequence[Row]) -> Iterator[str]:
    """Yield the reasons for doubting runs."""
    yield from named(
        found, f"more than {BUSY:.0%} of the machine went to something else", lambda row: row["other"] > BUSY
    )
    yield from named(
        found,
        "the broker logged no counters",
        lambda row: row["broker"] == "leveret" and not row["counters"],
    )
    if len(revisions := dict.fromkeys(row["git"] for row in found)) > 1:
        yield f"runs of {len(revisions)} revisions: {', '.join(revisions)}"


def named(found: Sequence[Row], what: str, is_doubtful: Callable[[Row], bool]) -> Iterator[str]:
    """Yield the number of runs that meet a condition, line by line, if any."""
    lines = [row["line"] for row in found if is_doubtful(row)]
    if lines:
        counts = ", ".join(f"{name} {lines.count(name)}" for name in LINES if name in lines)
        yield f"{what}: {len(lines)} of {len(found)} runs ({counts})"

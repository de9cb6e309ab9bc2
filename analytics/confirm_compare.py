"""Job `confirm-compare`: the speed-up of confirms on consumer ack, from the records of `bench.paper`.

The paper's Figures 5 and 6 show the rates of its two optimisations next to RabbitMQ's by the number of queues, each the
mean of three runs without a spread. Here each line is compared with a baseline of the same block, so that disturbances
of the machine affect both, and each speed-up has its 95 % interval.
"""

import json
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final

from pyarrow.dataset import field
from pyspark.sql import DataFrame, SparkSession, functions as F

from leveret.analytics.figures import Panel, Panels, Series, panels
from leveret.analytics.job import Job, Page, Row, Section, Written, number_of
from leveret.analytics.locations import Location, text_of
from leveret.analytics.ratios import half_width, mean_of_ratios, paired, ratios
from leveret.analytics.reading import Input, InputError
from leveret.analytics.series import each, query

BASELINES: Final = ("paper-baseline", "paper-standard", "default", "rabbitmq", "rabbitmq-plugins")
"""The lines that others are compared with; the first is what the paper divided by."""
FIGURES: Final = {"consumer-ack": 5, "consumer-ack-light": 6}
"""The optimised lines, and the figure of the paper that shows each."""
PAPER: Final[Mapping[str, Mapping[int, float]]] = {  # new rate over old by number of queues, from the paper
    "consumer-ack": {1: 3.08, 2: 2.01, 15: 1.409, 30: 1.403},
    "consumer-ack-light": {1: 3.48, 2: 2.16, 15: 1.526, 30: 1.534},
}
PAPER_ABOVE_THREE: Final = {"consumer-ack": 1.429, "consumer-ack-light": 1.565}
"""Its mean over all queue counts above 3."""
ABOVE: Final = 3
ON_DISK: Final = "a confirmed message is on disk or has been consumed; it survives a kill and a power failure"
CONSUMED: Final = "a confirmed message has been consumed; unconfirmed messages are lost in a crash"
NOT_SYNCED: Final = (
    "a confirmed message survives a kill but not a power failure, because commits are not flushed"
)
UNSYNCED: Final = 4  # the version from which RabbitMQ's classic queues confirm without waiting for the disk
NACKED: Final = "messages were nacked during the measurement"
NOTHING: Final = "no messages arrived during the measurement"
NO_COST: Final = "no row in bench_cost"
AGAIN: Final = "another attempt at the cell counts"
BUSY: Final = 0.10
"""Share of the machine's processor time, used by other programs, from which a run is disturbed."""
WHATS: Final = ("rate", "published", "cpu_us", "client_cpu_us", "disk_bytes")
"""The columns of `runs` that are compared."""
TOO_SHORT: Final = "no interval within the measurement"
CUTS: Final = (15.0, 5.0)  # seconds excluded at the start and at the end of a run, unless the plan has others
BATCH_SECONDS: Final = 5.0
_RATES: Final = ("published", "confirmed", "received", "nacked")
_CELL: Final = ("window", "queues")


def cuts(spark: SparkSession, directory: Location) -> tuple[float, float]:
    """Return the seconds excluded at a run's start and end, from the plan of the sweep if there is one.

    Raises InputError: the plan cannot be read.
    """
    plan = directory / "plan.json"
    try:
        text = text_of(spark, plan)
        if text is None:
            return CUTS
        found = json.loads(text)
        return float(found["cut_start"]), float(found["cut_end"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"cannot read {plan}: {error!r}") from error


def counted_seconds(runs: DataFrame, samples: DataFrame, cut: tuple[float, float]) -> DataFrame:
    """Return the samples of the included seconds, with `since` and `length` of each."""
    # PerfTest's intervals do not end on whole seconds, hence the half.
    return query(
        f"""
        WITH timed AS (
            SELECT *, coalesce(lag(t_s) OVER (PARTITION BY run_id ORDER BY t_s), 0D) AS since FROM {{samples}}
        )
        SELECT /*+ BROADCAST(runs) */ timed.*, t_s - since AS length, dur_s
        FROM timed JOIN (SELECT run_id, dur_s FROM {{runs}}) AS runs USING (run_id)
        WHERE since >= {cut[0]}D - 0.5D AND t_s <= dur_s - {cut[1]}D + 0.5D
        """,
        samples=samples,
        runs=runs,
    )


def measured(
    runs: DataFrame, samples: DataFrame, costs: DataFrame, cut: tuple[float, float] = CUTS
) -> DataFrame:
    """Return a row for each run: its settings, its rates in the included seconds, and the reason if it is `refused`.

    `rate` is the least of the rates of published, confirmed and received messages; what a message cost is that of the
    whole run, warm-up included.
    """
    counted = counted_seconds(runs, samples, cut)
    confirming = F.col("confirmed") > 0
    steady = counted.groupBy("run_id").agg(
        F.sum("length").alias("seconds"),
        *[F.try_divide(F.sum(F.col(name) * F.col("length")), F.sum("length")).alias(name) for name in _RATES],
        F.median(F.when(confirming, F.col("c_p50"))).alias("confirm_p50_us"),
        F.median(F.when(confirming, F.col("c_p99"))).alias("confirm_p99_us"),
    )
    joined = (
        runs.join(costs.drop("v"), "run_id", "left")
        .join(steady, "run_id", "left")
        .join(autocorrelations(counted), "run_id", "left")
        .withColumns(
            {
                "rate": F.least("published", "confirmed", "received"),
                "cpu_us": F.expr("try_divide(cpu_s * 1e6, messages)"),
                "client_cpu_us": F.expr("try_divide(client_cpu_s * 1e6, messages)"),
                # One byte in all if there are none, as ratios need it.
                "disk_bytes": F.expr("try_divide(greatest(write_bytes, 1), messages)"),
            }
        )
    )
    attempts = joined.join(chosen(joined), [*_CELL, "block"], "left")
    refused = (
        F.when(F.col("line").isNull(), NO_COST)
        .when(F.col("rep") != F.col("attempt"), AGAIN)
        .when(F.col("seconds").isNull(), TOO_SHORT)
        .when(F.col("nacked") > 0, NACKED)
        .when(F.col("rate") <= 0, NOTHING)
    )
    return attempts.withColumn("refused", refused).drop("attempt")


def chosen(runs: DataFrame) -> DataFrame:
    """Return the `attempt` that counts of each cell of a block: its lines are compared with each other.

    A cell is measured again if one of its runs was disturbed: the first attempt without that counts, or else the last.
    One that has not all lines yet does not.
    """
    cell = ", ".join((*_CELL, "block"))
    return query(
        f"""
        WITH attempts AS (
            SELECT {cell}, rep, count(DISTINCT line) AS lines, max(other) AS busiest FROM {{runs}} GROUP BY {cell}, rep
        ),
        known AS (SELECT *, lines = max(lines) OVER (PARTITION BY {cell}) AS is_whole FROM attempts)
        SELECT {cell}, coalesce(min(IF(is_whole AND busiest <= {BUSY}D, rep, NULL)), max(IF(is_whole, rep, NULL)))
            AS attempt
        FROM known GROUP BY {cell}
        """,
        runs=runs,
    )


def autocorrelations(counted: DataFrame) -> DataFrame:
    """Return the correlation of each run's five-second means with those of the next five seconds.

    Near 0, the seconds of a run are as independent as runs; near 1, a run is hardly more than one measurement.
    """
    return query(
        f"""
        WITH batches AS (
            SELECT run_id, floor((since + 0.5D) / {BATCH_SECONDS}D) AS batch,
                try_divide(sum(least(published, confirmed, received) * length), sum(length)) AS mean
            FROM {{counted}} GROUP BY run_id, floor((since + 0.5D) / {BATCH_SECONDS}D)
        ),
        pairs AS (SELECT *, lag(mean) OVER (PARTITION BY run_id ORDER BY batch) AS before FROM batches)
        SELECT run_id, nullif(corr(mean, before), double('NaN')) AS autocorrelation FROM pairs
        WHERE before IS NOT NULL GROUP BY run_id
        """,
        counted=counted,
    )


def summarised(runs: DataFrame) -> DataFrame:
    """Return a row for each cell and line: mean rate with its 95 % interval over the blocks, latency, cost."""
    key = ", ".join((*_CELL, "line"))
    counter = "try_divide(sum(try_element_at(counters, '{0}')), sum(messages)) AS {0}"
    unsynced = f"broker = 'rabbitmq' AND try_cast(split_part(version, '.', 1) AS INT) >= {UNSYNCED}"
    safety = f"CASE WHEN mode != 'standard' THEN '{CONSUMED}' WHEN {unsynced} THEN '{NOT_SYNCED}' ELSE '{ON_DISK}' END"
    return query(
        f"""
        WITH found AS (
            SELECT {key}, count(rate) AS runs, avg(rate) AS mean_rate, {half_width("rate")} AS half,
                avg(published) AS mean_published,
                {each("avg({0}_us) / 1000 AS {0}_ms", ("confirm_p50", "confirm_p99"))},
                {each("avg({0}) AS {0}", ("cpu_us", "client_cpu_us"))},
                try_divide(sum(write_bytes), sum(messages)) AS disk_bytes,
                {each(counter, ("commits", "flushes", "early"))},
                {each("avg({0}) AS {0}", ("other", "autocorrelation"))}, min({safety}) AS safety
            FROM {{runs}} GROUP BY {key}
        )
        SELECT * EXCEPT (half), mean_rate - half AS low, mean_rate + half AS high FROM found ORDER BY {key}
        """,
        runs=runs,
    )


def compute(data: Input) -> dict[str, DataFrame]:
    """Return `runs`, `rates`, `speed_ups` and `above_three`."""
    samples, costs = data.table("bench_sample"), data.table("bench_cost")
    runs = data.keep(measured(data.table("bench_run"), samples, costs, cuts(data.spark, data.directory)))
    compared = runs.filter(F.col("refused").isNull())
    rates = each("struct('{0}' AS what, {0} AS rate)", WHATS)
    values = compared.selectExpr(*_CELL, "block", "line", f"inline(array({rates}))").filter("rate > 0")
    pairs = data.keep(paired(values, BASELINES, (*_CELL, "what")))
    by = ("line", "baseline", "what")
    judged = pairs.filter(
        (F.col("queues") > ABOVE) & F.col("line").isin(*FIGURES) & F.col("what").isin(*WHATS[:2])
    )
    return {
        "runs": runs.orderBy("start_ts", "run_id"),
        "rates": summarised(compared),
        "speed_ups": ratios(pairs, (*_CELL, *by)).orderBy(*_CELL, *by),
        "above_three": mean_of_ratios(judged, "queues", ("window", *by)).orderBy("window", *by),
    }


def describe(written: Written) -> Page:
    """Return the report."""
    rates = written.rows("rates", *_CELL, "line")
    is_rate = field("what") == "rate"
    speed_ups = written.rows("speed_ups", *_CELL, "line", "baseline", where=is_rate)
    above = written.rows("above_three", "window", "line", "baseline", "what")
    sections = []
    for window in sorted({row["window"] for row in rates}):
        mine = [row for row in rates if row["window"] == window]
        gains = [row for row in speed_ups if row["window"] == window]
        sections += [
            _figure(line, window, mine, gains) for line in FIGURES if any(r["line"] == line for r in mine)
        ]
    sections += [
        Section(
            "More than three queues",
            "Arithmetic mean of the speed-ups over all queue counts above 3, as in the paper. It is given of the least "
            "of three rates (rate) and of the sending rate (published), which the paper uses. The interval is a "
            "bootstrap over blocks, which is slightly too narrow with few blocks. The paper's values: "
            + ", ".join(f"{line} {value:.3f}" for line, value in PAPER_ABOVE_THREE.items())
            + ".",
            columns="window line baseline what cells blocks ratio low high",
            rows=above,
        ),
        Section(
            "Speed-ups",
            "Rate divided by the baseline's. The ratio is the geometric mean over the blocks, with its 95 % confidence "
            "interval: Student's t over the logarithms of paired ratios.",
            terms={
                "by_means": "the mean rate divided by the baseline's, as in the paper",
                "faster": "whether the whole interval is above 1",
            },
            columns="window queues line baseline n ratio low high by_means faster",
            rows=speed_ups,
        ),
        Section(
            "Cost of a message",
            "Costs are per message of the whole run, including the warm-up. Compare only lines whose confirms give the "
            "same guarantee, which the next table names.",
            terms={
                "mean_rate": "the smallest of the rates of published, confirmed and received messages, per second",
                "mean_published": "the sending rate, as the paper defines it",
                "confirm": "latency from a publish to its confirm",
                "cpu_us": "CPU time of the broker",
                "disk_bytes": "bytes written to disk",
                "flushes": "flushes of the disk",
                "autocorrelation": "of consecutive intervals of five seconds",
            },
            columns="window queues line runs mean_rate low high mean_published confirm_p50_ms confirm_p99_ms cpu_us "
            "disk_bytes commits flushes autocorrelation",
            rows=rates,
        ),
        Section(
            "Guarantee of a confirm",
            "",
            columns="line safety",
            rows=list({row["line"]: row for row in rates}.values()),
        ),
    ]
    runs = written.rows("runs", "start_ts", "run_id")
    if refused := [row for row in runs if row["refused"] is not None]:
        columns = "run_id line window queues block rate nacked refused"
        sections.append(Section("Excluded runs", "", columns=columns, rows=refused))
    hosts = sorted({f"{row['host']}: {row['cpu']}, kernel {row['kernel']}" for row in runs})
    return Page(
        title="Confirm modes compared with the paper",
        lead=f"{number_of(len(runs), 'run')}, {len(refused)} of them excluded, in "
        f"{number_of(len({row['block'] for row in runs}), 'block')}, on "
        f"{'; '.join(hosts)}.",
        facts=_facts(runs, speed_ups),
        sections=sections,
    )


def _facts(runs: list[Row], speed_ups: list[Row]) -> list[str]:
    facts = [_verdict(line, speed_ups) for line in FIGURES if any(row["line"] == line for row in speed_ups)]
    if not facts:
        facts.append("No run of a consumer-ack mode has a matching run of a baseline, so there is no figure.")
    if len({row["block"] for row in runs}) == 1:
        facts.append(
            "There is only one block, so ratios have no confidence interval and no line counts as faster."
        )
    return facts


def _verdict(line: str, speed_ups: list[Row]) -> str:
    mine = [row for row in speed_ups if row["line"] == line]
    baseline = next((each for each in BASELINES if any(row["baseline"] == each for row in mine)), "")
    mine = [row for row in mine if row["baseline"] == baseline]
    faster = sum(row["faster"] for row in mine)
    settings = number_of(len(mine), "setting")
    return f"{line} is faster than {baseline} in {faster} of {settings}, by the 95 % confidence interval."


def paper_figure(line: str, rates: Sequence[Row], gains: Sequence[Row]) -> Panels:
    """Return the paper's figure of an optimised line: rates on the left, speed-ups on the right.

    `line`: one of `FIGURES`; `rates`: rows of the table `rates`, of one publisher window; `gains`: rows of `speed_ups`
    about rates.
    """
    there = {row["line"] for row in rates}
    shown = [name for name in (*BASELINES, line) if name in there]
    left = [_series(name, [row for row in rates if row["line"] == name], "mean_rate") for name in shown]
    mine = [row for row in gains if row["line"] == line]
    right = [
        _series(f"beside {baseline}", [row for row in mine if row["baseline"] == baseline], "ratio")
        for baseline in BASELINES
        if baseline in there
    ]
    paper = PAPER[line]
    right.append(Series("the paper", list(paper), list(paper.values()), marker="D", joined=False))
    return panels(
        Panel("queues", "messages/s", left, categories=True, zero=True),
        Panel("queues", "speed-up", right, categories=True, zero=True, rule=1),
    )


def _figure(line: str, window: int, rates: list[Row], gains: list[Row]) -> Section:
    number = FIGURES[line]
    return Section(
        f"The paper's Figure {number}: {line}, publisher window {window}",
        "The first chart has messages per second, the second the rate divided by the baseline's, and the paper's "
        "beside RabbitMQ 3.6; above 1 is faster. Bars are 95 % confidence intervals; points without a bar were "
        "measured once.",
        figure=paper_figure(line, rates, gains),
        name=f"figure-{number}-window-{window}",
    )


def _series(label: str, rows: list[Row], value: str) -> Series:
    x, y, low, high = (
        [row[name] for row in sorted(rows, key=itemgetter("queues"))]
        for name in ("queues", value, "low", "high")
    )
    return Series(label, x, y, low, high)


JOB: Final = Job(
    name="confirm-compare",
    needs=("bench_run", "bench_sample", "bench_cost"),
    compute=compute,
    describe=describe,
)

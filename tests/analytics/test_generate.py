from collections import Counter, defaultdict
from statistics import median

import pytest
from pyspark.testing import assertDataFrameEqual
from samples.made_rows import Made, index

from bench import generate
from bench.generate import (
    ALARM,
    ALARMED,
    CYCLE_MS,
    EVENTS,
    INTERVAL_MS,
    LINES,
    PATTERNS,
    SPREAD,
    TABLES,
    WHAT,
    latency_hist,
    write,
)
from leveret.analytics import anomalies, capacity, churn, confirm_compare, routing
from leveret.analytics.histograms import QUANTILES
from leveret.analytics.latency import compute
from leveret.analytics.reading import Input
from leveret.analytics.series import clocks

ROWS = 3000


def expected(rows):
    """Return the histograms that the formulas give for each kind: bucket → samples."""
    counts = {what: Counter() for what in WHAT}
    for number in range(rows):
        kind, n = number % 4, number // 4
        first = 64 + 32 * kind + n % SPREAD
        counts[WHAT[kind]][first] += 1 + n % 3
        counts[WHAT[kind]][first + 7] += 2
    return counts


def quantile(counts, thousandths):
    rank, seen = -(-sum(counts.values()) * thousandths // 1000), 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return bucket
    raise AssertionError


@pytest.fixture
def made(spark):
    """Return a function that makes a stand-in for an input, of generated tables: names, and how many rows of each."""

    def make(rows, *names):
        return Made(spark, {name: TABLES[name](spark, rows) for name in names})

    return make


@pytest.mark.parametrize("parquet", [False, True], ids=["lines", "parquet"])
def test_generated_histograms_have_the_quantiles_that_follow_from_their_formulas(spark, tmp_path, parquet):
    """Written as lines or as Parquet, read again and analysed, the made-up samples give what was put in."""
    write(latency_hist(spark, ROWS), "latency_hist", tmp_path, parquet=parquet)
    data = Input(spark, tmp_path, tmp_path / "out")

    found = {(row["metric"], row["mode"]): row for row in compute(data)["by_mode"].collect()}

    assert {} == data.counted["latency_hist"].aside
    for what, counts in expected(ROWS).items():
        assert sum(counts.values()) == found[what]["count"]
        for name, thousandths in QUANTILES.items():
            assert quantile(counts, thousandths) == index(found[what][f"{name}_us"])


@pytest.mark.parametrize("name", TABLES)
def test_generated_rows_do_not_depend_on_partitions(spark, name):
    """Generated rows are the same however many tasks make them."""
    assertDataFrameEqual(TABLES[name](spark, 500).repartition(3), TABLES[name](spark, 500))


def test_generated_queues_are_unusual_where_they_were_made_so(spark, monkeypatch):
    """Every hour four intervals of every thousandth queue have ten times the rate, and nothing else is unusual."""
    monkeypatch.setattr(generate, "QUEUES", 2)
    rows = generate.queue_interval(spark, 3000)

    found = anomalies.runs(anomalies.judged(rows, clocks(rows))).collect()

    usual = 10 + 1
    assert {(what, "q1", 4, 10 * usual, usual) for hour in range(2) for what in anomalies.RATES} == {
        (row["what"], row["queue"], row["intervals"], row["rate"], row["usual"]) for row in found
    }
    assert 2 * len(anomalies.RATES) == len(found)


def test_generated_exchanges_do_what_their_formulas_say(made):
    """Copies, shares and messages of each exchange, and matches of each pattern, are those that were put in."""
    rows = 100 * PATTERNS * 2
    tables = routing.compute(made(rows, "exchange_interval", "topic_pattern"))

    exchanges = {row["exchange"]: row for row in tables["exchanges"].collect()}
    patterns = tables["patterns"].collect()

    assert rows // 100 == len(exchanges)
    last = 99
    for number in range(rows // 100):
        row = exchanges[f"e{number}"]
        assert (last * 100 * (1 + number % 7), 1 + number % 4, pytest.approx(0.1), 0.9) == (
            row["pub_in"], row["fanout"], row["unroutable"], row["remembered"],
        )  # fmt: skip
    assert {
        (f"e{exchange}", f"#.{pattern}"): (last * pattern * (1 + exchange), pattern == 0, pattern / 100)
        for exchange in range(2)
        for pattern in range(PATTERNS)
    } == {(row["exchange"], row["pattern"]): (row["matches"], row["dead"], row["share"]) for row in patterns}
    assert {last * INTERVAL_MS / 3_600_000} == {row["hours"] for row in patterns}


def test_generated_nodes_cost_what_their_formulas_say(made, monkeypatch):
    """Generated nodes have the costs of their formulas: per message, besides, and the rate that is too much."""
    monkeypatch.setattr(generate, "ROWS_OF_A_NODE", 3000)
    monkeypatch.setattr(generate, "ROWS_OF_A_BOOT", 2001)

    found = capacity.compute(made(6000, "node_interval"))["nodes"].collect()

    assert [("0@generated", 2998), ("1@generated", 2998)] == [
        (row["node"], row["intervals"]) for row in found
    ]
    for cost_us, row in zip((40, 41), found, strict=True):
        assert pytest.approx((cost_us, 0.02, 1.0, 2 * 10_090, 10_090)) == (
            row["cpu_us"], row["rest"], row["r2"], row["at_least"], row["greatest"],
        )  # fmt: skip
        assert row["saturated_at"] is None
        assert row["borne"] <= generate.LATE_RATE < row["late_from"]


def happenings(rows, nodes):
    """Yield the events that the formulas give: (node, cycle of the object, kind, ms)."""
    for number in range(rows):
        place, each = number % len(EVENTS), number // len(EVENTS)
        node, cycle = each % nodes, each // nodes
        kind = (EVENTS if cycle % ALARMED else ALARM)[place]
        about = cycle - node % 7 * (kind == "connection_closed")
        late = about * 7919 % 1000 * (kind == "connection_closed")
        yield node, about, kind, cycle * CYCLE_MS + place * 1000 + late


def test_generated_events_are_those_that_their_formulas_say(made, monkeypatch):
    """Logins that failed, connections with their lengths, alarms and events over time are those of a recount."""
    nodes, rows = 3, 3 * len(EVENTS) * 150
    monkeypatch.setattr(generate, "ROWS_OF_A_NODE", rows // nodes)
    opened, kinds, lasted, clients = {}, Counter(), defaultdict(list), Counter()
    for node, about, kind, ms in happenings(rows, nodes):
        kinds[kind] += 1
        if kind == "connection_opened":
            opened[node, about] = ms
        if kind == "connection_closed" and (node, about) in opened:
            lasted[f"10.0.0.{about % 100}"].append((ms - opened[node, about]) / 1000)
        if kind.startswith("connection"):
            clients[f"10.0.0.{about % 100}", f"u{about % 10}", kind] += 1

    found = {name: table.collect() for name, table in churn.compute(made(rows, "event")).items()}

    for kind in churn.COMING:
        assert kinds[kind] == sum(row[kind] for row in found["over_time"])
    assert {f"10.1.0.{number}": 3 * nodes for number in range(50)} == {
        row["peer"]: row["failed"] for row in found["failures"]
    }
    assert clients == {
        (row["peer"], row["user"], f"connection_{way}"): row[way]
        for row in found["clients"]
        for way in ("opened", "closed")
    }
    assert {peer: pytest.approx(median(each)) for peer, each in lasted.items()} == {
        row["peer"]: row["median_s"] for row in found["clients"]
    }
    assert [(f"{node}@generated", "memory", 0.05) for node in range(nodes) for _ in range(2)] == [
        (row["node"], row["alarm"], row["minutes"]) for row in found["alarms"]
    ]


def test_generated_runs_have_the_speed_ups_that_were_put_in(made):
    """The ratio of two lines is that of their speeds in each block, and no run is refused."""
    data = made(16 * generate.LEAST_SECONDS, "bench_run", "bench_sample", "bench_cost")

    found = confirm_compare.compute(data)

    runs = found["runs"].collect()
    assert [(16, {None}, {50})] == [
        (
            len(runs),
            {row["refused"] for row in runs},
            {round(row["cpu_s"] * 1e6 / row["messages"]) for row in runs},
        )
    ]
    assert {
        (line, baseline): pytest.approx((4, speed / LINES[baseline]))
        for line, speed in LINES.items()
        for baseline in ("default", "paper-standard")
        if line != baseline
    } == {
        (row["line"], row["baseline"]): (row["n"], row["ratio"])
        for row in found["speed_ups"].filter("what = 'rate'").collect()
    }

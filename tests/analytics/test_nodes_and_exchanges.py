import math
import random
from datetime import UTC, datetime

import pytest
from samples.made_rows import START, Made, quiet, row, run_twice

from leveret.analytics import anomalies, capacity, churn, routing
from leveret.analytics.job import run
from leveret.analytics.series import QUEUE, clocks

# -- routing ------------------------------------------------------------------------------------------------------------


def routed(chance, truth, exchange, **names):
    """Rows of an exchange through which messages come, counted one by one."""
    counts = dict.fromkeys(routing.COUNTERS, 0)
    for second in range(0, 50, 5):
        for _ in range(chance.randint(0, 30)):
            copies = chance.choice([0, 1, 1, 2, 5])
            lost = chance.choice(["unroutable_returned", "unroutable_dropped"])
            counts["pub_in"] += 1
            counts["fanout_sum"] += copies
            counts["route_lookups"] += chance.random() < 0.1
            counts["routed" if copies else lost] += 1
        yield row("exchange_interval", second, exchange=exchange, bindings=3, **names, **counts)
    for name, value in counts.items():
        truth[exchange, name] = truth.get((exchange, name), 0) + value


def test_routing_is_what_a_recount_says(data, tmp_path, spark):
    """Copies, messages in vain and remembered routes of each exchange are those of a recount, over boots and makings."""
    chance, rows, truth = random.Random(1), [], {}
    for exchange in ("", "events", "logs"):
        rows += routed(chance, truth, exchange, type="topic", boot_id="one")
        rows += routed(chance, truth, exchange, type="topic")
    rows += routed(chance, truth, "events", type="fanout", since_ms=START + 1)
    half = truth["logs", "pub_in"] // 2
    patterns = [
        row("topic_pattern", 5, exchange="logs", pattern="gone", since_ms=START),
        # from the beginning, and one that has matched something once, before there were rows
        *(
            row(
                "topic_pattern",
                3600 * hour,
                exchange="logs",
                pattern=name,
                since_ms=since,
                matches=hour * n,
                error=e,
            )
            for hour in (0, 1)
            for name, since, n, e in (("a.#", START, half, 1), ("b.*", START, 0, 0), ("c.*", START, 0, hour))
        ),
        *(
            row("topic_pattern", 3600 * hour, exchange="logs", pattern="d", since_ms=START - 10**9, matches=5)
            for hour in (0, 1)
        ),
        # there is but one row: nothing can be said
        row("topic_pattern", 3600, exchange="logs", pattern="e", since_ms=START - 10**9),
    ]
    tables = {"exchange_interval": rows, "topic_pattern": patterns}

    page = run_twice(routing.JOB, tables, data, tmp_path / "routing")
    found = {
        each["exchange"]: each
        for each in spark.read.parquet(str(tmp_path / "routing" / "exchanges")).collect()
    }

    assert {"", "events", "logs"} == found.keys()
    for exchange, each in found.items():
        true = {name: truth[exchange, name] for name in routing.COUNTERS}
        lost = true["unroutable_returned"] + true["unroutable_dropped"]
        assert true == {name: each[name] for name in routing.COUNTERS}
        assert pytest.approx(
            (true["fanout_sum"] / true["routed"], lost / true["pub_in"],
             1 - true["route_lookups"] / true["pub_in"])
        ) == (each["fanout"], each["unroutable"], each["remembered"])  # fmt: skip
    dropped = sum(truth[exchange, "unroutable_dropped"] for exchange in found)
    assert page.facts[0].startswith(f"{dropped:,} messages were dropped as unroutable without notice")
    assert "2 binding patterns without a match." == page.facts[1]
    assert [("d", 1.0), ("b.*", 1.0)] == [(each["pattern"], each["hours"]) for each in page.sections[-1].rows]
    assert ("a.#", pytest.approx(half / truth["logs", "pub_in"])) == (
        page.sections[1].rows[0]["pattern"],
        page.sections[1].rows[0]["share"],
    )


# -- capacity -----------------------------------------------------------------------------------------------------------


def node_rows(rates, cost_us, node, *, late_above=math.inf):
    """Rows of a node under these loads, whose messages cost so much, and which is late above a rate."""
    chance, published, cpu = random.Random(2), 0, 0
    for step, rate in enumerate(rates):
        published += round(5 * rate)
        cpu += round(5 * rate * cost_us * chance.uniform(0.95, 1.05)) + round(
            5 * 20_000 * chance.uniform(0.8, 1.2)
        )
        yield row(
            "node_interval",
            5 * step,
            node=node,
            published=published,
            cpu_user_us=cpu,
            cpu_sys_us=cpu // 4,
            loop_lag_p99_us=30_000 if rate > late_above else 2_000,
        )


def test_the_cost_of_a_message_is_found_again(data, tmp_path, spark):
    """Processor time that was put into made-up intervals comes out within 5 %, and so does the rate that is borne.

    Where the load does not change, or there is none, no line is drawn, and that is said.
    """
    chance = random.Random(3)
    rows = [
        *node_rows([chance.uniform(100, 20_000) for _ in range(300)], 20, "varied", late_above=12_000),
        *node_rows([5000 * chance.uniform(0.999, 1.001) for _ in range(50)], 20, "steady"),
        *node_rows([0, 0, 0], 20, "idle"),
        row("node_interval", node="one"),
    ]

    page = run_twice(capacity.JOB, {"node_interval": rows}, data, tmp_path / "capacity")
    found = {
        each["node"]: each for each in spark.read.parquet(str(tmp_path / "capacity" / "nodes")).collect()
    }

    varied, steady = found["varied"], found["steady"]
    assert pytest.approx(25, rel=0.05) == varied["cpu_us"]
    assert pytest.approx((1 - 0.025) / 25e-6, rel=0.05) == varied["saturated_at"]
    assert 10_500 < varied["borne"] < 12_000 < varied["late_from"] < 13_500
    assert (None, None) == (steady["cpu_us"], steady["saturated_at"])
    assert pytest.approx(25 + 0.025e6 / 5000, rel=0.05) == steady["at_most_us"]
    assert "one" not in found
    said = {fact.split(":")[0]: fact for fact in page.facts}
    assert varied["saturated_at"] == varied["at_least"] <= 2 * varied["greatest"]
    assert "one core is saturated at" in said["varied"]
    assert "a lower bound, as messages are batched" in said["varied"]
    assert "the load varied too little" in said["steady"]
    assert "no messages were published" in said["idle"]


def test_no_rate_is_estimated_far_beyond_those_that_were_seen(spark):
    """A node seen at 36 to 110 messages per second is said to sustain twice that, whatever the line says.

    As it was never late, its greatest rate on time is its greatest rate.
    """
    chance = random.Random(3)
    rows = list(node_rows([chance.uniform(36, 110) for _ in range(300)], 1000, "small"))

    (found,) = capacity.compute(Made(spark, {"node_interval": rows}))["nodes"].collect()

    assert found["cpu_us"] > 1000
    assert (None, 2 * found["greatest"]) == (found["saturated_at"], found["at_least"])
    assert found["at_least"] < 230
    assert (found["greatest"], None) == (found["borne"], found["late_from"])


# -- churn --------------------------------------------------------------------------------------------------------------


def test_events_are_shown_over_the_whole_range(spark):
    """The axis of events begins and ends with the rows of the node, not with its first and last event."""
    tables = {
        "event": [row("event", 100, kind="connection_opened")],
        "node_interval": [row("node_interval", second) for second in range(0, 601, 5)],
    }

    times = churn.compute(Made(spark, tables))["over_time"].collect()

    assert (START / 1000, START / 1000 + 600) == (times[0]["time"].timestamp(), times[-1]["time"].timestamp())
    assert 1 == sum(each["connection_opened"] for each in times)


def test_logins_alarms_and_connections_are_counted(data, tmp_path, spark):
    """Failed logins by address, alarms with their minutes (whatever ended them), and connections with their length."""
    rows = [
        row("event", number, kind="auth_failed", name="root", detail={"peer": peer})
        for number, peer in enumerate(["10.0.0.1", "10.0.0.1", "fe80::1"])
    ]
    rows += [
        # cleared; ended by the stop of the broker; by a crash, after a last sign of life; still on
        row("event", 10, kind="alarm_raised", name="memory"),
        row("event", 70, kind="alarm_cleared", name="memory"),
        row("event", 80, kind="alarm_raised", name="disk"),
        row("event", 200, kind="stop"),
        row("event", 300, kind="alarm_raised", name="disk", boot_id="crashed"),
        row("event", 900, kind="alarm_raised", name="disk", boot_id="last"),
    ]
    for number, seconds in enumerate((1, 3, 8)):
        names = {"name": str(number), "detail": {"peer": "10.0.0.2", "user": "guest"}}
        rows.append(row("event", number, kind="connection_opened", **names))
        rows.append(row("event", number + seconds, kind="connection_closed", **names))
    rows.append(row("event", 0, kind="connection_opened", name="3", detail=names["detail"]))
    nodes = [row("node_interval", 600, boot_id="crashed")]

    page = run_twice(churn.JOB, {"event": rows, "node_interval": nodes}, data, tmp_path / "churn")
    tables = {
        name: spark.read.parquet(str(tmp_path / "churn" / name)).collect()
        for name in ("failures", "clients", "alarms", "over_time")
    }

    assert [("10.0.0.1", 2), ("fe80::1", 1)] == [
        (each["peer"], each["failed"]) for each in tables["failures"]
    ]
    assert [("10.0.0.2", "guest", 4, 3, 3.0)] == [
        tuple(each[name] for name in ("peer", "user", "opened", "closed", "median_s"))
        for each in tables["clients"]
    ]
    assert [("memory", 1.0), ("disk", 2.0), ("disk", 5.0), ("disk", None)] == [
        (each["alarm"], each["minutes"]) for each in tables["alarms"]
    ]
    assert [
        "3 failed logins from 2 addresses.",
        "4 alarms, 8.0 minutes in total; 1 still in effect at the end.",
    ] == list(page.facts)
    assert (181, 4) == (
        len(tables["over_time"]),
        sum(each["connection_opened"] for each in tables["over_time"]),
    )


# -- anomalies ----------------------------------------------------------------------------------------------------------

MINUTE = 60
DAYS = 7
SHIFTS = [
    (6 * 1440 + hour * 60 + 13, 10 if factor > 1 else 5, factor)
    for hour in range(2, 22, 5)
    for factor in (2, 0.2)
]
"""Shifts of the last day: the minute of each one's start, its length in minutes, and the factor of its rate."""
NAMES = "node string, boot_id string, vhost string, queue string, since_ms long, ts long, mono_us long, pub long, delivered long, acked long"


def days(queue, shifts):
    """A week of a queue whose rate follows the hour of the day, with noise, and with shifts."""
    chance, published = random.Random(queue), 0
    for minute in range(DAYS * 1440):
        rate = 200 * (1 + 0.3 * math.sin(2 * math.pi * minute / 1440)) * chance.gauss(1, 0.04)
        for start, length, factor in shifts:
            if start <= minute < start + length:
                rate *= factor
        published += round(MINUTE * rate)
        mono = (minute + 1) * MINUTE
        yield "here", "boot", "/", queue, 0, START + mono * 1000, mono * 10**6, published, published, 0


def test_level_shifts_are_found_and_noise_is_not(spark):
    """Each shift in a week of noise is found within three intervals; less than one other thing a day is called unusual."""
    shifts = sorted({start: (start, length, factor) for start, length, factor in SHIFTS}.values())
    rows = spark.createDataFrame([*days("shifted", shifts), *days("steady", [])], NAMES)

    found = anomalies.runs(anomalies.judged(rows, clocks(rows))).filter("what = 'pub'").collect()

    times = {"shifted": [], "steady": []}
    for each in found:
        times[each["queue"]].append(
            (each["start"].replace(tzinfo=UTC).timestamp() * 1000 - START) / 60_000 - 1
        )
    for start, length, _ in shifts:
        assert any(start <= minute <= min(start + 3, start + length) for minute in times["shifted"]), start
    false = [minute for minute in times["shifted"] if not any(s <= minute <= s + n for s, n, _ in shifts)]
    assert len(false) < DAYS
    assert len(times["steady"]) < DAYS


def test_rates_follow_each_other_until_the_broker_is_started_again(spark):
    """Unusual rates are one time while none is missing between them: a usual one or a restart begins another."""
    burst = [*range(700, 720), *range(800, 820)]
    restart = 810
    made, published = [], 0
    for step in range(1000):
        published = (0 if step == restart else published) + (5000 if step in burst else 50)
        boot = "first" if step < restart else "second"
        made.append(row("queue_interval", 5 * step, boot_id=boot, pub=published))
    rows = Made(spark, {"queue_interval": made}).table("queue_interval")

    found = anomalies.runs(anomalies.judged(rows, clocks(rows))).orderBy("start").collect()

    starts = [round((each["start"].replace(tzinfo=UTC).timestamp() * 1000 - START) / 5000) for each in found]
    assert [(700, 20), (800, 10), (811, 9)] == [
        (start, each["intervals"]) for start, each in zip(starts, found, strict=True)
    ]


def test_a_rate_is_of_the_interval_in_which_things_happened(spark):
    """A queue without a row did nothing; only where a row is missing that had to be there is what it did spread out."""
    rows = Made(
        spark,
        {
            "queue_interval": [
                row("queue_interval", second, pub=published)
                for second, published in (
                    (0, 0),
                    (5, 10),
                    (10, 20),
                    (40, 25),
                    (300, 285),
                    (305, 290),
                    (310, 290),
                )
            ]
        },
    ).table("queue_interval")

    found = anomalies.rated(rows, clocks(rows)).orderBy("ts").collect()

    assert [
        (5, 2.0, 1),
        (10, 2.0, 1),
        (35, 0.0, 5),
        (40, 1.0, 1),
        (300, 1.0, 1),
        (305, 1.0, 1),
        (310, 0.0, 1),
    ] == [((each["ts"] - START) / 1000, each["pub"], each["intervals"]) for each in found]
    assert [START, *(each["ts"] for each in found[:-1])] == [each["after"] for each in found]


def test_what_runs_out_is_reported_beforehand(data, tmp_path, spark):
    """Disk and memory that shrink say when they are used up; those that do not, or are not limited, say nothing."""
    rows = []
    for minute in range(61):
        gone = minute * 10**9 // 600
        usual = {"disk_limit": 10**9, "mem_limit": 10**9, "mem_used": 10**8}
        rows += [
            row("node_interval", 60 * minute, node="filling", **usual | {"disk_free": 2 * 10**9 - gone}),
            row("node_interval", 60 * minute, node="no disk", **usual | {"disk_free": -1}),
            row(
                "node_interval",
                60 * minute,
                node="full",
                **usual | {"disk_free": 5, "mem_used": 10**8 + gone},
            ),
            # grew until it was started again
            row(
                "node_interval",
                60 * minute,
                node="again",
                boot_id="one" if minute < 40 else "two",
                **usual | {"disk_free": 10**10, "mem_used": 10**8 + (gone if minute < 40 else 0)},
            ),
        ]
    rows += [
        row("node_interval", 60 * n, node="new", disk_free=-1, mem_limit=10**9, mem_used=n * 10**8)
        for n in range(4)
    ]
    published = [
        row("queue_interval", 25 * n, queue="$q_1$", pub=50 * n + 1000 * (n > 80) * (n - 80))
        for n in range(90)
    ]
    tables = {"queue_interval": published, "node_interval": rows}

    page = run_twice(anomalies.JOB, tables, data, tmp_path / "anomalies")
    limits = spark.read.parquet(str(tmp_path / "anomalies" / "limits")).collect()
    found = {(each["node"], each["what"]): each["hours_left"] for each in limits}

    assert pytest.approx(9.0, rel=0.01) == found["filling", "disk"]
    assert 0.0 == found["full", "disk"]
    assert pytest.approx(8.0, rel=0.01) == found["full", "memory"]
    assert {None} == {
        found[key]
        for key in (
            ("filling", "memory"),
            ("no disk", "memory"),
            ("again", "memory"),
            ("again", "disk"),
            ("new", "memory"),
        )
    }
    assert ("no disk", "disk") not in found
    assert [
        "filling: disk reaches its limit in 9 hours.",
        "full: disk is at its limit.",
        "full: memory reaches its limit in 8 hours.",
    ] == list(page.facts)
    assert "Not judged: one day of data. 1 queue rate was unusual within an hour." == page.lead
    assert ["here  $q_1$ pub"] == [section.title for section in page.sections if section.figure]
    assert all(isinstance(datetime.fromisoformat(each["start"]), datetime) for each in page.sections[-2].rows)


def test_nothing_is_usual_in_an_hour_that_is_not_judged(spark):
    """The figure of a rate has the usual one in an hour of 40 minutes, and none in the minutes of the next hour."""
    left = 3600 - START // 1000 % 3600
    rows = Made(
        spark,
        {
            "queue_interval": [
                row("queue_interval", left + 5 * n, pub=50 * (n + 480)) for n in range(-480, 60)
            ]
        },
    ).table("queue_interval")
    few = rows.selectExpr(*QUEUE, "'pub' AS what").distinct()

    drawn = anomalies.shown(anomalies.judged(rows, clocks(rows)), few).orderBy("time").collect()

    assert {10.0} == {each["median"] for each in drawn[:470]}
    assert {None} == {each["median"] for each in drawn[-50:]}


def test_an_hour_has_nothing_to_be_compared_with(spark, tmp_path):
    """Of data of one day, in which nothing is unusual within its hour, the page says that it was not judged."""
    rows = [row("queue_interval", 5 * n, queue="q", pub=50 * n) for n in range(90)]

    page = run(anomalies.JOB, Made(spark, {"queue_interval": rows}), tmp_path / "anomalies", quiet)

    assert "Not judged: one day of data." == page.lead

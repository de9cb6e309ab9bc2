import random
from datetime import datetime

import pytest
from made_rows import row

from analytics import anomalies, capacity, churn, routing
from analytics.job import run


def quiet(_text):
    """Nobody is told."""


def test_routing_is_what_a_recount_says(data, tmp_path):
    """Copies, messages in vain and remembered routes of each exchange are those of a simulation, over two boots."""
    chance, rows, truth = random.Random(1), [], {}
    for exchange in ("", "events", "logs"):
        for boot in ("one", "two"):
            counts = dict.fromkeys(
                (
                    "pub_in",
                    "routed",
                    "unroutable_returned",
                    "unroutable_dropped",
                    "fanout_sum",
                    "route_lookups",
                ),
                0,
            )
            for second in range(0, 50, 5):
                for _ in range(chance.randint(0, 30)):
                    copies = chance.choice([0, 1, 1, 2, 5])
                    counts["pub_in"] += 1
                    counts["fanout_sum"] += copies
                    counts["route_lookups"] += chance.random() < 0.1
                    counts[
                        "routed" if copies else chance.choice(["unroutable_returned", "unroutable_dropped"])
                    ] += 1
                rows.append(
                    row(
                        "exchange_interval",
                        second,
                        exchange=exchange,
                        type="topic",
                        boot_id=boot,
                        bindings=3,
                        **counts,
                    )
                )
            for name, value in counts.items():
                truth[exchange, name] = truth.get((exchange, name), 0) + value
    rows.append(
        row("topic_pattern", 5, exchange="logs", pattern="a.#", matches=truth["logs", "pub_in"] // 2, error=1)
    )
    rows.append(row("topic_pattern", 5, exchange="logs", pattern="b.*"))
    chance.shuffle(rows)
    made = data({name: [each for each in rows if ("pattern" in each) == (name == "topic_pattern")]
                 for name in ("exchange_interval", "topic_pattern")})  # fmt: skip

    page = run(routing.JOB, made, tmp_path / "out" / "routing", quiet)
    found = {each["exchange"]: each for each in routing.compute(made)["exchanges"].collect()}

    for exchange, each in found.items():
        published = truth[exchange, "pub_in"]
        lost = truth[exchange, "unroutable_returned"] + truth[exchange, "unroutable_dropped"]
        assert {name: each[name] for name in routing.COUNTERS} == {
            name: truth[exchange, name] for name in routing.COUNTERS
        }
        assert pytest.approx(
            (truth[exchange, "fanout_sum"] / truth[exchange, "routed"], lost / published,
             1 - truth[exchange, "route_lookups"] / published)
        ) == (each["fanout"], each["unroutable"], each["remembered"])  # fmt: skip
    assert ["1 binding patterns matched nothing."] == page.facts
    assert ["b.*"] == [each["pattern"] for each in page.sections[-1].rows]


def node_rows(chance, cost_us, *, late_above=None):
    """Rows of a node under changing load, whose messages cost so much, and which is late above a rate."""
    published = cpu = 0
    for step in range(300):
        rate = chance.uniform(100, 20_000)
        published += round(5 * rate)
        cpu += round(5 * rate * cost_us * chance.uniform(0.95, 1.05)) + 5 * 20_000
        late = 30_000 if late_above and rate > late_above else 2_000
        yield row(
            "node_interval",
            5 * step,
            published=published,
            cpu_user_us=cpu,
            cpu_sys_us=cpu // 4,
            loop_lag_p99_us=late,
        )


def test_the_cost_of_a_message_is_found_again(data, tmp_path):
    """Processor time that was put into made-up intervals comes out within 5 %, and so does the rate that is borne."""
    made = data({"node_interval": list(node_rows(random.Random(2), 20, late_above=12_000))})

    (found,) = capacity.compute(made)["nodes"].collect()
    page = run(capacity.JOB, made, tmp_path / "out" / "capacity", quiet)

    assert pytest.approx(25, rel=0.05) == found["cpu_us"]
    assert pytest.approx((1 - 0.025) / 25e-6, rel=0.05) == found["saturated_at"]
    assert 10_500 < found["borne"] < 12_000 < found["late_from"] < 13_500
    assert "us of processor a message" in page.facts[0]


def test_a_node_with_one_row_has_no_line(data):
    """Of one interval nothing is concluded."""
    made = data(
        {"node_interval": [row("node_interval", 0), row("node_interval", 5, published=10, cpu_user_us=5)]}
    )

    (found,) = capacity.compute(made)["nodes"].collect()

    assert (1, None, None) == (found["intervals"], found["cpu_us"], found["saturated_at"])


def test_logins_alarms_and_connections_are_counted(data, tmp_path):
    """Failed logins by address, alarms with their minutes (also those that the end of the broker ended), connections."""
    peers = ("10.0.0.1:5001", "10.0.0.1:5002", "[::1]:80")
    rows = [
        row("event", n, kind="auth_failed", name="root", detail={"peer": peer})
        for n, peer in enumerate(peers)
    ]
    rows += [
        row("event", 10, kind="alarm_raised", name="memory"),
        row("event", 70, kind="alarm_cleared", name="memory"),
        row("event", 80, kind="alarm_raised", name="disk"),
        row("event", 200, kind="stop"),
        row("event", 300, kind="alarm_raised", name="disk", boot_id="later"),
    ]
    for number in range(4):
        detail = {"peer": f"10.0.0.2:{number}", "user": "guest"}
        rows.append(row("event", number, kind="connection_opened", name=str(number), detail=detail))
    rows.append(row("event", 9, kind="connection_closed", name="1", detail=detail))
    made = data({"event": rows})

    page = run(churn.JOB, made, tmp_path / "out" / "churn", quiet)
    tables = churn.compute(made)

    assert [("10.0.0.1", 2), ("[::1]", 1)] == [
        (each["peer"], each["failed"]) for each in tables["failures"].collect()
    ]
    assert [("10.0.0.2", "guest", 4, 1)] == [
        (each["peer"], each["user"], each["opened"], each["closed"]) for each in tables["clients"].collect()
    ]
    assert [("disk", 2.0), ("disk", None), ("memory", 1.0)] == [
        (each["alarm"], each["minutes"]) for each in tables["alarms"].collect()
    ]
    assert ["3 logins failed, from 2 addresses.", "3 alarms, 3.0 minutes together."] == list(page.facts)
    assert 4 == sum(each["connection_opened"] for each in tables["over_time"].collect())


def rate_rows(chance, shifts=(), seconds=7200, queues=3):
    """Rows of queues with a noisy steady rate, but from some seconds on, for some intervals, times a factor."""
    for queue in range(queues):
        published = 0
        for second in range(0, seconds, 5):
            rate = max(0.0, chance.gauss(200, 10))
            for which, start, intervals, factor in shifts:
                if which == queue and start <= second < start + 5 * intervals:
                    rate *= factor
            published += round(5 * rate)
            yield row("queue_interval", second, queue=f"q{queue}", pub=published)


def test_a_shift_of_the_rate_is_found_and_noise_is_not(data, tmp_path):
    """Three shifts that were put in are found where they are, and nothing else."""
    shifts = [(0, 1000, 10, 3.0), (1, 4000, 5, 0.2), (2, 6000, 2, 5.0)]
    rows = list(rate_rows(random.Random(3), shifts))
    random.Random(4).shuffle(rows)
    made = data({"queue_interval": rows})

    page = run(anomalies.JOB, made, tmp_path / "out" / "anomalies", quiet)
    found = [each for each in anomalies.compute(made)["unusual"].collect() if each["what"] == "pub"]

    assert [("q0", 10), ("q1", 5)] == sorted((each["queue"], each["intervals"]) for each in found)
    assert all(isinstance(each["start"], datetime) for each in found)
    assert any(section.figure for section in page.sections)


def test_what_runs_out_is_told_beforehand(data, tmp_path):
    """A disk that loses a tenth of its room every hour is full in ten; memory that does not grow never is."""
    rows = [
        row(
            "node_interval", 60 * minute, disk_free=10**12 + 10**9 - minute * 10**9 // 600, disk_limit=10**12,
            mem_limit=10**9, mem_used=10**8,
        )
        for minute in range(61)
    ]  # fmt: skip
    made = data({"queue_interval": [row("queue_interval")], "node_interval": rows})

    page = run(anomalies.JOB, made, tmp_path / "out" / "anomalies", quiet)
    found = {each["what"]: each for each in anomalies.compute(made)["limits"].collect()}

    assert pytest.approx(9.0, rel=0.01) == found["disk"]["hours_left"]
    assert found["memory"]["hours_left"] is None
    assert "disk reaches its limit in 9 hours" in page.facts[0]

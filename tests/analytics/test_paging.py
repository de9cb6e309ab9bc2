import random

import pytest
from samples.made_rows import START, Made, quiet, row, run_twice

from bench.generate import queue_interval, write
from leveret.analytics.job import run
from leveret.analytics.paging import BROKEN, BROKEN_STEPS, JOB, STATES, checked, compute
from leveret.analytics.reading import Input

RATE, WAIT = 20, 2.0


def arrivals(seed, messages=5000):
    """Yield when messages arrive, at random, and when each leaves, a random time later: seconds."""
    chance, now = random.Random(seed), 0.0
    for _ in range(messages):
        now += chance.expovariate(RATE)
        yield now, now + chance.expovariate(1 / WAIT)


def rows_of(stays, seconds, **names):
    """Yield a queue's rows at these seconds, computed message by message; half of the time is in gamma."""
    for second in seconds:
        inside = [(come, leave) for come, leave in stays if come <= second]
        ready = sum(leave > second for _, leave in inside)
        area = round(sum(min(leave, second) - come for come, leave in inside) * 1_000_000)
        yield row(
            "queue_interval",
            second,
            **names,
            durable=True,
            ready=ready,
            alpha=ready,
            pub=len(inside),
            delivered=len(inside) - ready,
            area_ready=area,
            area_alpha=area // 2,
            area_gamma=area - area // 2,
        )


def mean_ms(stays):
    return 1000 * sum(leave - come for come, leave in stays) / len(stays)


STAYS = list(arrivals(1))
END = int(max(leave for _, leave in STAYS)) // 5 * 5 + 5
CUT = range(25, 245, 5)
"""Some 110 mean waits, with messages at both ends."""
LEFT = [(come, leave) for come, leave in STAYS if CUT[0] < leave <= CUT[-1]]
AGAIN = list(arrivals(2, messages=200))


@pytest.fixture(scope="module")
def found(spark):
    """Return the job's result for queues with known waits, by queue; and for all of them, by table."""
    waits = [round((leave - come) * 1_000_000) for come, leave in LEFT]
    wait = {"scope": "queue", "name": "cut", "count": len(waits), "sum_us": sum(waits)}
    made = Made(
        spark,
        {
            "queue_interval": [
                *rows_of(STAYS, range(0, END + 1, 5), queue="whole"),
                *rows_of(STAYS, CUT, queue="cut"),
                # one life in one boot, then another two
                *rows_of(AGAIN, range(0, 9, 2), queue="again"),
                *rows_of(AGAIN, range(0, 31, 2), queue="again", boot_id="later", since_ms=1),
                *rows_of(AGAIN, range(0, 31, 2), queue="again", boot_id="later", since_ms=2),
                # declared, and recovered with ten messages, just before the first row
                row("queue_interval", 2, queue="new", since_ms=START, pub=9, delivered=5, ready=4),
                row(
                    "queue_interval",
                    2,
                    queue="recovered",
                    since_ms=START,
                    delivered=8,
                    ready=2,
                    area_ready=16_000_000,
                ),
                row("queue_interval", 0, queue="moves"),
                row(
                    "queue_interval",
                    10,
                    queue="moves",
                    pub=100,
                    delivered=50,
                    t_ag=50,
                    t_to_delta=30,
                    t_from_delta=20,
                ),
            ],
            "latency_hist": [
                row("latency_hist", 5, metric="deliver", **wait),
                row("latency_hist", 5, metric="ack", **wait | {"sum_us": 1}),
            ],
        },
    )
    _, waits = checked(made, made.table("latency_hist"))
    compared = {each["queue"]: each.asDict() for each in waits.collect()}
    return {
        each["queue"]: each.asDict() | compared.get(each["queue"], {})
        for each in compute(made)["queues"].collect()
    }


def test_little_s_law_is_exact_from_empty_to_empty(found):
    """The wait by Little's law is the mean of the waits, reckoned one by one, where a queue begins and ends empty."""
    assert pytest.approx(mean_ms(STAYS), rel=1e-6) == found["whole"]["little_ms"]
    assert 0 == found["whole"]["boundary"]
    shares = tuple(found["whole"][f"share_{state}"] for state in STATES)
    assert pytest.approx((0.5, 0.0, 0.5, 0.0), abs=1e-6) == shares


def test_little_s_law_agrees_with_samples_over_a_hundred_waits(found):
    """Little's law over a hundred mean waits is within 1 % of the samples, though messages wait at both ends."""
    cut = found["cut"]
    ends = [sum(come <= end < leave for come, leave in STAYS) for end in (CUT[0], CUT[-1])]

    assert CUT[-1] - CUT[0] >= 100 * WAIT
    assert 0 not in ends
    assert pytest.approx(sum(ends) / len(LEFT)) == cut["boundary"]
    assert (len(LEFT), pytest.approx(mean_ms(LEFT))) == (cut["samples"], cut["measured_ms"])
    assert cut["gap"] <= 0.01


def test_the_lives_of_a_queue_are_put_together(found):
    """A queue declared again, in another boot, has the times of all its lives, and what waited at the end of each."""
    first = [(come, leave) for come, leave in AGAIN if come <= 8]
    area = sum(min(leave, 8) - come for come, leave in first) + 2 * sum(leave - come for come, leave in AGAIN)
    waiting = sum(leave > 8 for _, leave in first)
    left = len(first) - waiting + 2 * len(AGAIN)

    assert 8 + 30 + 30 == found["again"]["seconds"]
    assert len(first) + 2 * len(AGAIN) == found["again"]["pub"]
    assert pytest.approx((1000 * area / left, waiting / left)) == (
        found["again"]["little_ms"],
        found["again"]["boundary"],
    )


def test_what_a_new_queue_did_before_its_first_row_counts(found):
    """A queue that was declared began empty; one that was found at a start had what its counters do not explain."""
    assert (9, 4 / 5) == (found["new"]["pub"], found["new"]["boundary"])
    assert (2000.0, 12 / 8) == (found["recovered"]["little_ms"], found["recovered"]["boundary"])


def test_moves_are_per_second_and_thrashing_per_delivery(found):
    """Changes of state are reported as rates, reads from disk per delivery."""
    assert (5.0, 3.0, 2.0, 0.4) == tuple(
        found["moves"][name] for name in ("t_ag_per_s", "t_to_delta_per_s", "t_from_delta_per_s", "thrash")
    )


@pytest.fixture(scope="module")
def still(spark):
    """A queue that lay still, one that changed its mode, one whose clock was set, and rows that cannot be."""
    area = {"area_ready": 7 * 60 * 10**6, "area_alpha": 7 * 60 * 10**6}
    impossible = [
        {"ready": 1},
        {"area_ready": 100},
        {"delta": 1, "ready": 1, "t_to_delta": 1, "t_from_delta": 1},
        {"gamma": 1, "ready": 1, "t_ag": 1, "durable": False},
        {"beta": 1, "ready": 1},
        {"gamma": 1, "ready": 1},
    ]
    rows = [
        row("queue_interval", 0, node="still", queue="q", ready=7, alpha=7),
        row("queue_interval", 60, node="still", queue="q", ready=7, alpha=7, **area),
        *(row("queue_interval", 5 * n, queue="q", mode="standard", pub=10 + n, acked=9) for n in range(3)),
        row("queue_interval", 15, queue="q", mode="consumer-ack", pub=20, acked=9),
        row("queue_interval", 5, queue="p", mode="standard", pub=10),
    ]
    for number, values in enumerate(impossible):
        rows.append(row("queue_interval", 0, node="wrong", queue=str(number)))
        rows.append(row("queue_interval", 5, node="wrong", queue=str(number), **{"durable": True} | values))
    made = Made(spark, {"queue_interval": rows})
    return compute(made) | {"broken": checked(made, None)[0]}


def test_a_level_that_did_not_change_is_spread_over_its_time(still):
    """Seven messages that lay for a minute without a row were there in every part of the minute."""
    bins = still["residence"].filter("node = 'still'").collect()

    assert [7.0] * 12 == [pytest.approx(each["alpha"]) for each in bins]


RESTARTED = {
    "busy": {"a": [*range(0, 23, 5), 23], "b": [*range(44, 62, 5), 61]},
    "quiet": {"a": [0, 3], "b": [44, 46]},
}
"""The seconds of the rows of two queues with 1,000 and 500 messages, by boot: the broker is away for 21 seconds."""


def restarted():
    """Yield rows of both queues; only one of them gets and loses a hundred messages a second."""
    for queue, boots in RESTARTED.items():
        level = 1000 if queue == "busy" else 500
        for boot, seconds in boots.items():
            for second in seconds:
                area = level * (second - seconds[0]) * 10**6
                moved = 100 * (second - seconds[0]) * (queue == "busy")
                states = {"ready": level, "alpha": level, "area_ready": area, "area_alpha": area}
                yield row("queue_interval", second, queue=queue, boot_id=boot, **states, pub=moved, delivered=moved,
                          t_to_delta=moved, t_from_delta=moved)  # fmt: skip


def test_a_bin_counts_the_time_that_it_covers(spark):
    """A backlog and a rate that never changed are the same in each bin, also beside a restart and at the ends.

    Bins are of five seconds; the second and the last but one cover a part of one each, and while the broker is away
    there is none. A queue that has no row at the ends, because nothing changed, counts there.
    """
    made = compute(Made(spark, {"queue_interval": list(restarted())}))

    for each in made["residence"].collect():
        assert pytest.approx(1500) == each["alpha"], each["time"]
    for each in made["moves"].collect():
        assert pytest.approx(100) == each["t_to_delta"], each["time"]
    times = [each["time"].timestamp() - START / 1000 for each in made["residence"].collect()]
    assert [0, 5, 10, 15, 20, 40, 45, 50, 55, 60] == times


def test_a_line_has_a_gap_where_there_is_no_bin(spark, tmp_path):
    """The chart of the states does not bridge the time in which the broker was away."""
    page = run(JOB, Made(spark, {"queue_interval": list(restarted())}), tmp_path / "paging", quiet)
    (alpha,) = [each for each in page.sections[0].figure.panels[0].series if each.label == "in memory"]

    assert [False] * 5 + [True] + [False] * 5 == [level is None for level in alpha.y]


def test_totals_are_since_the_start(still):
    """The page's totals count all publishes into queues since they were made, by the mode that the queues have."""
    totals = still["totals"].filter("node = 'here'").collect()

    assert [("consumer-ack", 20, 9), ("standard", 10, 0)] == [
        (each["mode"], each["pub"], each["acked"]) for each in totals
    ]


def test_rows_that_cannot_be_are_counted(still):
    """Rows that contradict the states of messages are counted: of each kind the one that was put in."""
    assert dict.fromkeys((*BROKEN, *BROKEN_STEPS), 1) == {
        each["what"]: each["rows"] for each in still["broken"].collect()
    }


def test_generated_queues_are_where_their_formulas_put_them(spark, tmp_path):
    """Generated queues are a third in alpha and two in gamma, Little's wait is level over rate, nothing is broken."""
    write(queue_interval(spark, 2000), "queue_interval", tmp_path, parquet=True)
    data = Input(spark, tmp_path, tmp_path / "out")
    tables = compute(data)

    queues = tables["queues"].collect()

    assert 20 == len(queues)
    for found in queues:
        number = int(found["queue"][1:])
        level, rate = 3 * (number % 10), 10 + number % 7
        assert pytest.approx(level) == found["mean_ready"]
        assert pytest.approx(1000 * level / rate) == found["little_ms"]
        if level:
            assert pytest.approx((1 / 3, 2 / 3)) == (found["share_alpha"], found["share_gamma"])
    broken, _ = checked(data, None)
    assert broken.isEmpty()


def test_neither_order_nor_files_nor_doing_it_twice_change_the_report(data, tmp_path):
    """The page has its figures and says where messages waited, and is the same for the same rows in any order."""
    rows = list(rows_of(AGAIN, range(0, 31, 2), queue="again", mode="standard"))

    page = run_twice(JOB, {"queue_interval": rows}, data, tmp_path / "paging")

    assert {"states-0", "fullest"} == {section.name for section in page.sections if section.figure}
    assert page.facts[1].startswith("Most messages waited in again (")
    assert page.sections[0].text.endswith("No message moved between memory and disk. Times are in UTC.")

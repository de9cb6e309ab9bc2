import random
from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import dataset
from samples.made_rows import Made, row, run_twice

from leveret.analytics.findings import CRITICAL, WARNING
from leveret.analytics.health import BEHIND, JOB, OK, STALLED, STOPPED, compute, describe
from leveret.analytics.job import Written
from leveret.analytics.series import QUEUE
from leveret.analytics.troubles import COLUMNS

STEPS = 20


def lives(chance, kind):
    """Yield the values of a queue's rows at each interval, for a kind whose verdict is known."""
    ready, unacked, settled, given, back, pub = chance.randint(50, 500), 0, 0, 0, 0, 0
    stop = chance.randint(2, STEPS - 13)
    for step in range(STEPS):
        came, took, again, consumers = chance.randint(20, 100), chance.randint(5, 15), 0, 2
        if kind == "empty":
            ready, took = 0, came
        elif kind == "keeps up":  # backlog up and down
            took = came + (6 if step % 2 else -chance.randint(1, 5))
        elif kind == "drains":
            came, ready = 0, ready if step else 400
        elif kind == "behind":
            took = came - chance.randint(1, 15)
        elif step > stop:  # the other kinds have consumers that stop
            took = 0
            again = chance.randint(1, 3) if kind == "gives back" else 0
            consumers = 2 if kind in {"gives back", "holds"} else 0
            unacked = 20 if kind == "holds" else 0
            came = came if kind == "holds" else 0
        if kind == "never":
            took, consumers, came = 0, 0, came if step < 3 else 0
        if kind != "empty":
            ready = max(1, ready + came - took)
        pub, settled, given, back = pub + came, settled + took, given + took + again, back + again
        yield {
            "ready": ready,
            "unacked": unacked,
            "acked": settled,
            "delivered": given + unacked,
            "requeued": back,
            "pub": pub,
            "consumers": consumers,
            "capacity": 1.0,
        }


KINDS = {
    "empty": OK,
    "keeps up": OK,
    "drains": OK,
    "behind": BEHIND,
    "gives back": STALLED,
    "holds": STALLED,
    "gone": STOPPED,
    "never": STOPPED,
}


def made(each, seed=1):
    """Rows of so many queues of each kind, as the export leaves them out: only where something changed, or a minute."""
    chance, rows = random.Random(seed), []
    for kind in KINDS:
        for number in range(each):
            before, written = None, 0
            for step, life in enumerate(lives(chance, kind)):
                if life != before or step - written >= 12:
                    rows.append(row("queue_interval", 5 * step, queue=f"{kind}/{number}", **life))
                    written = step
                before = life
    rows += [row("queue_interval", 5 * step, queue="clock", pub=step) for step in range(STEPS)]
    chance.shuffle(rows)
    return rows


def judged(spark, rows, **tables):
    """Return the job's verdict of each queue that has rows."""
    queues = compute(Made(spark, {"queue_interval": rows, **tables}))["queues"]
    return {each["queue"]: each for each in queues.collect()}


def test_verdicts_of_eight_kinds_of_queues(spark):
    """Queues of eight kinds, twenty each, have their verdict in 95 % of cases, and 95 % of each verdict are right."""
    found = Counter(
        (name.split("/")[0], each["verdict"]) for name, each in judged(spark, made(each=20)).items()
    )
    del found["clock", OK]

    assert 160 == found.total()
    for kind, verdict in KINDS.items():
        assert found[kind, verdict] >= 0.95 * 20, kind
    for verdict in (OK, BEHIND, STALLED, STOPPED):
        given = sum(number for (_, said), number in found.items() if said == verdict)
        right = sum(number for (kind, said), number in found.items() if KINDS[kind] == said == verdict)
        assert right >= 0.95 * given, verdict


def constant(name, steps, **values):
    """Rows of a queue, one each interval; a value may be a function of the number of the interval."""
    for step in steps:
        fields = {key: value(step) if callable(value) else value for key, value in values.items()}
        yield row("queue_interval", 5 * step, queue=name, **fields)


@pytest.fixture(scope="module")
def various(spark):
    """Queues that are alone in something, judged together."""
    rows = [
        # a hot one among others, some of them with consumers that are busy
        *(
            each
            for number in range(5)
            for each in constant(f"q{number}", range(20), pub=lambda n, q=number: n * (100 if q else 1000))
        ),
        *constant("busy", range(20), ready=10, consumers=1, delivered=int, acked=int, capacity=0.1),
        *constant("free", range(20), ready=10, consumers=1, delivered=int, acked=int, capacity=0.9),
        # consumers that need not ack: nothing is acked, everything is settled
        *constant("automatic", range(20), ready=10, consumers=1, delivered=lambda n: 5 * n),
        *constant("automatic, late", range(20), ready=lambda n: 10 + n, delivered=lambda n: 5 * n),
        # no limit to what consumers may have: nothing is ready, and nothing is settled
        *constant("swallowed", range(20), unacked=lambda n: 3 * n, delivered=lambda n: 3 * n, consumers=1),
        # one step in which both rose is not every step
        row("queue_interval", 0, queue="once", ready=5),
        row("queue_interval", 90, queue="once", ready=6, delivered=1, acked=1),
        # deleted and declared again, and deleted for good
        *constant("again", range(12), ready=100),
        *constant("again", range(12, 20), since_ms=60_000, delivered=int, acked=int),
        *constant("went", range(5), ready=100),
        # of another boot
        *constant("before", range(-60, -40), ready=100, boot_id="before"),
        *constant("q1", range(-60, -40), ready=100, boot_id="before"),
    ]
    return judged(spark, rows)


def test_a_queue_that_is_gone_is_not_judged(various):
    """A queue without a row for longer than a minute was deleted; one of an earlier boot only is not there either."""
    assert not {"went", "before"} & various.keys()
    assert OK == various["q1"]["verdict"]


def test_a_queue_declared_again_is_the_new_one(various):
    """A queue's rows from before its deletion say nothing of the queue that has its name now."""
    assert (OK, 0) == (various["again"]["verdict"], various["again"]["ready"])


def test_a_hot_queue_gets_many_times_what_others_get(various):
    """One of five queues with ten times the rate of the others is hot, and its share is reported."""
    assert ["q0"] == [name for name, each in various.items() if each["hot"]]
    rates = {name: each["rate"] for name, each in various.items() if each["rate"]}
    assert {"q0": 200, "q1": 10, "q2": 20, "q3": 20, "q4": 20} == pytest.approx(rates)
    assert pytest.approx(200 / 270) == various["q0"]["share"]


def test_slow_consumers_are_found_by_their_capacity(various):
    """A backlog before consumers that are busy most of the time says so, whatever the verdict."""
    assert {"busy": True, "free": False} == {
        name: various[name]["consumers_busy"] for name in ("busy", "free")
    }


def test_consumers_that_need_not_ack_settle_by_getting(various):
    """Consumers without acks ack nothing; they are neither stalled nor stopped for that, but may fall behind."""
    assert (OK, BEHIND) == (various["automatic"]["verdict"], various["automatic, late"]["verdict"])
    assert 50 == various["automatic"]["settled"]


def test_consumers_that_swallow_messages_are_stalled(various):
    """An empty queue whose consumers have more in every interval and settle nothing is not well."""
    assert STALLED == various["swallowed"]["verdict"]


def test_one_interval_is_not_every_interval(various):
    """A queue in which something happened once has not grown in every step."""
    assert OK == various["once"]["verdict"]


def test_rows_of_the_node_say_how_long_an_interval_is(spark):
    """With hardly a queue changing, the node's rows give the interval, and the time when the tables end."""
    rows = [
        row("queue_interval", 0, queue="still", ready=5),
        row("queue_interval", 60, queue="still", ready=5),
        row("queue_interval", 0, queue="went"),
    ]
    nodes = [row("node_interval", 5 * step) for step in range(20)]

    found = judged(spark, rows, node_interval=nodes)

    assert ["still"] == list(found)
    assert (STOPPED, 50.0) == (found["still"]["verdict"], found["still"]["window_s"])


def test_neither_order_nor_files_nor_doing_it_twice_change_the_report(data, tmp_path):
    """The page counts the verdicts and lists the queues, and is the same for the same rows in any order."""
    page = run_twice(JOB, {"queue_interval": made(each=2)}, data, tmp_path / "health")

    assert (
        "At the end, of 17 queues: 4 stopped, 4 stalled, 2 falling behind. 4 of the stopped queues had no consumer."
        in page.facts
    )
    (wrong,) = [section for section in page.sections if section.title.endswith("keep up at the end")]
    assert {STOPPED, STALLED, BEHIND} == {each["verdict"] for each in wrong.rows}


def test_critical_troubles_are_told_before_warnings():
    """The facts have only some troubles: a critical one is among them, however many warnings began before it."""
    finding = dict.fromkeys(COLUMNS) | {"node": "n", "vhost": "/", "went": 0.0, "amount": 9.0, "came": 9.0}
    findings = [
        *(finding | {"kind": "unread", "level": WARNING, "queue": f"q{each}", "from_ms": each} for each in range(6)),
        finding | {"kind": "unserved", "level": CRITICAL, "queue": "late", "from_ms": 9},
    ]  # fmt: skip
    texts = dict.fromkeys((*QUEUE, "verdict"), pa.string()) | {"consumers_busy": pa.bool_()}
    numbers = dict.fromkeys(("consumers", "rate", "held", "most", "pub", "dead_lettered"), pa.float64())
    none = pa.schema(texts | numbers).empty_table()
    tables = dict.fromkeys(("queues", "episodes", "history", "dead", "totals"), none)
    tables["findings"] = pa.Table.from_pylist(findings)

    facts = describe(Written({name: dataset.dataset(table) for name, table in tables.items()})).facts

    assert facts[0].startswith("Queue late has lost its consumers")
    assert facts[5] == "2 more troubles below."

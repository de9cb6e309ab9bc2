import random

from made_rows import row

from analytics.health import BEHIND, JOB, OK, STALLED, STOPPED, compute
from analytics.job import run

STEPS = 30


def lives(chance, kind):
    """(ready, acked, delivered, pub, consumers) of a queue at each interval, of a kind whose verdict is known."""
    ready, acked, delivered, pub = chance.randint(50, 500), 0, 0, 0
    stop = chance.randint(5, STEPS - 13)
    for step in range(STEPS):
        came = chance.randint(20, 100)
        took = chance.randint(5, 15)
        consumers = 2
        if kind == "empty":
            ready, done = 0, came
        elif kind == "keeps up":  # backlog up and down
            done = came + chance.choice([-5, 5]) if step % 2 else came + 6
            ready = max(1, ready + came - done)
        elif kind == "drains":
            came, done = 0, took
            ready = max(1, ready - took)
        elif kind == "behind":
            done = came - chance.randint(1, 15)
            ready += came - done
        elif kind in {"stuck", "stuck without publishers"}:
            came = 0 if kind == "stuck without publishers" and step > stop else came
            done = took if step <= stop else 0
            ready += came - done if step <= stop else came
            delivered += chance.randint(1, 3)  # given out, given back, given out again
        elif kind == "gone":
            done = took if step <= stop else 0
            consumers = 2 if step <= stop else 0
            came = 0 if step > stop else came
            ready += came - done
        else:  # never had a consumer
            done, consumers, came = 0, 0, came if step < 3 else 0
            ready += came
        pub, acked, delivered = pub + came, acked + done, delivered + done
        yield ready, acked, delivered, pub, consumers


KINDS = {
    "empty": OK,
    "keeps up": OK,
    "drains": OK,
    "behind": BEHIND,
    "stuck": STALLED,
    "stuck without publishers": STALLED,
    "gone": STOPPED,
    "never": STOPPED,
}


def made(each=50, seed=1):
    """Rows of so many queues of each kind, as the export leaves them out: only where something changed, or a minute."""
    chance, rows = random.Random(seed), []
    for kind in KINDS:
        for number in range(each):
            before, written = None, 0
            for step, life in enumerate(lives(chance, kind)):
                if life != before or step - written >= 12:
                    names = ("ready", "acked", "delivered", "pub", "consumers")
                    values = dict(zip(names, life, strict=True))
                    rows.append(row("queue_interval", 5 * step, queue=f"{kind}/{number}", **values))
                    written = step
                before = life
    rows += [row("queue_interval", 5 * step, queue="clock", pub=step) for step in range(STEPS)]
    chance.shuffle(rows)
    return rows


def test_verdicts_of_eight_kinds_of_queues(data):
    """Of fifty queues of each kind at least 95 % have the verdict of their kind, and no more than 5 % of a verdict are wrong."""
    found = compute(data({"queue_interval": made()}))["queues"].collect()
    judged = [(KINDS[each["queue"].split("/")[0]], each["verdict"]) for each in found if "/" in each["queue"]]

    assert 400 == len(judged)
    for verdict in (OK, BEHIND, STALLED, STOPPED):
        right = sum(true == told == verdict for true, told in judged)
        assert right >= 0.95 * sum(true == verdict for true, _ in judged), verdict
        assert right >= 0.95 * sum(told == verdict for _, told in judged), verdict


def test_a_queue_that_is_gone_is_not_judged(data):
    """A queue without a row for longer than a minute was deleted; it has no verdict."""
    rows = [row("queue_interval", 5 * step, queue="stays", pub=step) for step in range(40)]
    rows += [row("queue_interval", 5 * step, queue="went", pub=step) for step in range(10)]

    assert ["stays"] == [
        each["queue"] for each in compute(data({"queue_interval": rows}))["queues"].collect()
    ]


def test_a_hot_queue_gets_many_times_what_others_get(data):
    """One of five queues with ten times the rate of the others is hot, and its share is told."""
    rows = [
        row("queue_interval", 5 * step, queue=f"q{queue}", pub=step * (1000 if queue == 0 else 100))
        for queue in range(5)
        for step in range(20)
    ]
    found = {each["queue"]: each for each in compute(data({"queue_interval": rows}))["queues"].collect()}

    assert ["q0"] == [name for name, each in found.items() if each["hot"]]
    assert abs(found["q0"]["share"] - 10 / 14) < 1e-9
    assert abs(found["q1"]["rate"] - 20) < 1e-9


def test_slow_consumers_are_told_by_their_capacity(data):
    """A backlog before consumers that are busy most of the time says so, whatever the verdict."""
    rows = [
        row(
            "queue_interval",
            5 * step,
            queue=name,
            ready=10,
            consumers=1,
            acked=step,
            delivered=step,
            capacity=capacity,
        )
        for name, capacity in (("slow", 0.1), ("fast", 0.9))
        for step in range(20)
    ]
    found = {
        each["queue"]: each["consumers_busy"]
        for each in compute(data({"queue_interval": rows}))["queues"].collect()
    }

    assert {"slow": True, "fast": False} == found


def test_the_report_counts_the_verdicts(data, tmp_path):
    """The page says how many queues have which fault, and lists them."""
    page = run(JOB, data({"queue_interval": made(each=2)}), tmp_path / "out" / "health", lambda _text: None)

    assert "4 of 17 queues: stopped." == page.facts[0]
    assert {STOPPED, STALLED, BEHIND} == {each["verdict"] for each in page.sections[0].rows}

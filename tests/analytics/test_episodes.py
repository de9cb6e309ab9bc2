import random

import pytest
from samples.made_rows import START, Made, quiet, row

from leveret.analytics.episodes import BEHIND, REPEATED, STALLED, THRASH, UNSERVED
from leveret.analytics.health import JOB, compute
from leveret.analytics.job import run

HOUR = 3600
INTERVAL = 10
FROM, UNTIL = 1200, 1620
"""Seven minutes, in seconds, in which something is wrong."""


def queue(name, *, came, took, consumers=1, held=0, **names):
    """Yield the rows of a queue, one each interval; rates in messages per second, all may be functions of the time."""

    def at(value, second):
        return value(second) if callable(value) else value

    ready, pub, given, unacked = 0, 0, 0, 0
    for second in range(0, HOUR + 1, INTERVAL):
        new = round(at(came, second) * INTERVAL) if second else 0
        ready, pub = ready + new, pub + new
        gone = min(ready, round(at(took, second) * INTERVAL))
        kept = min(ready - gone, at(held, second) - unacked) if at(held, second) > unacked else 0
        unacked += kept
        ready, given = ready - gone - kept, given + gone + kept
        yield row(
            "queue_interval",
            second,
            queue=name,
            ready=ready,
            unacked=unacked,
            consumers=at(consumers, second),
            pub=pub,
            delivered=given,
            capacity=1.0,
            **names,
        )


def wrong(second):
    return FROM < second <= UNTIL


def seconds(episode, name):
    return episode[name].timestamp() - START / 1000


def found(spark, rows, **more):
    return compute(Made(spark, {"queue_interval": rows, **more}))["episodes"].collect()


LOADS = random.Random(7).choices(range(5, 16), k=HOUR // INTERVAL + 2)
HARMLESS = {
    "burst": {"came": lambda second: 200 if second == FROM else 1, "took": 3},
    "noise": {
        "came": lambda second: LOADS[second // INTERVAL],
        "took": lambda second: LOADS[second // INTERVAL - 1],
    },
    "up and down": {"came": 10, "took": lambda second: 20 * (second // 40 % 2)},
    "batches": {"came": 10, "took": lambda second: 0 if second % 60 else 1000},
    "empty": {"came": 10, "took": 10},
    "idle": {"came": 0, "took": 0, "consumers": 0},
    "orders": {"came": 10, "took": 20},
}
TROUBLES = {
    "emails": {"came": 10, "took": lambda second: 4 if wrong(second) else 20},
    "reports": {
        "came": 1,
        "took": lambda second: 0 if wrong(second) else 5,
        "consumers": lambda second: 0 if wrong(second) else 2,
    },
    "hanging": {
        "came": 1,
        "took": lambda second: 0 if wrong(second) else 5,
        "held": lambda second: 5 if wrong(second) else 0,
    },
    "alone": {"came": 1, "took": 0, "consumers": 0},
}


@pytest.fixture(scope="module")
def hour(spark):
    """The episodes of queues of one hour that are alone in something, by queue; they are searched together."""
    rows = [each for name, life in (HARMLESS | TROUBLES).items() for each in queue(name, **life)]
    rows += [
        each | {"expired": at * INTERVAL, "dead_lettered": at * INTERVAL}
        for at, each in enumerate(queue("retry", came=1, took=0, consumers=0))
    ]
    rows += [
        made | {"t_from_delta": each * made["delivered"]}
        for each, name in ((5, "elastic"), (1, "steady"))
        for made in queue(name, came=10, took=10)
    ]
    names = {"name": "emails", "vhost": ""}
    worker, other = ({"user": user, "connection": f"10.0.0.{user[-1]}:4711"} for user in ("w1", "w2"))
    events = [
        row("event", 0, kind="consumer_added", **names, detail=worker),
        row("event", 100, kind="consumer_added", **names, detail=other),
        row("event", 900, kind="consumer_removed", **names, detail=other),
        row("event", 0, kind="consumer_added", vhost="", name="orders", detail=other),
    ]
    episodes = found(spark, rows, event=events)
    by_queue = {each["queue"]: each for each in episodes}
    assert len(episodes) == len(by_queue)  # none has two
    return by_queue


def test_seven_minutes_of_falling_behind_are_found_in_an_hour(hour):
    """Consumers that were slow for seven minutes have an episode: when, how long the backlog was, who consumed.

    What was worked off later is not hidden by the end of the range, at which all is well.
    """
    episode = hour["emails"]

    assert (BEHIND, 6 * (UNTIL - FROM)) == (episode["what"], episode["worst"])
    assert (FROM, UNTIL, UNTIL) == (
        seconds(episode, "start"),
        seconds(episode, "end"),
        seconds(episode, "worst_at"),
    )
    assert (1, 1, "w1 10.0.0.1:4711") == (episode["fewest"], episode["consumers"], episode["who"])


def test_consumers_that_hang_or_are_missing_have_episodes(hour):
    """Minutes without a consumer, and minutes in which consumers settle nothing, are told apart."""
    assert (UNSERVED, STALLED) == (hour["reports"]["what"], hour["hanging"]["what"])
    assert pytest.approx(7, abs=1.5) == hour["reports"]["minutes"]
    assert (420, 0, None) == tuple(hour["reports"][name] for name in ("worst", "fewest", "who"))


def test_what_is_no_trouble_has_no_episode(hour):
    """Bursts, fluctuations, batches every minute, retry queues and queues without messages are no episodes.

    The messages of a retry queue wait, expire and are dead-lettered; a queue whose messages only wait has an episode.
    """
    assert {*TROUBLES, "elastic"} == hour.keys()


def test_slow_growth_below_the_fluctuations_of_minutes_is_found(spark):
    """A backlog that grows by less in a minute than it fluctuates is found in quarters of an hour, as one episode."""
    rows = []
    for second in range(0, 4 * HOUR, 30):
        ready = 1000 + second // 10 + 100 * (second // 150 % 2)
        rows.append(
            row(
                "queue_interval",
                second,
                queue="leak",
                ready=ready,
                consumers=1,
                pub=10 * second,
                delivered=10 * second - ready + 1000,
            )
        )

    (episode,) = found(spark, rows)

    assert (BEHIND, True) == (episode["what"], episode["minutes"] > 180)
    assert 1000 + 4 * 360 - 100 < episode["worst"]


def test_an_episode_goes_on_across_a_restart(spark):
    """A queue without consumers, and a message that comes again and again, are one episode each, with exact times.

    The broker is away for a minute; the last consumer was seen, and the first redelivery was made, at `FROM`.
    """
    rows = [
        *queue("reports", came=1, took=lambda s: 5 * (s <= FROM), consumers=lambda s: int(s <= FROM)),
        *(
            made | {"redelivered": max(0, made["mono_us"] // 10**6 - FROM + INTERVAL) // 5}
            for made in queue("poisoned", came=1, took=5)
        ),
    ]
    for each in rows:
        each["boot_id"] = "after" if each["mono_us"] > UNTIL * 10**6 else "before"
    rows = [each for each in rows if not UNTIL < each["mono_us"] / 10**6 < UNTIL + 60]

    episodes = {each["queue"]: each for each in found(spark, rows)}

    assert {"reports": (UNSERVED, FROM, None), "poisoned": (REPEATED, FROM, None)} == {
        name: (each["what"], seconds(each, "start"), each["end"]) for name, each in episodes.items()
    }
    assert pytest.approx((HOUR - FROM) / 60) == episodes["reports"]["minutes"]


def test_messages_are_not_away_during_a_restart(spark):
    """Four minutes without consumers, with a restart in the second, are an episode: the backlog was never empty."""
    until, restarted = FROM + 240, FROM + 90
    rows = queue(
        "reports",
        came=1,
        took=lambda s: 0 if FROM < s <= until else 5,
        consumers=lambda s: int(not FROM < s <= until),
    )
    since = {"boot_id": "after", "since_ms": START + restarted * 1000}
    counted = {"pub": restarted, "delivered": FROM}  # by the run before
    rows = [
        each
        if each["mono_us"] <= restarted * 10**6
        else each | since | {name: each[name] - count for name, count in counted.items()}
        for each in rows
    ]

    (episode,) = found(spark, rows)

    assert (UNSERVED, FROM, 240) == (episode["what"], seconds(episode, "start"), episode["worst"])


def test_a_queue_that_reads_from_disk_more_than_it_delivers_thrashes(hour):
    """Five messages read back for each one delivered are a trouble with its time; one is none."""
    assert (THRASH, None) == (hour["elastic"]["what"], hour["elastic"]["end"])


def test_the_page_tells_the_episodes_and_publishers_that_wait(spark, tmp_path):
    """Facts name queue, time, worst backlog and publishes that wait; a chart shows the backlog."""
    rows = [
        made | {"mode": "consumer-ack", "promised": made["ready"]}
        for made in queue("orders", came=1, took=0, consumers=0)
    ]
    rows += queue("emails", **TROUBLES["emails"])

    page = run(JOB, Made(spark, {"queue_interval": rows}), tmp_path / "health", quiet)

    (slow,) = [
        fact for fact in page.facts if fact.startswith("The consumers of queue emails () are too slow: ")
    ]
    assert "from 2026-11-21 07:40:00 to 2026-11-21 07:47:00 " in slow
    assert slow.endswith("the backlog reached 2,520. It is recovering.")
    assert any(fact.endswith("3,600 waiting; 3,600 publishes wait for it.") for fact in page.facts)
    troubles = [(each["trouble"], each["level"], each["end"]) for each in page.sections[1].rows]
    assert ("Nobody reads queue orders ()", "Critical", None) in troubles
    assert page.sections[0].figure is not None


def test_a_range_in_which_nothing_happened_has_no_chart(spark, tmp_path):
    """Without messages the page says so, instead of drawing axes around nothing."""
    rows = [*queue("idle", came=0, took=0)]

    page = run(JOB, Made(spark, {"queue_interval": rows}), tmp_path / "health", quiet)

    assert (None, "Nothing was published, and no message waited.") == (
        page.sections[0].figure,
        page.sections[0].text,
    )
    assert all(section.figure is None for section in page.sections)
    assert page.facts[0].startswith("No queue fell behind")

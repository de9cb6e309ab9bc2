import json
import shutil
import signal
import time

import pytest
from processes.running import channel_to, serving
from samples.made_rows import START, Made, histogram, row

from leveret.analytics import anomalies, churn, follow, latency
from leveret.analytics.folding import LONGEST_MS, RECENT_MS, SPANS, fold
from leveret.analytics.follow import DONE, FOLLOWED, Follower, remove_replaced, stored
from leveret.analytics.locations import Remote
from leveret.analytics.reading import Input, InputError
from leveret.analytics.running import about
from leveret.analytics.schemas import tables
from leveret.analytics.series import clocks, last, steps
from leveret.broker.export.tables import TELEMETRY

HOURS = 9
EVERY = 60
END = HOURS * 3600


def folded(spark, name, rows):
    table = Made(spark, {name: rows}).table(name)
    return table, fold(table, tables()[name], START + END * 1000)


def queues():
    """Yield rows of two queues, one of them declared twice, over some hours."""
    for second in range(0, END + 1, EVERY):
        for queue, since in (("a", START), ("b", 1 if second < END // 2 else 2)):
            yield row(
                "queue_interval",
                second,
                queue=queue,
                since_ms=since,
                pub=second * 3,
                delivered=second * 2,
                area_ready=second * 1_000_000,
            )


def increases(rows):
    taken = steps(rows, "queue_interval", ("pub", "area_ready")).groupBy("queue")
    return sorted(map(tuple, taken.sum("d_pub", "d_area_ready", "step_us").collect()))


def test_folded_counters_have_the_same_increases_and_totals(spark):
    """Of old rows the last of each span is left, and the first of each queue: nothing that was counted is lost."""
    whole, less = folded(spark, "queue_interval", list(queues()))

    assert increases(whole) == increases(less)
    totals = [
        sorted(map(tuple, last(each, "queue_interval", ("queue",), ("pub",)).collect()))
        for each in (whole, less)
    ]
    assert totals[0] == totals[1]
    spans = (END * 1000 - SPANS[0][0]) // SPANS[1][1] + SPANS[0][0] // SPANS[0][1]
    assert less.count() <= 2 * (spans + 4) < whole.count()


def test_a_steady_rate_stays_what_it_was(spark):
    """Rates of folded rows are those of their spans, with the weight of all intervals: nothing looks like a burst."""
    rows = [
        row("queue_interval", second, queue="a", pub=second * 3)
        for second in (*range(0, END - 900, EVERY), *range(END - 900, END + 1, 5))
    ]
    _, less = folded(spark, "queue_interval", rows)
    clock = clocks(less)

    found = anomalies.rated(less, clock, is_folded=True)

    assert [5_000_000] == [each["interval_us"] for each in clock.collect()]
    assert [(3.0, END // 5)] == [
        (each["rate"], each["intervals"])
        for each in found.groupBy("pub").sum("intervals").toDF("rate", "intervals").collect()
    ]


def test_what_was_folded_can_be_folded_again(spark):
    """Folding rows of which some were folded before gives the same as folding all of them."""
    whole, less = folded(spark, "queue_interval", list(queues()))
    before = fold(whole.filter("mono_us <= 20000000000"), tables()["queue_interval"], START + 20_000_000)
    again = before.unionByName(whole.filter("mono_us > 20000000000"))

    once, twice = (
        sorted(map(tuple, each.select("queue", "since_ms", "ts", "pub").collect()))
        for each in (less, fold(again, tables()["queue_interval"], START + END * 1000))
    )

    assert once == twice


def test_folded_histograms_have_the_same_percentiles(spark):
    """Old histograms of a span are added up: counts, sums, extremes and percentiles are those of all samples."""
    rows = [
        row("latency_hist", second, scope="node", metric=metric, **histogram([second + 1, 7, 5000]))
        for second in range(0, END + 1, 300)
        for metric in ("confirm", "deliver")
    ]
    rows.append(row("latency_hist", 1, scope="node", metric="commit", scheme="ll5"))
    whole, less = folded(spark, "latency_hist", rows)

    expected, found = (
        latency.compute(Made(spark, {"latency_hist": each}))["by_mode"].collect() for each in (whole, less)
    )

    assert expected == found
    assert 1 == less.filter("metric = 'commit' and size(b) = 0").count()
    assert less.count() < whole.count()


def test_folded_events_are_counted(spark):
    """Old connections and failed logins of a client are one event that says how many it stands for."""
    rows = [
        row(
            "event",
            second,
            kind=kind,
            name=name,
            detail={"peer": "10.0.0.1"} | ({"user": "me"} if name == "c" else {}),
        )
        for second in range(0, END + 1, 30)
        for kind, name in (("connection_opened", "c"), ("connection_closed", "c"), ("auth_failed", "root"))
    ]
    rows.append(row("event", 0, kind="start", name="0.2.0"))
    whole, less = folded(spark, "event", rows)

    for name, columns in (
        ("failures", ("peer", "user", "failed")),
        ("clients", ("peer", "user", "opened", "closed")),
    ):
        expected, found = (
            churn.compute(Made(spark, {"event": each}))[name].select(*columns).collect()
            for each in (whole, less)
        )
        assert expected == found
    assert (1, True) == (less.filter("kind = 'start'").count(), less.count() < whole.count() / 2)


def add(folder, number, rows):
    """Add one more closed file of histograms."""
    place = folder / "latency_hist" / "dt=2026-11-21" / "hour=07"
    place.mkdir(parents=True, exist_ok=True)
    lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
    (place / f"latency_hist-{number}-0.jsonl").write_text("".join(f"{line}\n" for line in lines))


def sample(number):
    """Return a histogram of one sample: every second one an hour after the others."""
    return row(
        "latency_hist",
        3600 * (number % 2) + number,
        scope="node",
        metric="confirm",
        **histogram([number + 1]),
    )


def samples(data):
    return data.table("latency_hist").agg({"count": "sum"}).collect()[0][0]


def test_rounds_fold_what_came_before(spark, tmp_path):
    """After some batches one directory has all rows, old ones folded; each is counted once, and so are bad lines."""
    source, output = tmp_path / "in", tmp_path / "out"
    rows = output / FOLLOWED / "rows" / "latency_hist"
    follower = Follower(spark, source, output, batches=3)
    for number in range(7):
        add(source, number, [sample(number), "bad"])
        data = follower.catch_up(["latency_hist"])
        assert number + 1 == samples(data)
        assert (number + 1, number + 1) == (
            data.counted["latency_hist"].rows,
            sum(data.counted["latency_hist"].aside.values()),
        )

    assert ["batch=6", "folded-5-6"] == sorted(path.name for path in rows.iterdir())
    assert data.seen["latency_hist"].rows < 7
    assert about(data, ["latency_hist"])[-1].startswith(
        "Rows: latency_hist 7, those older than ten minutes folded to"
    )


@pytest.fixture
def killed(spark, tmp_path):
    """A directory in which three batches were folded, and one more was read; with copies of what was removed."""
    source, output = tmp_path / "in", tmp_path / "out"
    follower = Follower(spark, source, output, batches=100)
    for number in range(4):
        add(source, number, [sample(number)])
        if number == 3:
            rows = output / FOLLOWED / "rows" / "latency_hist"
            shutil.copytree(rows, tmp_path / "copy")
            follower = Follower(spark, source, output, batches=3)
        follower.catch_up(["latency_hist"])
    return source, output, tmp_path / "copy"


def test_a_kill_before_old_batches_were_removed_counts_no_row_twice(spark, killed):
    """Batches that were folded and are still there do not count, and are removed by the next round."""
    source, output, copy = killed
    rows = output / FOLLOWED / "rows" / "latency_hist"
    for path in copy.iterdir():
        shutil.copytree(path, rows / path.name)

    assert 4 == samples(Follower(spark, source, output).catch_up(["latency_hist"]))
    assert 1 == len(stored(rows).folders) == len(list(rows.iterdir()))


def test_a_kill_while_folding_loses_no_row(spark, killed):
    """A folded directory that was not finished does not count, and is removed; its batches are still there."""
    _source, output, copy = killed
    rows = output / FOLLOWED / "rows" / "latency_hist"
    (unfinished,) = rows.iterdir()
    (unfinished / DONE).unlink()
    for path in copy.iterdir():
        shutil.copytree(path, rows / path.name)
    remove_replaced(rows)

    assert 3 == sum(len(list(path.glob("*.parquet"))) for path in stored(rows).folders)
    assert not unfinished.exists()


def test_a_kill_before_a_batch_was_recorded_counts_no_row_twice(spark, tmp_path):
    """A batch whose end the stream has not recorded is read again, in place of what it had written."""
    source, output = tmp_path / "in", tmp_path / "out"
    add(source, 0, [sample(0), "bad"])
    Follower(spark, source, output).catch_up(["latency_hist"])
    for path in (output / FOLLOWED / "checkpoints" / "latency_hist" / "commits").glob("*0*"):
        path.unlink()

    data = Follower(spark, source, output).catch_up(["latency_hist"])

    assert (1, 1) == (samples(data), sum(data.counted["latency_hist"].aside.values()))


def caught_up(follower, names):
    """Return all rows so far, in the next round if the machine is busy."""
    while True:
        try:
            return follower.catch_up(names)
        except InputError as error:
            if follow.SLOW != str(error):
                raise


def test_a_broker_on_another_machine_is_followed_by_its_stream(spark, tmp_path):
    """Its rows are the first ones of the broker's files, each once over two rounds; without a broker it says why."""
    names = ("queue_interval", "event")
    settings = {"export.dir": tmp_path / "in", "export.stream_vhost": "/", "export.interval": "1s"}
    with serving(tmp_path, settings=settings) as running:
        host, port = running.address
        follower = Follower(spark, Remote(f"amqp://guest:guest@{host}:{port}/"), tmp_path / "out", batches=2)
        for queue, wanted in (("first", names[:1]), ("second", names)):
            with channel_to(running.address) as channel:
                channel.queue_declare(queue)
            end = time.monotonic() + 60
            while not any(queue in path.read_text() for path in tmp_path.glob("in/queue_interval/*/*/*/.q*")):
                assert time.monotonic() < end
            found = caught_up(follower, wanted)
        running.stopped_by(signal.SIGTERM)
    written = Input(spark, tmp_path / "in", tmp_path / "files")

    for name in names:
        rows, of_files = (each.table(name).sort("mono_us").collect() for each in (found, written))
        assert rows == of_files[: len(rows)]
        assert not found.counted[name].aside
    assert "second" in {row["name"] for row in rows if row["kind"] == "queue_created"}
    with pytest.raises(InputError, match="Connection refused"):
        follower.catch_up(names)
    assert TELEMETRY == follow.TELEMETRY


def test_spans_grow_with_age():
    """The rows that jobs read are bounded: each is kept for minutes, then spans grow, each by whole spans."""
    assert RECENT_MS < SPANS[0][0] < SPANS[1][0]
    assert 0 == SPANS[1][1] % SPANS[0][1] == LONGEST_MS % SPANS[1][1]

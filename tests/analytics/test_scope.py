from samples.made_rows import START, Made, histogram, row

from leveret.analytics import latency
from leveret.analytics.reading import Input, Seen, condition_of, hours_of
from leveret.analytics.running import about
from leveret.analytics.schemas import tables
from leveret.analytics.scope import Scope

MINUTE = 60_000
MINUTES = (0, 60, 120)


def test_rows_are_those_of_the_range_the_virtual_host_and_the_queue(data):
    """Each table is reduced by what its rows have; the page says what was asked for, the nodes and the rows."""
    made = data(
        {
            "queue_interval": [
                *(
                    row("queue_interval", seconds, vhost=vhost, queue=queue)
                    for seconds in MINUTES
                    for vhost in ("/", "shop")
                    for queue in ("a", "b")
                ),
                "{",
            ],
            "node_interval": [row("node_interval", seconds) for seconds in MINUTES],
            "event": [row("event", kind="start", name="0.2.0")],
        }
    )
    scope = Scope(START + MINUTE, START + MINUTE, "shop", "a")

    part = Input(made.spark, made.directory, made.output, scope=scope)

    assert [("shop", "a", 60_000_000)] == [
        (each["vhost"], each["queue"], each["mono_us"]) for each in part.table("queue_interval").collect()
    ]
    assert 1 == part.table("node_interval").count()
    assert [
        "Node: here (Leveret 0.2.0)",
        "Range: 2026-11-21 07:21:00 to 2026-11-21 07:21:00 UTC",
        "Only: since 2026-11-21 07:21:00, until 2026-11-21 07:21:00, virtual host shop, queue a",
        "Rows: queue_interval 1, node_interval 1",
    ] == about(part, ["queue_interval", "node_interval", "event"])
    assert (12, 12) == (made.table("queue_interval").count(), made.seen["queue_interval"].rows)
    assert 12 == part.counted["queue_interval"].rows


def test_a_range_without_rows_is_said_to_have_none(data):
    """For a range without rows, a page names no node and no range, but the number of rows."""
    made = data({"node_interval": [row("node_interval", seconds) for seconds in MINUTES]})
    part = Input(made.spark, made.directory, made.output, scope=Scope(since_ms=START + 10 * MINUTE))

    assert 0 == part.table("node_interval").count()
    assert Seen(0) == part.seen["node_interval"]
    assert ["Only: since 2026-11-21 07:30:00", "Rows: node_interval 0"] == about(part, ["node_interval"])


def test_hours_out_of_the_range_are_not_read(spark):
    """A directory counts if it is of an hour of the range, or of one beside it, in which rows are written, too."""
    hours = spark.sql(
        "select '2026-11-21' as dt, hour from values ('05'), ('06'), ('07'), ('08'), ('09') as each(hour)"
    )
    scope = Scope(START, START + MINUTE)  # 07:20 and 07:21

    assert ["06", "07", "08"] == [row["hour"] for row in hours.filter(hours_of(scope)).collect()]


def test_parquet_by_hours_is_limited_too(data, tmp_path):
    """The range counts for compacted tables as it does for exported ones."""
    made = data({"node_interval": [row("node_interval", seconds) for seconds in (*MINUTES, 3 * 3600)]})
    kept = tmp_path / "kept"
    made.placed("node_interval").write.partitionBy("dt", "hour").parquet(str(kept / "node_interval"))

    part = Input(made.spark, kept, made.output, scope=Scope(START + MINUTE, START + 2 * MINUTE))

    assert 2 == part.table("node_interval").count() == part.seen["node_interval"].rows


def test_the_latency_of_a_queue_is_that_of_its_own_samples(spark):
    """For one queue its histograms take the place of the node's."""
    rows = [
        row("latency_hist", scope="node", metric="deliver", **histogram([1000])),
        row("latency_hist", scope="queue", vhost="/", name="a", metric="deliver", **histogram([10])),
        row("latency_hist", scope="queue", vhost="/", name="b", metric="deliver", **histogram([20])),
    ]
    made = Made(spark, {"latency_hist": rows})
    made.scope = Scope(queue="a")
    table = made.table("latency_hist").filter(condition_of(made.scope, tables()["latency_hist"]))
    made.table = lambda _name: table

    (found,) = latency.compute(made)["by_mode"].collect()

    assert (1, 10) == (found["count"], found["max_us"])

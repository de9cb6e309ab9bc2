import pytest
from samples.made_rows import START, Made, row

from leveret.analytics.series import AREA_MODULUS, clocks, forget_views, last, query, start_of_bin, steps


@pytest.fixture(scope="module")
def rows(spark):
    """Rows of queues through a change of mode, a deletion, a clock that is set back, and a restart."""
    made = [
        row("queue_interval", 0, queue="a", mode="standard", pub=5, area_ready=AREA_MODULUS - 10),
        row("queue_interval", 5, queue="b", pub=1),
        row("queue_interval", 10, queue="a", mode="standard", pub=7, area_ready=7),
        row("queue_interval", 60, queue="a", mode="consumer-ack", pub=25) | {"ts": START},
        row("queue_interval", 70, queue="a", since_ms=1, pub=2),
        row("queue_interval", 80, queue="a", boot_id="later", pub=3),
    ]
    # twice, as if a file had been copied
    return Made(spark, {"queue_interval": made[::-1] + made}).table("queue_interval")


def test_steps_are_differences_of_the_same_object(rows):
    """Differences are taken between rows of one queue in one boot; another boot or another making starts again."""
    taken = steps(rows, "queue_interval", ["pub", "area_ready"]).orderBy("mono_us").collect()

    assert [("a", 10_000_000, 2), ("a", 50_000_000, 18)] == [
        (found["queue"], found["step_us"], found["d_pub"]) for found in taken
    ]
    assert 17 == taken[0]["d_area_ready"]  # it went over its modulus


def test_an_object_that_has_just_begun_began_at_nothing(spark):
    """The first row of a queue that was made just before is a step from 0; of one that is older nothing is known."""
    made = [
        row("queue_interval", 4, queue="new", since_ms=START + 1000, pub=9, area_ready=7, ready=2),
        row("queue_interval", 4, queue="old", since_ms=START - 3_600_000, pub=900),
        row("queue_interval", 4, queue="unknown", pub=900),
    ]
    table = Made(spark, {"queue_interval": made}).table("queue_interval")

    found = steps(table, "queue_interval", ["pub", "area_ready", "ready"]).collect()

    assert [("new", 3_000_000, START + 1000, 9, 7, None)] == [
        tuple(each[name] for name in ("queue", "step_us", "from_ts", "d_pub", "d_area_ready", "d_ready"))
        for each in found
    ]


def test_a_step_is_as_long_as_the_clock_says_that_is_never_set(rows):
    """A step across a wall clock that was set back ends at its timestamp and keeps its monotonic length."""
    taken = steps(rows, "queue_interval", ["pub"]).orderBy("mono_us").collect()

    assert [10_000, 50_000] == [found["ts"] - found["from_ts"] for found in taken]
    assert START == taken[1]["ts"]


def test_all_that_happened_is_the_last_of_each_object(rows):
    """Totals add up the last values of each boot and making, once, under what the object was at last."""
    whole = last(rows, "queue_interval", ["node"], ["pub"]).collect()
    modes = last(rows, "queue_interval", ["mode"], ["pub"]).collect()

    assert [("here", 25 + 1 + 2 + 3)] == [(found["node"], found["pub"]) for found in whole]
    assert {"consumer-ack": 25, "": 6} == {found["mode"]: found["pub"] for found in modes}


def test_the_clock_of_a_boot_is_the_usual_distance_of_its_rows(spark):
    """Each boot has its interval and its end; one with a single row has the broker's own interval; one is the last."""
    made = [row("node_interval", second) for second in (0, 10, 20, 35)]
    made.append(row("node_interval", 900, boot_id="later") | {"mono_us": 7})
    changed = [row("queue_interval", 21), row("queue_interval", 20)]
    tables = Made(spark, {"node_interval": made, "queue_interval": changed})

    found = clocks(tables.table("node_interval"), tables.table("queue_interval")).collect()

    assert {("boot", 10_000_000, 35_000_000, False), ("later", 5_000_000, 7, True)} == {
        (each["boot_id"], each["interval_us"], each["until_us"], each["is_last"]) for each in found
    }


def test_bins_begin_at_whole_multiples(spark):
    """A time belongs to the bin that began last before it."""
    (found,) = spark.range(1).selectExpr(start_of_bin("1000123456L", 60)).collect()

    assert 1_000_080_000 == found[0]


def test_a_table_has_one_view_until_it_is_forgotten(spark):
    """Queries of a table share a view of it; a table that is used after all were forgotten has a new one."""
    forget_views(spark)
    table = spark.range(3)

    twice = [query("SELECT id + 1 AS id FROM {table}", table=table) for _ in range(2)]
    views = spark.sql("SHOW VIEWS").count()
    forget_views(spark)

    assert 1 == views
    assert 0 == spark.sql("SHOW VIEWS").count()
    assert [1, 2, 3] == [row["id"] for row in query("SELECT * FROM {table}", table=twice[1]).collect()]
    assert 3 == query("SELECT * FROM {table}", table=table).count()

from made_rows import row
from pyspark.sql import functions

from analytics.series import AREA_MODULUS, last, start_of_bin, steps


def test_steps_are_differences_of_the_same_object(data):
    """Differences are taken between rows of one queue in one boot; another boot or another making starts anew."""
    rows = [
        row("queue_interval", 0, queue="a", pub=5),
        row("queue_interval", 60, queue="a", pub=25),
        row("queue_interval", 5, queue="b", pub=1),
        row("queue_interval", 10, queue="a", pub=7),
        row("queue_interval", 70, queue="a", since_ms=1, pub=2),
        row("queue_interval", 80, queue="a", boot_id="later", pub=3),
    ]
    taken = steps(data({"queue_interval": rows}).table("queue_interval"), "queue_interval", ["pub"])

    assert [("a", 10_000_000, 2), ("a", 50_000_000, 18)] == sorted(
        (found["queue"], found["step_us"], found["d_pub"]) for found in taken.collect()
    )


def test_an_area_may_begin_again_at_its_modulus(data):
    """An area that went over its modulus has grown by what is left of it and what came after."""
    rows = [
        row("queue_interval", 0, area_ready=AREA_MODULUS - 10),
        row("queue_interval", 5, area_ready=7),
    ]
    (found,) = steps(
        data({"queue_interval": rows}).table("queue_interval"), "queue_interval", ["area_ready"]
    ).collect()

    assert 17 == found["d_area_ready"]


def test_all_that_happened_is_the_last_of_each_object(data):
    """Totals add up the last values of each boot and making, whatever was before."""
    rows = [
        row("queue_interval", 0, queue="a", pub=5),
        row("queue_interval", 5, queue="a", pub=9),
        row("queue_interval", 9, queue="a", since_ms=1, pub=2),
        row("queue_interval", 9, queue="a", boot_id="later", pub=100),
    ]
    (found,) = last(
        data({"queue_interval": rows}).table("queue_interval"), "queue_interval", ["node"], ["pub"]
    ).collect()

    assert ("here", 111) == (found["node"], found["pub"])


def test_bins_begin_at_whole_multiples(spark):
    """A time belongs to the bin that began last before it."""
    (found,) = (
        spark.createDataFrame([(1_000_123_456,)], "ts long")
        .select(start_of_bin(functions.col("ts"), 60))
        .collect()
    )

    assert 1_000_080_000 == found[0]

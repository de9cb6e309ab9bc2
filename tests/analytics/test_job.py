import pytest
from pyarrow.dataset import field

from leveret.analytics.job import Written, number_of
from leveret.analytics.writing import write_all


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ("0 queues", (0, "queue")),
        ("1 queue", (1, "queue")),
        ("1,200 queues", (1200, "queue")),
        ("1 queue is hot", (1, "queue is hot", "queues are hot")),
        ("0 addresses", (0, "address", "addresses")),
    ],
)
def test_words_go_with_their_number(expected, words):
    """One is singular, any other number is not, and its thousands are apart."""
    assert expected == number_of(*words)


def jobs_so_far(spark):
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()


ROWS = """
    select * from values (1, 'b', 2.5D, timestamp'2026-11-21 07:20:05'), (2, 'a', null, timestamp'2026-11-21 07:20:00'),
    (3, 'a', 2.5D, null) as rows(id, name, rate, at) order by id
"""


@pytest.mark.parametrize("small", [True, False])
def test_pages_read_what_was_written_without_spark(spark, tmp_path, small):
    """Whoever writes a table, Spark or this process, it has the same rows, and pages ask Spark nothing."""
    made = write_all({tmp_path / "table": spark.sql(ROWS)}, small=small)
    before = jobs_so_far(spark)
    written = Written({"table": made[0]})

    assert (True, False) == (written.has("table"), written.has("other"))
    assert (3, 2) == (written.count("table"), written.count("table", field("name") == "a"))
    assert [2.5, None, 2.5] == written.column("table", "rate")
    assert [1, 3, 2] == [row["id"] for row in written.rows("table", "-rate", "id")]
    assert [2, 3, 1] == [row["id"] for row in written.rows("table", "rate", "-id")]
    assert [3, 2, 1] == [row["id"] for row in written.rows("table", lambda row: -row["id"] % 3, "name")]
    assert ["2026-11-21 07:20:00"] == [
        row["at"] for row in written.rows("table", "-at", where=field("name") == "a", most=1)
    ]
    assert before == jobs_so_far(spark)
    assert [(1, "b", 2.5), (2, "a", None), (3, "a", 2.5)] == [
        tuple(row)[:3] for row in spark.read.parquet(str(tmp_path / "table")).collect()
    ]


@pytest.mark.parametrize("small", [True, False])
def test_a_table_takes_the_place_of_the_one_before(spark, tmp_path, small):
    """Files of an earlier run are removed, and an empty table still has its columns."""
    spark.range(4).repartition(2).write.parquet(str(tmp_path / "table"))

    write_all({tmp_path / "table": spark.sql(ROWS).filter("id > 3")}, small=small)

    found = spark.read.parquet(str(tmp_path / "table"))
    assert (0, ["id", "name", "rate", "at"]) == (found.count(), found.columns)
    assert ["table"] == [path.name for path in tmp_path.iterdir()]

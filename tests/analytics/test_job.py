import pytest

from leveret.analytics.job import Written, number_of


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
    """Number of jobs that Spark has started."""
    return spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs()


def test_a_page_reads_its_tables_without_looking_for_their_columns(spark, tmp_path):
    """The columns of a table just written are known: Spark runs no job before the first query."""
    made = spark.range(3).selectExpr("id", "cast(id as string) as name")
    made.write.parquet(str(tmp_path / "table"))
    written = Written(spark, tmp_path, {"table": made.schema})
    before = jobs_so_far(spark)

    table = written.table("table")

    assert before == jobs_so_far(spark)
    assert [(0, "0"), (1, "1"), (2, "2")] == sorted(map(tuple, table.collect()))
    assert before < jobs_so_far(spark)
    assert written.table("table") is table

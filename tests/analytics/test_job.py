import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from leveret.analytics.job import Written, number_of
from leveret.analytics.reading import Input
from leveret.analytics.running import _computed

WAITING = 30


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


def test_jobs_that_are_computed_at_once_have_their_pages_in_order():
    """Two jobs run at the same time, and the page of the first one comes first, even if it is ready last."""
    both, second = threading.Barrier(2), threading.Event()

    def compute(name):
        both.wait(WAITING)
        if name == "a":
            assert second.wait(WAITING)
        else:
            second.set()
        return name

    assert ["a", "b"] == list(_computed(compute, ["a", "b"], 2))


def test_what_jobs_share_is_made_once(tmp_path):
    """If two jobs ask at the same time for rows that are shared, one makes them and the other waits for that."""
    data, made, asked = Input(None, tmp_path, tmp_path), [], threading.Barrier(2)
    data.keep = lambda rows: rows

    def ask():
        asked.wait(WAITING)
        return data.shared("rows", lambda: made.append(1) or "rows")

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(ask) for _ in range(2)]
        assert ["rows", "rows"] == [each.result() for each in found]
    assert [1] == made

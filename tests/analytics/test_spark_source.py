"""`leveret.spark` in a real Spark: few queries, because each takes seconds; `tests/spark` has all else."""

import collections
import json
import time

import pytest
from processes.running import ROOT
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F
from spark.test_readers import DEDUPLICATED, declared, numbers, published, stream_of, taken

from leveret import Broker
from leveret.spark import LeveretDataSource

NOTEBOOK = ROOT / "docs" / "howto" / "spark-streaming.ipynb"
SECONDS = 120
SLOW = "Python worker failed to connect back"
"""Spark's error when a process of Python takes ten seconds to start: on a busy machine it does."""
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def source(spark):
    spark.dataSource.register(LeveretDataSource)
    return spark


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(data_dir=tmp_path_factory.mktemp("broker")) as running:
        yield running


def written(frame, folder, url, queue):
    return frame.writeStream.format("leveret").options(uri=url, queue=queue, checkpointLocation=str(folder))


def finished(writer):
    """Run a query over what there is."""
    while True:
        try:
            assert writer.trigger(availableNow=True).start().awaitTermination(SECONDS)
        except StreamingQueryException as error:
            if SLOW not in str(error):
                raise
        else:
            return


def test_a_query_that_fails_leaves_its_messages_in_the_queue(source, broker, tmp_path):
    """The next run has them again; with their own ids each is in the deduplicated queue once, in batches of the limit."""
    queue, out = declared(broker.url), declared(broker.url, DEDUPLICATED)
    for number in range(60):
        published(broker.url, queue, numbers(1, number), message_id=str(number))
    frame = (
        source.readStream.format("leveret")
        .options(uri=broker.url, queue=queue, maxOffsetsPerTrigger=25)
        .load()
    )
    rows = frame.select("body", F.col("properties.message_id").alias("message_id"))
    bad = rows.withColumn("body", F.when(F.col("message_id") != "33", F.col("body")))

    with pytest.raises(StreamingQueryException, match="column body of a row is null"):
        finished(written(bad, tmp_path, broker.url, out))
    finished(written(rows, tmp_path, broker.url, out))

    assert collections.Counter(numbers(60)) == taken(broker.url, out)
    assert not taken(broker.url, queue)
    assert 3 <= len(list((tmp_path / "commits").glob("[0-9]*")))


def test_a_plan_does_not_show_the_password(source, capsys):
    """Spark shows the options of a stream with its plan; that of the password is not among them as it is."""
    options = {"uri": "amqp://user@127.0.0.1/", "password": "hunter2", "stream": "s"}
    source.readStream.format("leveret").options(**options).load().explain(True)

    shown = capsys.readouterr().out
    assert "amqp://user@" in shown
    assert "hunter2" not in shown


def test_a_data_frame_is_published(source, broker):
    """Rows are messages, and an error of the sink is the error of the job."""
    out = declared(broker.url)
    frame = source.range(30).select(F.col("id").cast("string").alias("body"), F.lit("k").alias("key"))
    writer = frame.write.format("leveret").mode("append").option("uri", broker.url)

    writer.option("queue", out).save()
    with pytest.raises(Exception, match="queue and exchange exclude each other"):
        writer.option("exchange", "amq.direct").save()

    assert collections.Counter(numbers(30)) == taken(broker.url, out)


def test_a_query_goes_on_where_its_checkpoint_is(source, broker, tmp_path):
    """Stopped in a batch and started again, a query has published each message of the stream once."""
    out = declared(broker.url, DEDUPLICATED)
    stream = stream_of(broker.url, numbers(200))
    options = {"uri": broker.url, "stream": stream, "startingOffset": "earliest"}
    frame = source.readStream.format("leveret").options(
        **options, maxOffsetsPerTrigger=40, offsetsPerPartition=20
    )
    rows = frame.load().select("body")

    query = written(rows, tmp_path, broker.url, out).start()
    end = time.monotonic() + SECONDS
    while not (tmp_path / "offsets" / "1").exists():
        if (error := query.exception()) is not None:
            assert SLOW in str(error)
            query = written(rows, tmp_path, broker.url, out).start()
        assert time.monotonic() < end
        time.sleep(0.02)
    query.stop()
    published(broker.url, stream, numbers(100, 200))
    finished(written(rows, tmp_path, broker.url, out))

    assert collections.Counter(numbers(300)) == taken(broker.url, out)
    assert 8 == len(list((tmp_path / "commits").glob("[0-9]*")))
    batch = source.read.format("leveret").options(**options, offsetsPerPartition=150).load()
    assert (300, 2, 299) == (
        batch.count(),
        batch.rdd.getNumPartitions(),
        batch.agg(F.max("offset")).first()[0],
    )


def test_the_notebook_runs(source, broker, monkeypatch):
    """Its cells, in a row, find the orders that they have published, by shop and by minute; it is kept without outputs."""
    del source
    monkeypatch.setenv("LEVERET_NOTEBOOK_URI", broker.url)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    programs = [cell for cell in cells if cell["cell_type"] == "code"]
    space: dict[str, object] = {}
    for number, cell in enumerate(programs):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), space)

    assert all(cell["outputs"] == [] for cell in programs)
    assert [("a", 900), ("b", 900), ("c", 900)] == list(space["revenue"].itertuples(index=False, name=None))
    minutes = space["minutes"]
    assert (30, 2700, 90) == (len(minutes), minutes["euros"].sum(), minutes["euros"].max())

"""Readers and writers of the Spark source as Spark calls them, with real brokers and without Spark's Java."""

import collections
import contextlib
import os
import threading
import time
import types
import uuid
from pathlib import Path

import pika
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkNotImplementedError
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, BinaryType, DateType, MapType, StringType, StructField, StructType

from bench import brokers
from leveret import Broker
from leveret.broker.client.errors import RefusedError, ReplyError, UnreachableError
from leveret.spark import LeveretDataSource, sink
from leveret.spark.connection import NotTakenError
from leveret.spark.messages import NotAStreamError
from leveret.spark.options import OptionError
from leveret.spark.source import DataLossError, ReadMaxRows

BODY = StructType([StructField("body", BinaryType())])
DEDUPLICATED = {"x-deduplicate": "message_id", "x-deduplicate-for": 86_400_000}
STREAM = {"x-queue-type": "stream"}
SECONDS = 20


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with Broker(data_dir=tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module", params=["leveret", "rabbitmq-4.3"])
def streams(request, broker):
    """The URL of a broker with streams."""
    if request.param == "leveret":
        yield broker.url
        return
    if not Path(brokers.PEER_ROOT, brokers.SERVER[1:]).is_symlink() or os.geteuid():
        pytest.skip("needs root and make peer-4.3")
    with brokers.running([request.param]) as running:
        yield f"amqp://guest:guest@127.0.0.1:{running[request.param].port}/%2F"


@pytest.fixture(autouse=True)
def _in_a_task(monkeypatch):
    """Writers find the task of a micro-batch."""
    local = {"sql.streaming.queryId": "query", "streaming.sql.batchId": "7"}
    task = types.SimpleNamespace(getLocalProperty=local.get, partitionId=lambda: 3)
    monkeypatch.setattr(TaskContext, "get", classmethod(lambda _cls: task))


@contextlib.contextmanager
def channel(url):
    with contextlib.closing(pika.BlockingConnection(pika.URLParameters(url))) as connection:
        opened = connection.channel()
        opened.confirm_delivery()
        yield opened


def declared(url, arguments=None):
    """Return the name of a new durable queue."""
    name = uuid.uuid4().hex
    with channel(url) as on:
        on.queue_declare(name, durable=True, arguments=arguments)
    return name


def numbers(count, first=0):
    return [b"%d" % number for number in range(first, first + count)]


def published(url, queue, bodies, **properties):
    with channel(url) as on:
        for body in bodies:
            on.basic_publish("", queue, body, pika.BasicProperties(delivery_mode=2, **properties))


def stream_of(url, bodies, **properties):
    """Return the name of a new stream with these bodies."""
    name = declared(url, STREAM)
    published(url, name, bodies, **properties)
    return name


def taken(url, queue):
    """Take all messages of a queue; return them by body."""
    found = collections.Counter()
    with channel(url) as on:
        while (got := on.basic_get(queue, auto_ack=True))[0] is not None:
            found[got[2]] += 1
    return found


def source(url, **options):
    return LeveretDataSource(
        {"uri": url, "timeout": "20", **{name: str(each) for name, each in options.items()}}
    )


def bodies_of(reader, partitions):
    return [row["body"] for each in partitions for batch in reader.read(each) for row in batch.to_pylist()]


# -- streams --------------------------------------------------------------------------------------------------------


def test_a_range_of_a_stream_is_read_in_partitions(streams):
    """All of a stream, some offsets, and what is after a time; each partition has its share of the offsets."""
    stream = stream_of(streams, numbers(100))

    def read(**options):
        reader = source(streams, stream=stream, **options).reader(BODY)
        return [bodies_of(reader, [each]) for each in reader.partitions()]

    assert [numbers(30), numbers(30, 30), numbers(30, 60), numbers(10, 90)] == read(offsetsPerPartition=30)
    assert [numbers(5, 40)] == read(startingOffset=40, endingOffset=45)
    assert [numbers(100)] == read(startingTimestamp="2026-01-01", endingOffset=1000)
    assert [[]] == read(startingOffset="latest")
    assert [[]] == read(endingTimestamp="2026-01-01")


def test_each_key_of_a_stream_is_in_one_partition(streams):
    """With partitions by key each one has all messages of its routing keys, in their order, and no others."""
    stream = declared(streams, STREAM)
    with channel(streams) as on:
        on.queue_bind(stream, "amq.topic", "key.#")
        for number in range(200):
            on.basic_publish("amq.topic", f"key.{number % 10}", b"%d" % number, pika.BasicProperties())
    reader = source(streams, stream=stream, keyPartitions=3).reader(BODY)
    found = [[int(body) for body in bodies_of(reader, [each])] for each in reader.partitions()]

    assert [3, 200, set(range(200))] == [len(found), sum(map(len, found)), {*found[0], *found[1], *found[2]}]
    assert 10 == sum(len({number % 10 for number in each}) for each in found)
    assert all(each and each == sorted(each) for each in found)


def test_a_stream_without_messages_has_no_rows(streams):
    """Reading an empty stream ends at once."""
    reader = source(streams, stream=declared(streams, STREAM)).reader(BODY)

    assert [] == bodies_of(reader, reader.partitions())


def test_a_micro_batch_has_the_limit_that_spark_asks_for(streams):
    """A new query begins at the end, or where it is told; a batch ends at the limit, and the last one at the end."""
    stream = stream_of(streams, numbers(25))
    reader = source(streams, stream=stream, maxOffsetsPerTrigger=10).streamReader(BODY)
    earliest = source(streams, stream=stream, startingOffset="earliest").streamReader(BODY)

    assert ({"offset": 25}, {"offset": 0}) == (reader.initialOffset(), earliest.initialOffset())
    limit = reader.getDefaultReadLimit()
    assert ReadMaxRows(10) == limit
    assert {"offset": 10} == reader.latestOffset({"offset": 0}, limit)
    assert {"offset": 25} == reader.latestOffset({"offset": 20}, limit) == earliest.latestOffset()
    assert numbers(10, 10) == bodies_of(reader, reader.partitions({"offset": 10}, {"offset": 20}))
    assert [] == reader.partitions({"offset": 25}, {"offset": 25})
    reader.prepareForTriggerAvailableNow()
    published(streams, stream, numbers(5))
    assert {"offset": 25} == reader.latestOffset({"offset": 20}, limit)
    assert {"offset": 30} == reader.reportLatestOffset() == reader.reportLatestOffset()
    reader.stop()
    earliest.stop()


@pytest.mark.parametrize("is_once", [False, True])
def test_a_stream_that_was_declared_again_is_a_loss(broker, is_once):
    """Its offsets begin again: that is an error, or with failOnDataLoss=false all of it is read."""
    stream = stream_of(broker.url, numbers(5))
    strict = source(broker.url, stream=stream).streamReader(BODY)
    lax = source(broker.url, stream=stream, failOnDataLoss=False).streamReader(BODY)
    assert {"offset": 5} == strict.latestOffset({"offset": 0}) == lax.latestOffset({"offset": 5})
    with channel(broker.url) as on:
        on.queue_delete(stream)
        on.queue_declare(stream, durable=True, arguments=STREAM)
    published(broker.url, stream, numbers(2, 7))
    for reader in (strict, lax) if is_once else ():
        reader.prepareForTriggerAvailableNow()

    with pytest.raises(DataLossError, match="ends at offset 2, but 5 was reached before"):
        strict.latestOffset({"offset": 5})
    assert {"offset": 2} == lax.latestOffset({"offset": 5})
    assert numbers(2, 7) == bodies_of(lax, lax.partitions({"offset": 5}, {"offset": 2}))
    for reader in (strict, lax):
        reader.stop()


def test_the_end_of_a_stream_is_found_while_messages_come(streams):
    """A publisher that never rests does not keep a query from a micro-batch, which has what was confirmed before."""
    stream = stream_of(streams, numbers(10))
    reader = source(streams, stream=stream).streamReader(BODY)
    stopped, confirmed = threading.Event(), []

    def publish():
        with channel(streams) as on:
            while not stopped.is_set():
                on.basic_publish("", stream, b"x")
                confirmed.append(1)

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        wait_for(lambda: len(confirmed) > 20)
        before, began = len(confirmed), time.monotonic()
        found = reader.latestOffset()["offset"]
        seconds = time.monotonic() - began
    finally:
        stopped.set()
        thread.join(SECONDS)
    reader.stop()

    assert 10 + before <= found
    assert seconds < SECONDS / 2


def test_large_bodies_are_whole(streams):
    """Bodies of several frames and reads are those that were published."""
    made = [bytes([number]) * size for number, size in enumerate((0, 1, 200_000, 5, 1_000_000))]
    reader = source(streams, stream=stream_of(streams, made)).reader(BODY)

    assert made == bodies_of(reader, reader.partitions())


def test_a_queue_is_not_a_stream(streams):
    """A queue that is read as a stream is an error, and its message stays."""
    queue = declared(streams)
    published(streams, queue, [b"x"])

    with pytest.raises((NotAStreamError, ReplyError)):
        source(streams, stream=queue).reader(BODY).partitions()

    assert {b"x": 1} == taken(streams, queue)


def test_offsets_that_were_deleted_are_an_error(streams):
    """A range before the beginning of the stream is not skipped without a word, unless an option says so."""
    stream = declared(
        streams, STREAM | {"x-max-length-bytes": 50_000, "x-stream-max-segment-size-bytes": 10_000}
    )
    end = time.monotonic() + SECONDS
    while source(streams, stream=stream).streamReader(BODY)._ask(lambda each: each.earliest()) == 0:
        published(streams, stream, [bytes(9_000)] * 20)
        assert time.monotonic() < end

    reader, careless = (
        source(streams, stream=stream, failOnDataLoss=each, startingOffset=0, endingOffset=3).reader(BODY)
        for each in ("true", "false")
    )

    with pytest.raises(DataLossError, match="but 0 is to be read"):
        bodies_of(reader, reader.partitions())
    assert [] == bodies_of(careless, careless.partitions())


# -- queues ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def opened():
    """Return a function that makes readers of a queue, whose connections end with the test."""
    made = []

    def make(broker, queue, **options):
        made.append(source(broker.url, queue=queue, **options).simpleStreamReader(BODY))
        return made[-1]

    yield make
    for reader in made:
        if reader._consumer is not None:
            reader._consumer.close()


def held(broker, queue):
    """Return the number of messages of a queue, unacknowledged ones included."""
    view = broker.queue(queue)
    return view.depth + view.unacked


def wait_for(what):
    """Wait until something is true."""
    end = time.monotonic() + SECONDS
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def batch(reader, start):
    """Return the bodies of a micro-batch, and its end."""
    deadline = time.monotonic() + SECONDS
    while True:
        rows, end = reader.read(start)
        found = [row["body"] for each in rows for row in each.to_pylist()]
        if found or time.monotonic() > deadline:
            return found, end


def test_messages_of_a_queue_are_acked_when_their_batch_is_done(broker, opened):
    """A batch has at most the limit, and is acknowledged when the next one is asked for, or when Spark commits."""
    queue = declared(broker.url)
    published(broker.url, queue, numbers(25))
    reader = opened(broker, queue, maxOffsetsPerTrigger=10)

    first, one = batch(reader, reader.initialOffset())
    assert (numbers(10), 25) == (first, held(broker, queue))
    second, two = batch(reader, one)
    assert numbers(10, 10) == second
    wait_for(lambda: held(broker, queue) == 15)
    reader.commit(two)
    wait_for(lambda: held(broker, queue) == 5)
    third, _ = batch(reader, two)
    assert numbers(5, 20) == third
    reader._consumer.close()

    with_checkpoint = opened(broker, queue)
    again, _ = batch(with_checkpoint, {"run": "before", "batch": 9})
    assert third == again


def test_a_batch_that_was_not_done_comes_again_as_another(broker, opened):
    """A repeated batch of a former run is empty: its messages are in the queue again."""
    reader = opened(broker, declared(broker.url))

    assert [] == list(reader.readBetweenOffsets({"run": "before", "batch": 1}, {"run": "before", "batch": 2}))


def test_available_now_takes_what_was_in_the_queue(broker, opened):
    """Messages that come later are left, and a query ends although others have taken some."""
    queue = declared(broker.url)
    published(broker.url, queue, numbers(5))
    reader = opened(broker, queue)
    reader.prepareForTriggerAvailableNow()
    published(broker.url, queue, numbers(5, 5))

    found, end = batch(reader, reader.initialOffset())

    assert numbers(5) == found
    assert ([], end) == (list(reader.read(end)[0]), reader.read(end)[1])


def test_a_broker_that_restarts_is_connected_to_again(broker, opened):
    """Messages that were not acknowledged are delivered again on the next connection."""
    queue = declared(broker.url)
    published(broker.url, queue, numbers(5))
    reader = opened(broker, queue)
    found, end = batch(reader, reader.initialOffset())
    broker.restart()

    assert numbers(5) == found == batch(reader, {"run": "?", "batch": 0})[0]
    assert {"run": reader.initialOffset()["run"], "batch": 1} == end


# -- the sink -------------------------------------------------------------------------------------------------------


def writer(url, schema=BODY, **options):
    return source(url, **options).streamWriter(schema, overwrite=False)


def rows(bodies):
    return iter([Row("body")(each) for each in bodies])


def test_a_batch_that_is_written_again_is_in_the_queue_once(broker):
    """Rows are dropped whose ids the queue knows, in whatever order they come; equal rows of a batch are all there."""
    out = declared(broker.url, DEDUPLICATED)
    bodies = [*numbers(30), b"0", b"0"]

    writer(broker.url, queue=out).write(rows(bodies[:20]))
    writer(broker.url, queue=out).write(rows(bodies[::-1]))

    assert collections.Counter(bodies) == taken(broker.url, out)


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_batch_that_is_written_again_is_in_a_stream_once(broker, is_direct):
    """The stream, or an exchange before it, knows the ids of the rows."""
    out, exchange = declared(broker.url, STREAM | (DEDUPLICATED if is_direct else {})), uuid.uuid4().hex
    with channel(broker.url) as on:
        on.exchange_declare(exchange, "fanout", durable=True, arguments=DEDUPLICATED)
        on.queue_bind(out, exchange)
    target = {"queue": out} if is_direct else {"exchange": exchange}

    writer(broker.url, **target).write(rows(numbers(20)))
    writer(broker.url, **target).write(rows(numbers(30)))

    reader = source(broker.url, stream=out).reader(BODY)
    assert numbers(30) == bodies_of(reader, reader.partitions())


def test_a_broker_that_restarts_between_two_writes_gets_all_rows(broker, monkeypatch):
    """The connection is replaced, and what was not confirmed is published again."""
    out = declared(broker.url, DEDUPLICATED)
    monkeypatch.setattr(sink, "ROWS", 40)
    bodies = numbers(90)

    def slowly():
        for number, row in enumerate(rows(bodies)):
            if number == 60:
                broker.restart()
            yield row

    writer(broker.url, queue=out).write(slowly())

    assert collections.Counter(bodies) == taken(broker.url, out)


def test_a_message_that_is_not_taken_is_an_error(broker):
    """No route, and a refusal by a full queue, are named; without `mandatory` a message without a route may be lost."""
    full = declared(broker.url, {"x-max-length": 1, "x-overflow": "reject-publish"})
    keyed = StructType([StructField("body", BinaryType()), StructField("key", StringType())])

    def to_nowhere(**options):
        writer(broker.url, keyed, exchange="amq.direct", **options).write(
            iter([Row("body", "key")(b"x", "none")])
        )

    with pytest.raises(NotTakenError, match="NO_ROUTE"):
        to_nowhere()
    to_nowhere(mandatory="false")
    with pytest.raises(NotTakenError, match="refused 3 of 4 messages"):
        writer(broker.url, queue=full).write(rows(numbers(4)))


def test_a_queue_is_not_overwritten():
    """Mode `overwrite` is an error, rather than that the messages before stay."""
    with pytest.raises(OptionError, match="mode overwrite"):
        source("amqp://x", queue="q").writer(BODY, overwrite=True)


def test_no_rows_need_no_connection():
    """An empty partition is written without a broker."""
    writer("amqp://127.0.0.1:1", queue="q").write(iter(()))


# -- errors ---------------------------------------------------------------------------------------------------------


def test_errors_of_a_connection_say_what_is_wrong(broker, opened):
    """A missing queue, a wrong password, and a port where nothing listens are named, without the password."""
    wrong = broker.url.replace("guest@", "secret@")

    with pytest.raises(ReplyError, match="NOT_FOUND - no queue 'missing'"):
        opened(broker, "missing").read({"run": "", "batch": 0})
    with pytest.raises(RefusedError, match="ACCESS_REFUSED") as refused:
        source(wrong, stream="s").reader(BODY).partitions()
    with pytest.raises(UnreachableError, match=r"cannot connect to 127\.0\.0\.1:1: "):
        source("amqp://127.0.0.1:1", stream="s", timeout=1).reader(BODY).partitions()
    assert "secret" not in str(refused.value)


def test_columns_are_some_of_the_sources_own():
    """A schema of the user may have some columns; others, and other types, are an error."""
    with pytest.raises(OptionError, match="column body string is none of"):
        source("amqp://x", stream="s").reader(StructType([StructField("body", StringType())]))
    with pytest.raises(OptionError, match="column total string is none of"):
        source("amqp://x", stream="s").streamReader(StructType([StructField("total", StringType())]))


@pytest.mark.parametrize("kind", [DateType(), ArrayType(MapType(StringType(), StringType()))])
def test_a_type_that_json_does_not_have_is_an_error(kind):
    """It is named before anything is read, rather than that each body is null."""
    body = StructType([StructField("x", StructType([StructField("y", kind)]))])
    options = {"stream": "s", "body_format": "json", "body_schema": "any"}
    with pytest.raises(OptionError, match=r"option body_schema: JSON has no (date|map<string,string>);"):
        source("amqp://x", **options).reader(StructType([StructField("body", body)]))


def test_a_queue_is_read_by_the_simple_reader():
    """Spark takes the reader of the driver for a queue, since there is no other."""
    with pytest.raises(PySparkNotImplementedError):
        source("amqp://x", queue="q").streamReader(BODY)

"""The source: batches and micro-batches of a stream by ranges of offsets, and of a queue by acknowledgement.

Theory. An offset of a stream is Spark's to keep: a partition is a range of offsets, which depends on nothing but the
ends of the batch and the options, so that a batch that is repeated has the same rows in the same partitions. The end of
a batch is the offset after a message that was seen, since not each offset of a RabbitMQ stream has one.

A queue has no offsets. Its messages come through the driver, and are acknowledged when Spark asks for the batch after
theirs, which it does once theirs is in its log. Those of a batch that was not finished come again, in another batch.
"""

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import StructType

from leveret.broker.amqp.tables import Field
from leveret.broker.client.errors import ClientError
from leveret.spark.connection import Consumer, is_final, lasting
from leveret.spark.messages import Rows, columns, not_in_json
from leveret.spark.options import EARLIEST, Given, OptionError, SinkOptions, SourceOptions, body_of
from leveret.spark.sink import BatchWriter, StreamWriter

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before Spark 4.2
    ReadMaxRows = None  # type: ignore[assignment, misc]
    SupportsTriggerAvailableNow = object  # type: ignore[assignment, misc]

T = TypeVar("T")

FIRST: Final = ("longstr", "first")
LAST: Final = ("longstr", "last")
BATCH: Final = 5_000  # messages of an Arrow batch
PREFETCH: Final = 2 * BATCH
SHORT: Final = 1.0  # seconds in which messages are delivered, if the broker does not say that it has some
SEARCH: Final = 10.0  # seconds in which a broker has found a time in a stream
GLANCE: Final = 0.02  # seconds for which the end of a stream is watched
FAILURES: Final = 5  # connections of a partition that may fail one after the other without a message
LONGEST_PAUSE: Final = 0.1  # seconds for which a micro-batch waits for messages of a queue


class DataLossError(Exception):
    """Raised when a stream no longer has offsets that are to be read."""


class StreamError(Exception):
    """Raised when a stream cannot be read; the text says why."""


class LeveretDataSource(DataSource):
    """The data source `leveret`: `spark.dataSource.register(LeveretDataSource)`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "leveret"

    @classmethod
    def obstacle(cls, options: Mapping[str, str]) -> str:
        """Return the reason why a stream cannot be read now, given the options of `readStream`; '' if it can be."""
        try:
            Stream(SourceOptions.of(options, is_stream=True)).watch(0).close()
        except (ClientError, OptionError) as error:
            return str(error)
        return ""

    def schema(self) -> str:
        """Return the columns of a source, as DDL."""
        body_format, body_schema = body_of(Given(self.options))
        return ", ".join(f"{name} {kind}" for name, kind in columns(body_format, body_schema).items())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of `spark.read`."""
        options = SourceOptions.of(self.options, is_stream=False)
        return BatchReader(options, self._checked(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the reader of `spark.readStream` for a stream; for a queue Spark takes `simpleStreamReader`."""
        options = SourceOptions.of(self.options, is_stream=True)
        if options.queue:
            return super().streamReader(schema)
        if options.most and ReadMaxRows is None:
            raise OptionError("option maxOffsetsPerTrigger of a stream needs PySpark 4.2")
        return StreamReader(options, self._checked(options, schema))

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:  # noqa: N802
        """Return the reader of `spark.readStream` for a queue."""
        options = SourceOptions.of(self.options, is_stream=True)
        return QueueReader(options, self._checked(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of `DataFrame.write`; raises OptionError for mode `overwrite`."""
        if overwrite:
            raise OptionError("mode overwrite is not possible: the sink deletes no messages; use append")
        return BatchWriter(SinkOptions.of(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802 - Spark's
        """Return the writer of `DataFrame.writeStream`."""
        return StreamWriter(SinkOptions.of(self.options), schema)

    def _checked(self, options: SourceOptions, schema: StructType) -> StructType:
        """Return the schema that was asked for, if its columns are some of ours; raises OptionError."""
        ours = columns(options.body_format, "")
        for field in schema:
            kind, name = field.dataType.simpleString(), field.name
            is_json = (
                name == "body" and options.body_format == "json" and isinstance(field.dataType, StructType)
            )
            if kind != ours.get(name) and not is_json:
                raise OptionError(
                    f"column {name} {kind} is none of {', '.join(' '.join(each) for each in ours.items())}"
                )
            if is_json and (wrong := next(not_in_json(field.dataType), "")):
                raise OptionError(
                    f"option body_schema: JSON has no {wrong}; read it as string, and convert it"
                )
        return schema


@dataclass
class Range(InputPartition):
    """Offsets from `start` on, before `end`; with a `part` only messages of its keys (see `Rows`)."""

    start: int
    end: int
    part: tuple[int, int] | None = None


class Stream:
    """Reads a stream. Raises ClientError, StreamError and NotAStreamError from all methods."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._offsets = Rows(StructType(), "binary", has_offsets=True)

    def _consumer(self, position: Field, prefetch: int = 1) -> Consumer:
        return Consumer(self._options.broker, self._options.stream, prefetch, {"x-stream-offset": position})

    def watch(self, end: int) -> Consumer:
        """Return a consumer that gets a message once there is one from an offset on."""
        return self._consumer(("long", end))

    def _seen(self, position: Field, prefetch: int, seconds: float) -> tuple[int | None, int]:
        """Return the last offset of what is delivered at once from a position on (None for nothing), and how many."""
        with self._consumer(position, prefetch) as consumer:
            consumer.count()  # RabbitMQ delivers what there is before it replies
            found = consumer.take(prefetch, SHORT)
            if not found.contents and consumer.present:
                found = consumer.take(prefetch, seconds)
            return self._offsets.offset(found.contents[-1]) if found.contents else None, len(found.contents)

    def earliest(self) -> int:
        """Return the offset of the first message; 0 if the stream has none."""
        return self._seen(FIRST, 1, self._options.broker.timeout)[0] or 0

    def latest(self) -> int:
        """Return the offset after the last message; 0 if the stream has none."""
        seen, count = self._seen(LAST, PREFETCH, self._options.broker.timeout)
        while seen is not None and count == PREFETCH:
            more, count = self._seen(("long", seen + 1), PREFETCH, 0)
            seen = seen if more is None else more
        return 0 if seen is None else seen + 1

    def at(self, seconds: int, end: int) -> int:
        """Return the first offset with a time, in seconds since 1970; `end` if there is none before it."""
        found = self._seen(("timestamp", seconds), 1, SEARCH)[0] if end else None
        return end if found is None else min(found, end)

    def read(self, rows: Rows, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a range, whose last offset has one; raises DataLossError."""
        seconds, at, failures = self._options.broker.timeout, start, 0
        while at < end:
            with lasting(partial(self._consumer, ("long", at), PREFETCH), seconds) as consumer:
                try:
                    for batch, reached in self._batches(consumer, rows, at, end):
                        at, failures = reached, 0
                        if batch.num_rows:
                            yield batch
                except ClientError as error:  # the next connection begins where this one has ended
                    failures += 1
                    if is_final(error) or failures > FAILURES:
                        raise

    def _batches(
        self, consumer: Consumer, rows: Rows, at: int, end: int
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield the messages that a consumer gets from an offset on, each time with the offset after them."""
        seconds, is_first = self._options.broker.timeout, True
        while at < end:
            found = consumer.take(min(BATCH, end - at), seconds)
            if not found.contents:
                raise StreamError(
                    f"stream '{self._options.stream}' delivered nothing in {seconds:g} s at offset {at}"
                )
            if is_first:
                self._check_loss(at, rows.offset(found.contents[0]))
                is_first = False
            consumer.ack(consumer.taken)
            batch, last = rows.batch(found, at, end)
            at = max(at, last + 1)
            yield batch, at

    def _check_loss(self, wanted: int, found: int) -> None:
        """Raise DataLossError if offsets were deleted; other gaps are what RabbitMQ keeps in a stream for itself."""
        if self._options.fails_on_loss and found > wanted and (first := self.earliest()) > wanted:
            raise DataLossError(
                f"stream '{self._options.stream}' begins at offset {first}, but {wanted} is to be read: its retention "
                "has deleted messages; option failOnDataLoss=false goes on without them"
            )


class _RangeReader:
    """Base class of the readers of a stream: partitions and their rows."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def _stream(self) -> Stream:
        return Stream(self._options)

    def _ask(self, question: Callable[[Stream], T]) -> T:
        return lasting(lambda: question(self._stream()), self._options.broker.timeout)

    def _ranges(self, start: int, end: int) -> list[Range]:
        share, by_key = self._options.share, self._options.by_key
        if by_key and start < end:
            return [Range(start, end, (number, by_key)) for number in range(by_key)]
        return [Range(at, min(at + share, end)) for at in range(start, end, share)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        if not isinstance(partition, Range):
            return iter(())
        rows = Rows(self._schema, self._options.body_format, has_offsets=True, part=partition.part)
        return self._stream().read(rows, partition.start, partition.end)

    def _position(self, seconds: int | None, offset: str | int) -> int:
        """Return the offset that options stand for, but no later one than the end of the stream."""
        if seconds is None and offset == EARLIEST:
            return self._ask(Stream.earliest)
        end = self._ask(Stream.latest)
        if seconds is not None:
            return self._ask(lambda stream: stream.at(seconds, end))
        return end if isinstance(offset, str) else min(offset, end)


class BatchReader(_RangeReader, DataSourceReader):
    """Reads a range of a stream."""

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the range, which is fixed now."""
        options = self._options
        start = self._position(options.start_time, options.start)
        return [*self._ranges(start, self._position(options.end_time, options.end))] or [InputPartition(None)]


class StreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a stream in micro-batches."""

    _last: int | None = None  # the end of the stream as `Trigger.AvailableNow` found it
    _end = 0
    _watch: Consumer | None = None
    """Gets a message when the stream no longer ends at `_end`; a query that waits costs the broker nothing else."""

    def _latest(self) -> int:
        """Return the end of the stream."""
        if self._watch is None or self._has_more(self._watch):
            self.stop()
            self._end = self._ask(Stream.latest)
            self._watch = self._ask(lambda stream: stream.watch(self._end))
        return self._end

    @staticmethod
    def _has_more(watch: Consumer) -> bool:
        try:
            return bool(watch.take(1, GLANCE).contents)
        except ClientError:
            return True

    def stop(self) -> None:
        """Close the connection."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the offset that a new query begins with."""
        return {"offset": self._position(self._options.start_time, self._options.start)}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Return the limit of a micro-batch."""
        return ReadMaxRows(self._options.most) if self._options.most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the end of the stream, which the query then reads up to."""
        self._last = self._latest()

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        """Return the end of the next micro-batch. Before Spark 4.2 it has no start, and no limit."""
        end = self._latest() if self._last is None else self._last
        if start is None:
            return {"offset": end}
        first, most = start["offset"], getattr(limit, "max_rows", None)
        if end < first:
            if self._options.fails_on_loss:
                raise DataLossError(
                    f"stream '{self._options.stream}' ends at offset {end}, but {first} was reached before: it was "
                    "declared again; option failOnDataLoss=false reads it from its beginning"
                )
            first = 0
        return {"offset": end if most is None else min(end, first + most)}

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the end of the stream, for the progress of the query."""
        return {"offset": self._latest()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch."""
        first, stop = start["offset"], end["offset"]
        return self._ranges(first if first <= stop else 0, stop)


class QueueReader(SimpleDataSourceStreamReader, SupportsTriggerAvailableNow):
    """Takes messages from a queue in micro-batches."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._rows = Rows(schema, options.body_format, has_offsets=False)
        self._consumer: Consumer | None = None
        self._tags: dict[int, int] = {}
        """By number of a batch: the delivery tag of its last message on the present connection."""
        self._left: int | None = None  # messages that `Trigger.AvailableNow` may still take
        # Batches of two runs of a query are never equal: the second one has other messages.
        self._run = uuid.uuid4().hex
        self._number = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return a position before the first batch of this run."""
        return {"run": self._run, "batch": 0}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note how many messages the queue has."""
        self._left = lasting(self._connected, self._options.broker.timeout).present

    def _connected(self) -> Consumer:
        """Return the connection; a new one if there is none, or it has failed."""
        if self._consumer is None or self._consumer.is_closed:
            self._tags.clear()
            options = self._options
            if self._consumer is not None:
                self._consumer.close()
            self._consumer = None
            self._consumer = Consumer(options.broker, options.queue, 2 * options.most, {})
        return self._consumer

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        """Return the next messages, and the position after them; acknowledge those before `start`."""
        batch, tag = lasting(lambda: self._taken(start), self._options.broker.timeout)
        if batch is None:
            return iter(()), start
        self._number += 1
        self._tags[self._number] = tag
        return iter([batch]), {"run": self._run, "batch": self._number}

    def _taken(self, start: dict[str, Any]) -> tuple[pa.RecordBatch | None, int]:
        """Return the next messages, and the delivery tag of the last one."""
        consumer = self._connected()
        self._ack(start)
        most = self._options.most if self._left is None else min(self._options.most, self._left)
        found = consumer.take(most, LONGEST_PAUSE) if most else None
        if found is None or not found.contents:
            if self._left and not consumer.count():
                self._left = 0
            return None, 0
        if self._left is not None:
            self._left -= len(found.contents)
        return self._rows.batch(found)[0], consumer.taken

    def _ack(self, end: dict[str, Any]) -> None:
        tag = self._tags.pop(end["batch"], None) if end["run"] == self._run else None
        if tag is not None and self._consumer is not None:
            self._consumer.ack(tag)

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:  # noqa: ARG002, N802
        """Return nothing for a batch that was not finished: its messages are in the queue again."""
        return iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge the messages of a batch, if `read` has not."""
        self._ack(end)

"""The sink: rows published with confirms, each with an id by which a queue drops what is published again.

Theory. Spark repeats a task, or a batch, that was not finished: some of its rows are published already. The id of a row
consists of the query, the batch, the partition, a digest of the row and how many equal ones were before it there. So it
is the same in a repeat even if the order of the rows is not, as after a shuffle.
"""

import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.fastpath import content_frames
from leveret.broker.amqp.properties import FLAG_MESSAGE_ID, FLAGS_AT, Properties, build
from leveret.broker.amqp.tables import typed
from leveret.spark.connection import Publisher
from leveret.spark.messages import COLUMNS, NUMBERS, TEXTS
from leveret.spark.options import OptionError, SinkOptions

ROWS: Final = 2_000  # maximum number of rows that are published before their confirms are awaited
BYTES: Final = 1 << 20  # size of frames, in bytes, from which that is so, too
QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
"""Spark's local properties for the id of a query, which its checkpoint keeps, and the number of a micro-batch."""
PERSISTENT: Final = 2
_START: Final = b"\x00\x3c\x00\x00"  # class 60, weight 0
IGNORED: Final = frozenset({"offset", "exchange"})
"""Columns of a source that a sink leaves out: they say where a message was."""
_PROPERTIES: Final = {**dict.fromkeys(TEXTS, "string"), **dict.fromkeys(NUMBERS, "int")}
_TYPES: Final = {
    "body": ("binary", "string"),
    "key": ("string",),
    "message_id": ("string",),
    "timestamp": ("timestamp",),
    "headers": ("map<string,string>",),
}


def check(schema: StructType) -> None:
    """Raise OptionError for a schema whose columns are not those of a sink."""
    for field in schema:
        name, kind = field.name, field.dataType.simpleString()
        if name == "properties":
            fields = field.dataType.fields if isinstance(field.dataType, StructType) else []
            wrong = [
                each.name for each in fields if _PROPERTIES.get(each.name) != each.dataType.simpleString()
            ]
            if wrong or not fields:
                raise OptionError(
                    f"column properties must be a struct of some of {COLUMNS['properties'][7:-1]}"
                )
        elif name not in IGNORED and name not in _TYPES:
            raise OptionError(f"the sink takes no column {name}, only {', '.join(_TYPES)} and properties")
        elif name in _TYPES and kind not in _TYPES[name]:
            raise OptionError(f"column {name} must be of type {' or '.join(_TYPES[name])}, not {kind}")
    if "body" not in schema.names:
        raise OptionError("the sink needs a column body, of type binary or string")


@lru_cache(maxsize=1024)
def _publish(exchange: str, key: str, is_mandatory: bool) -> bytes:
    return encode_method(1, make(Basic.Publish, 0, exchange, key, is_mandatory, False))


@lru_cache(maxsize=1024)
def _header(
    values: Sequence[tuple[str, str | int]], headers: Sequence[tuple[str, str]]
) -> tuple[bytes, bytes]:
    """Return a content header between the size of the body and the id, and from its end on."""
    more = {"headers": typed(dict(headers))} if headers else {}
    made = build(0, message_id="", **{"delivery_mode": PERSISTENT, **dict(values), **more})
    start, stop = Properties(made).spans[FLAG_MESSAGE_ID]
    return made[FLAGS_AT:start], made[stop:]


class Encoder:
    """Encodes rows as publishes on channel 1, with ids that begin with a prefix."""

    def __init__(self, options: SinkOptions, schema: StructType, prefix: str) -> None:
        names = schema.names
        self._at = {name: names.index(name) if name in names else None for name in (*_TYPES, "properties")}
        self._options = options
        self._prefix = prefix
        self._seen: Counter[bytes] = Counter()

    def _value(self, row: Row, name: str) -> Any:
        at = self._at[name]
        return None if at is None else row[at]

    def encode(self, row: Row, frame_max: int) -> bytes:
        """Return the frames of a row; raises RowError if it cannot be a message."""
        options, value = self._options, partial(self._value, row)
        body, key, stamp = value("body"), options.routing_key, value("timestamp")
        if body is None:
            raise RowError("column body of a row is null")
        body = body.encode() if isinstance(body, str) else bytes(body)
        key = (value("key") or "") if key is None else key
        headers = tuple(sorted((name, text or "") for name, text in (value("headers") or {}).items()))
        properties = value("properties")
        values = () if properties is None else tuple(
            (name, each) for name, each in properties.asDict().items() if each is not None and name != "message_id"
        )  # fmt: skip
        if stamp is not None:
            values += (("timestamp", int(stamp.timestamp())),)
        try:
            before, after = _header(values, headers)
            identity = (value("message_id") or self._identity(key, body, before + after)).encode()
            header = b"".join(
                (_START, len(body).to_bytes(8, "big"), before, bytes((len(identity),)), identity, after)
            )
            return _publish(options.exchange, key, options.is_mandatory) + content_frames(
                1, frame_max, header, body
            )
        except ValueError as error:  # a text of more than 255 bytes
            raise RowError(f"a row cannot be a message: {error}") from None

    def _identity(self, key: str, body: bytes, header: bytes) -> str:
        digest = blake2b(body, digest_size=12, key=blake2b(header + key.encode()).digest()).digest()
        number = self._seen[digest]
        self._seen[digest] = number + 1
        return f"{self._prefix}-{digest.hex()}-{number}"


class RowError(Exception):
    """Raised for a row that cannot be a message; the text says why."""


class _Writer:
    """Base class of the writers: publishes the rows of a partition."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check(schema)
        self._options = options
        self._schema = schema
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Publish the rows of a partition, and wait for their confirms.

        Raises RowError, NotTakenError and ClientError.
        """
        encoder = Encoder(self._options, self._schema, self._prefix())
        with Publisher(self._options.broker) as publisher:
            for row in iterator:
                frame_max = publisher.frame_max
                frames = [encoder.encode(row, frame_max)]
                size = len(frames[0])
                for more in islice(iterator, ROWS - 1):
                    frames.append(encoder.encode(more, frame_max))
                    size += len(frames[-1])
                    if size >= BYTES:
                        break
                publisher.publish(b"".join(frames), len(frames))
        return WriterCommitMessage()

    def _prefix(self) -> str:
        """Return the beginning of the ids of a partition's rows: job, query and batch, or a job of its own."""
        task = TaskContext.get()
        if task is None:
            raise RuntimeError("a partition is written by a task of Spark")
        query, batch = task.getLocalProperty(QUERY), task.getLocalProperty(BATCH)
        of_query = () if query is None or batch is None else (query, batch)
        given = (self._options.job, *of_query) if self._options.job else of_query
        return "-".join((*(given or (self._job,)), str(task.partitionId())))


class BatchWriter(_Writer, DataSourceWriter):
    """Publishes a data frame."""


class StreamWriter(_Writer, DataSourceStreamWriter):
    """Publishes the micro-batches of a query."""

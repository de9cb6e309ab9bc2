"""Messages as rows of Spark, and rows as messages, without Spark's Java."""

import json
import subprocess
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from leveret.broker.amqp.errors import WireError
from leveret.broker.amqp.fastpath import content_frames, join_address
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.amqp.tables import plain
from leveret.spark.messages import NUMBERS, TEXTS, Delivered, NotAStreamError, Rows, arrow_schema
from leveret.spark.options import OptionError, SinkOptions, SourceOptions
from leveret.spark.sink import Encoder, RowError, check

PROPERTIES = StructType(
    [
        *(StructField(name, StringType()) for name in TEXTS),
        *(StructField(name, IntegerType()) for name in NUMBERS),
    ]
)
TYPES = {
    "offset": LongType(), "timestamp": TimestampType(), "key": StringType(), "exchange": StringType(),
    "headers": MapType(StringType(), StringType()), "properties": PROPERTIES, "body": BinaryType(),
}  # fmt: skip
URI = {"uri": "amqp://localhost"}


def schema(*names, **types):
    """Return a schema with these columns, of the source's own types or others."""
    made = TYPES | types
    return StructType([StructField(name, made[name]) for name in names or TYPES])


def content(body=b"", frame_max=0, offset=None, headers=None, **properties):
    """Return the frames of a message, with an offset if it is of a stream."""
    table = dict(headers or {}) | ({} if offset is None else {"x-stream-offset": ("long", offset)})
    return content_frames(1, frame_max, build(len(body), headers=table or None, **properties), body)


def rows_of(
    contents, asked=None, body_format="binary", first=0, end=None, *, has_offsets=True, address=("e", "k")
):
    messages = Delivered(
        [join_address(*address)] * len(contents),
        [each if isinstance(each, list) else [each] for each in contents],
    )
    rows = Rows(asked or schema(), body_format, has_offsets=has_offsets)
    return rows.batch(messages, first, end)[0].to_pylist()


def test_a_message_is_a_row_with_all_of_its_properties():
    """Offset, time, key, exchange, headers as text, properties and body are those of the message."""
    headers = {
        "a": ("longstr", "ä"), "n": ("signedint", -3), "t": ("bool", True), "v": ("void", None),
        "l": ("array", [("signedint", 1)]), "d": ("table", {"x": ("longstr", "y")}), "b": ("binary", b"\xff"),
    }  # fmt: skip
    made = content(
        b"body", offset=7, headers=headers, message_id="m", delivery_mode=2, timestamp=1_795_000_000
    )

    (row,) = rows_of([made])

    assert (7, "k", "e", b"body") == (row["offset"], row["key"], row["exchange"], row["body"])
    assert datetime.fromtimestamp(1_795_000_000, UTC) == row["timestamp"]
    assert {
        "a": "ä", "n": "-3", "t": "true", "v": "null", "l": "[1]", "d": '{"x": "y"}', "b": "\ufffd",
    } == dict(row["headers"])  # fmt: skip
    assert {"message_id": "m", "delivery_mode": 2} == {
        name: value for name, value in row["properties"].items() if value is not None
    }


def test_equal_properties_have_offsets_of_their_own():
    """Messages that differ in their offset only are decoded once, and each has its offset."""
    contents = [content(b"%d" % each, offset=each, headers={"a": ("longstr", "x")}) for each in range(300)]

    rows = rows_of(contents)

    assert [(each, b"%d" % each, [("a", "x")]) for each in range(300)] == [
        (row["offset"], row["body"], row["headers"]) for row in rows
    ]


def test_a_header_with_the_text_of_an_offset_is_no_offset():
    """A publisher cannot choose the offset of its message, nor the properties of another, by a header."""
    false = "\x0fx-stream-offsetl" + "\x00" * 8
    contents = [
        content(b"", offset=each, headers={"a": ("longstr", false), "n": ("signedint", each)})
        for each in (0, 1, 2, 0)
    ]

    rows = rows_of(contents)

    assert [(0, "0"), (1, "1"), (2, "2"), (0, "0")] == [
        (row["offset"], dict(row["headers"])["n"]) for row in rows
    ]


def test_a_range_has_its_offsets_only():
    """Offsets before the first and from the end on are left out: a broker delivers from the start of a chunk."""
    contents = [content(offset=each) for each in range(3, 12)]

    assert [5, 6, 7] == [row["offset"] for row in rows_of(contents, first=5, end=8)]


def test_a_delivery_without_an_offset_is_of_no_stream():
    """A queue that is read as a stream is an error; a queue has no offsets."""
    with pytest.raises(NotAStreamError):
        rows_of([content()])

    assert [None] == [row["offset"] for row in rows_of([content(b"x")], has_offsets=False)]


@pytest.mark.parametrize("size", [0, 1, 4088, 4089, 100_000])
def test_a_body_of_any_number_of_frames_is_whole(size):
    """A body is the same if it came at once, in several frames, or in several reads."""
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    at_once, in_frames = content(body, offset=1), content(body, 4096, offset=1)
    head = 15 + int.from_bytes(in_frames[3:7], "big") - 7
    in_reads = [in_frames[:head], *(in_frames[at : at + 4096] for at in range(head, len(in_frames), 4096))]

    assert [body] * 3 == [row["body"] for row in rows_of([at_once, in_frames, in_reads])]


def test_columns_that_are_not_asked_for_are_not_made():
    """A schema with some of the columns is what the batch has."""
    assert [{"body": b"x", "offset": 4}] == rows_of([content(b"x", offset=4)], schema("body", "offset"))


def test_a_malformed_header_is_an_error():
    """A header that is not valid AMQP 0-9-1 makes no row."""
    bad = content_frames(1, 0, build(0)[:12] + b"\x20\x00" + b"\x00\x00\x00\xff", b"")

    with pytest.raises(WireError):
        rows_of([bad], has_offsets=False)


def test_text_is_decoded_and_json_is_a_struct():
    """Invalid UTF-8 is replaced; a body that is no JSON object, or has other types, is null, and its neighbours are not."""
    text = rows_of([content(b"\xff!", offset=0)], schema("body", body=StringType()), "text")
    kind = StructType([StructField("id", LongType()), StructField("at", TimestampType())])
    bodies = [
        b'{"id": 1, "at": "2026-11-29T12:00:00Z", "more": 1}', b'{"id": 2}', b"", b"[1]", b'{"id": "x"}',
        b'{"id":\n3}', b'{"id": 4} {"id": 5}',
    ]  # fmt: skip
    found = rows_of([content(each, offset=0) for each in bodies], schema("body", body=kind), "json")

    assert [{"body": "\ufffd!"}] == text
    assert [1, 2, None, None, None, 3, None] == [row["body"] and row["body"]["id"] for row in found]
    assert datetime(2026, 11, 29, 12, tzinfo=UTC) == found[0]["body"]["at"]


@pytest.mark.parametrize(
    "broken",
    [
        [b"null"], [b'{"id": 1} null'], [b'{"id": 1} {"id": 2}', b""], [b'{"id": 1, "x": "', b'"}', b'{"id": 3} {"id": 4}'],
        [b'{"id":', b"2}", b'{"id": 3} {"id": 4}'], [b"[" * 100_000], [b'{"more": "\xff"}'],
        ['{"id": 1}'.encode("utf-16")], [b'{"id": 1}\0'], [b'{"id": "x"}', b"null"],
    ],
)  # fmt: skip
def test_broken_json_is_null_in_its_own_row_only(broken):
    """No body ends the process, takes the place of another, or makes another one null."""
    kind = StructType([StructField("id", LongType())])
    bodies = [b'{"id": 0}', *broken, b'{"id": 9}']
    found = rows_of([content(each, offset=0) for each in bodies], schema("body", body=kind), "json")
    assert [{"id": 0}, *[None] * len(broken), {"id": 9}] == [row["body"] for row in found]


def test_the_batch_has_the_types_that_spark_expects():
    """The Arrow schema of a batch is the one that Spark computes, to the time zone."""
    rows = Rows(schema(), "binary", has_offsets=True)

    batch, last = rows.batch(Delivered([join_address("", "k")], [[content(offset=9)]]))

    assert (arrow_schema(schema()), 9) == (batch.schema, last)
    assert pa.timestamp("us", "UTC") == batch.schema.field("timestamp").type


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "stream and queue is needed"),
        ({"stream": "s", "queue": "q"}, "exclude each other"),
        ({"stream": "s", "uri": ""}, "option uri is needed"),
        ({"stream": "s", "uri": "http://x"}, "option uri: "),
        ({"stream": "s", "uri": "amqp://a:secret@host:x"}, "option uri: "),
        ({"stream": "s", "maxOffsetsPerTriger": "5"}, "unknown option maxoffsetspertriger"),
        ({"stream": "s", "maxOffsetsPerTrigger": "-5"}, "option maxOffsetsPerTrigger must be"),
        (
            {"stream": "s", "startingOffset": "next"},
            "option startingOffset must be earliest, latest or a number",
        ),
        ({"stream": "s", "startingTimestamp": "noon"}, "option startingTimestamp must be a time in ISO 8601"),
        ({"stream": "s", "endingOffset": "7"}, "for spark.read"),
        ({"stream": "s", "failOnDataLoss": "no"}, "must be true or false"),
        ({"stream": "s", "body_format": "avro"}, "apply from_avro"),
        ({"stream": "s", "body_format": "json"}, "need each other"),
        ({"queue": "s", "maxOffsetsPerTrigger": "40000"}, "at most 30000"),
        ({"queue": "s", "startingOffset": "0"}, "option startingOffset is for streams"),
    ],
)
def test_a_wrong_option_of_a_source_is_named(options, expected):
    """Each error says which option is wrong, and no password."""
    with pytest.raises(OptionError, match=expected) as caught:
        SourceOptions.of(URI | options, is_stream=True)

    assert "secret" not in str(caught.value)


def test_an_option_has_the_password_where_a_plan_would_show_that_of_the_uri():
    """The option goes before the URI, for sources and sinks."""
    given = {"uri": "amqp://user:shown@host/vhost", "password": "hidden"}
    source = SourceOptions.of({**given, "stream": "s"}, is_stream=True)
    sink = SinkOptions.of({**given, "queue": "q"})
    assert "hidden" == source.broker.address.password == sink.broker.address.password
    assert "shown" == SinkOptions.of({"uri": given["uri"], "queue": "q"}).broker.address.password


def test_times_are_of_utc_unless_they_say_otherwise():
    """A time is ISO 8601 with or without a zone, or milliseconds since 1970."""
    times = ("2026-11-29T12:00:00", "2026-11-29T13:00:00+01:00", "1795953600000")

    assert [1_795_953_600] * 3 == [
        SourceOptions.of(URI | {"stream": "s", "startingTimestamp": each}, is_stream=False).start_time
        for each in times
    ]


def encoded(rows, names, options=None, **types):
    """Return the messages that rows become: exchange and key of the publish, properties, body."""
    encoder = Encoder(
        SinkOptions.of(URI | (options or {"exchange": "e"})), StructType([StructField(name, types[name]) for name in names]), "job"
    )  # fmt: skip
    found = []
    for values in rows:
        frames = encoder.encode(Row(*names)(*values), 4096)
        method = int.from_bytes(frames[3:7], "big") + 8
        header = frames[method + 7 : method + 7 + int.from_bytes(frames[method + 3 : method + 7], "big")]
        at = 13
        exchange = frames[at + 1 : at + 1 + frames[at]].decode()
        at += 1 + frames[at]
        key = frames[at + 1 : at + 1 + frames[at]].decode()
        found.append((exchange, key, Properties(header), frames[method + len(header) + 8 + 7 : -1]))
    return found


def test_a_row_is_a_message_with_its_columns():
    """Body, key, headers, time and properties are the row's; a message is persistent unless it says otherwise."""
    names = ("body", "key", "headers", "timestamp", "properties", "offset", "exchange")
    stamp = datetime(2026, 11, 29, 12, tzinfo=UTC)
    row = ("hé", "k", {"b": "2", "a": None}, stamp, Row(content_type="text/plain", message_id="x"), 3, "from")
    kinds = TYPES | {"body": StringType()}

    ((exchange, key, properties, body),) = encoded([row], names, **kinds)

    assert ("e", "k", "hé".encode()) == (exchange, key, body)
    assert {"a": "", "b": "2"} == plain(properties.headers)
    assert (2, "text/plain", 1_795_953_600) == (
        properties.delivery_mode,
        properties.content_type,
        properties.timestamp,
    )
    assert properties.message_id.startswith("job-")


def test_ids_do_not_depend_on_the_order_of_rows():
    """Rows have the same ids in any order; equal rows have different ones, as rows with other keys or headers."""
    names, kinds = ("body", "key"), {"body": BinaryType(), "key": StringType()}
    rows = [(b"a", "k"), (b"b", "k"), (b"a", "k"), (b"a", "l")]

    one = [each[2].message_id for each in encoded(rows, names, **kinds)]
    other = [each[2].message_id for each in encoded(rows[::-1], names, **kinds)]

    assert (4, set(one)) == (len(set(one)), set(other))


def test_an_id_of_the_row_is_kept():
    """A column `message_id` is the id, where it has one."""
    kinds = {"body": BinaryType(), "message_id": StringType()}
    found = encoded([(b"a", "mine"), (b"a", None)], ("body", "message_id"), {"queue": "q"}, **kinds)

    assert ("", "q", "mine") == (found[0][0], found[0][1], found[0][2].message_id)
    assert found[1][2].message_id.startswith("job-")


@pytest.mark.parametrize("values", [(None, "k"), (b"", "k" * 256)])
def test_a_row_that_cannot_be_a_message_is_an_error(values):
    """A null body, and a key of more than 255 bytes, are refused."""
    with pytest.raises(RowError):
        encoded([values], ("body", "key"), body=BinaryType(), key=StringType())


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (schema("key"), "needs a column body"),
        (schema("body", body=LongType()), "column body must be of type binary or string, not bigint"),
        (
            StructType([StructField("body", BinaryType()), StructField("total", LongType())]),
            "takes no column total",
        ),
        (
            schema("body", "properties", properties=StructType([StructField("a", LongType())])),
            "column properties must be",
        ),
    ],
)
def test_columns_that_the_sink_does_not_take_are_named(asked, expected):
    """Unknown columns and other types are an error before anything is written."""
    with pytest.raises(OptionError, match=expected):
        check(asked)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "queue and exchange is needed"),
        ({"queue": "q", "routingKey": "k"}, "exclude each other"),
        ({"queue": "q", "stream": "s"}, "unknown option stream"),
    ],
)
def test_a_wrong_option_of_a_sink_is_named(options, expected):
    """Each error says which option is wrong; those of Spark's own are none."""
    with pytest.raises(OptionError, match=expected):
        SinkOptions.of(URI | {"checkpointLocation": "c"} | options)


def test_json_of_a_header_is_json():
    """Nested headers are JSON that other programs can read."""
    (row,) = rows_of([content(offset=1, headers={"t": ("table", {"a": ("array", [("void", None)])})})])

    assert {"a": [None]} == json.loads(dict(row["headers"])["t"])


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_a_missing_package_is_named(package):
    """Without Spark or Arrow the import says what to install."""
    program = f"import sys; sys.modules['{package}'] = None; import leveret.spark"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )

    assert package in done.stderr
    assert "pip install 'leveret[analytics,notebook]'" in done.stderr.splitlines()[-1]

from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType

from leveret.analytics.schemas import CORRUPT, tables


def test_nested_types_are_spark_s():
    """Lists, maps and buckets become Spark's types."""
    histogram, event = tables()["latency_hist"].schema, tables()["event"].schema

    assert MapType(StringType(), StringType()) == event["detail"].dataType
    assert isinstance(histogram["b"].dataType, ArrayType)
    assert ["i", "c"] == histogram["b"].dataType.elementType.names
    assert LongType() == histogram["b"].dataType.elementType["c"].dataType


def test_the_schema_to_read_with_has_room_for_what_cannot_be_read():
    """Reading has one column more than the table, for the line that is no row."""
    table = tables()["event"]

    assert StructType([*table.schema.fields]) == table.schema
    assert [*table.schema.names, CORRUPT] == table.read_schema.names


def test_every_interval_tells_objects_apart():
    """A table with counters has the keys by which they are differenced."""
    clocked = [table for table in tables().values() if table.has_clock and table.of_kind("counter")]

    assert clocked
    assert all({"node", "boot_id"} <= set(table.of_kind("key")) for table in clocked)

"""The declaration of the export's tables, and the schemas and pages made from it."""

import json
from pathlib import Path

import msgspec
import pytest

from docs.generate.export import EVENTS
from leveret.broker.export.tables import TABLES, Bucket, columns, spark_schema

ROOT = Path(__file__).parents[3]
COMMON = ["v", "ts", "mono_us", "node", "boot_id"]


@pytest.mark.parametrize("table", TABLES)
def test_every_column_is_described(table):
    """Each column has a description, which says whether it adds up; the version comes first."""
    described = columns(table)

    assert "v" == described[0].name
    assert [] == [column.name for column in described if not column.doc]
    assert len(described) == len({column.name for column in described})


@pytest.mark.parametrize("table", [name for name in TABLES if not name.startswith("bench_")])
def test_the_broker_s_tables_begin_alike(table):
    """All tables that the broker writes itself have time, node and run in the same columns."""
    assert COMMON == [column.name for column in columns(table)][:5]


@pytest.mark.parametrize("table", TABLES)
def test_what_is_written_has_the_columns_of_the_schema(table):
    """A row as JSON has exactly the documented columns, in that order, and values of their types."""
    struct = TABLES[table].struct
    values = {int: 1, float: 1.5, str: "s", bool: True, list[str]: ["a"], dict[str, str]: {"k": "v"}}
    made = {
        field.name: next((value for kind, value in values.items() if kind == field.type), None)
        for field in msgspec.structs.fields(struct)
    }
    made |= {name: value for name, value in (("b", [Bucket(1, 2)]), ("counters", {"a": 1})) if name in made}
    row = json.loads(msgspec.json.encode(struct(**made)))
    schema = spark_schema(table)

    assert list(row) == [field["name"] for field in schema["fields"]]
    assert [] == [field for field in schema["fields"] if not fits(row[field["name"]], field["type"])]
    assert struct(**made) == msgspec.json.decode(msgspec.json.encode(struct(**made)), type=struct)


def fits(value: object, kind: object) -> bool:
    """Return whether a value is of one of Spark's types."""
    if isinstance(kind, str):
        python = {"long": int, "integer": int, "double": float, "string": str, "boolean": bool}[kind]
        return value is None or type(value) is python
    if "array" == kind["type"]:
        return all(fits(each, kind["elementType"]) for each in value)
    if "map" == kind["type"]:
        return all(fits(each, kind["valueType"]) for each in value.values())
    return list(value) == [field["name"] for field in kind["fields"]]


def test_a_schema_is_in_spark_s_form():
    """Types that are not simple are spelled as Spark spells them."""
    fields = {field["name"]: field["type"] for field in spark_schema("latency_hist")["fields"]}
    bucket = [
        {"name": "i", "type": "integer", "nullable": True, "metadata": {}},
        {"name": "c", "type": "long", "nullable": True, "metadata": {}},
    ]

    assert {
        "type": "array",
        "elementType": {"type": "struct", "fields": bucket},
        "containsNull": True,
    } == fields["b"]
    assert ("integer", "long", "string") == (fields["v"], fields["ts"], fields["metric"])
    assert "array<struct<i:int,c:bigint>>" == columns("latency_hist")[-1].type


def test_only_what_may_be_missing_is_null():
    """A column of a union is of the other type, and null where the value is unknown."""
    types = {column.name: column.type for column in columns("bench_cost")}

    assert "bigint" == types["flushes"]


def test_events_are_described():
    """The list of events has every kind that the code notes, and no other."""
    noted = {
        word
        for path in (ROOT / "broker").rglob("*.py")
        for word in __import__("re").findall(
            r'(?:note|record_consumer)\(\s*"(\w+)"', path.read_text(encoding="utf-8")
        )
    }
    noted |= {"alarm_raised", "alarm_cleared", "connection_opened", "connection_closed"}

    assert set(EVENTS) == noted

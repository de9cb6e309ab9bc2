"""Rows of the export's tables, made up for tests: whole ones, with what a test says and zeros otherwise."""

import json
from pathlib import Path

TABLES = json.loads((Path(__file__).parent.parent / "analytics" / "tables.json").read_text(encoding="utf-8"))
START = 1_795_245_600_000
"""2026-11-21 07:20 UTC, ms."""
EMPTY = {"integer": 0, "long": 0, "double": 0.0, "string": "", "boolean": False}


def row(table, seconds=0.0, **values):
    """A row of a table, so many seconds after the start."""
    made = {}
    for column in TABLES[table]:
        kind = column["type"]
        made[column["name"]] = (
            EMPTY[kind] if isinstance(kind, str) else {"array": [], "map": {}}[kind["type"]]
        )
    made["v"] = 1
    if "boot_id" in made:
        made |= {
            "ts": START + round(seconds * 1000),
            "mono_us": round(seconds * 1_000_000),
            "node": "here",
            "boot_id": "boot",
        }
    unknown = values.keys() - made.keys()
    assert not unknown, unknown
    return made | values


def index(value):
    """The bucket of a value in the scheme ll5, as its definition says."""
    shift = max(0, value.bit_length() - 6)
    return (shift << 5) + (value >> shift)


def histogram(values):
    """What a row of `latency_hist` says of these samples."""
    counts = {}
    for value in values:
        counts[index(value)] = counts.get(index(value), 0) + 1
    return {
        "scheme": "ll5",
        "count": len(values),
        "sum_us": sum(values),
        "min_us": min(values),
        "max_us": max(values),
        "b": [{"i": bucket, "c": count} for bucket, count in sorted(counts.items())],
    }

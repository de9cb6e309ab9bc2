"""The recorded outcomes of all certificates: `table.txt`, a paragraph for each, ours and where it differs RabbitMQ's."""

from pathlib import Path

TABLE = Path(__file__).with_name("table.txt")
THEIRS = " | RabbitMQ: "
HEAD = """# What becomes of a client that presents a certificate, and of its login by EXTERNAL. Written by
# make campaign NAME=certificates ARGS=--write
"""
Rows = dict[str, dict[str, str]]
"""Outcomes by certificate and column."""


def written(here: Rows, there: Rows) -> str:
    parts = [HEAD]
    for name, row in here.items():
        parts.append(f"\n{name}\n")
        for column, outcome in row.items():
            other = there[name].get(column, "-")
            parts.append(f"  {column}: {outcome}{'' if other == outcome else THEIRS + other}\n")
    return "".join(parts)


def read() -> Rows:
    """Return our outcomes in the table."""
    rows: Rows = {}
    name = ""
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            column, _, outcome = line.strip().partition(": ")
            rows[name][column] = outcome.partition(THEIRS)[0]
        elif line and not line.startswith("#"):
            name = line
            rows[name] = {}
    return rows

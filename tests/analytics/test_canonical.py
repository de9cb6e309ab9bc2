import json
import re

import pytest
from made_rows import histogram, row

from leveret.analytics.canonical import line_pattern
from leveret.analytics.schemas import tables


def line(table, **values):
    """A row as the broker writes it."""
    return json.dumps(row(table, **values), ensure_ascii=False, separators=(",", ":"))


def fits(table, text):
    """Return whether a line is of the form."""
    return re.match(line_pattern(tables()[table]), text) is not None


@pytest.mark.parametrize("table", sorted(tables()))
def test_rows_of_every_table_are_of_the_form(table):
    """A row as the broker writes it, with the columns in the order of the declaration, is of the form."""
    assert fits(table, line(table))


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "start", "detail": {}},
        {"kind": "a\u001f", "detail": {"k": "v", "очередь": '"'}},
        {"name": "\\ \n \t \u007f \U0001f407", "ts": -5, "mono_us": 10**18 - 1},
    ],
)
def test_any_text_and_any_number_that_fits_is_of_the_form(values):
    """Texts of any characters, escaped as they must be, and numbers of 18 digits are of the form."""
    assert fits("event", line("event", **values))


def test_lists_and_columns_that_may_be_null_are_of_the_form():
    """Histograms, lists of alarms, and the one column that may be null are of the form."""
    assert fits("latency_hist", line("latency_hist", **histogram([5, 700, 9_000_000])))
    assert fits("node_interval", line("node_interval", alarms=["memory", "disk"]))
    assert fits("bench_cost", line("bench_cost", flushes=None))


GOOD = line("event", kind="x", detail={"a": "b"})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[1]",
        GOOD + GOOD,
        GOOD + " ",
        " " + GOOD,
        GOOD.replace(":", ": ", 1),
        GOOD.replace('"v":1', '"v":2'),
        GOOD.replace('"v":1', '"v":1.0'),
        GOOD.replace('"v":1,', ""),
        GOOD.replace('"kind":"x"', '"kind":null'),
        GOOD.replace('"kind":"x"', '"kind":5'),
        GOOD.replace('"kind":"x"', '"kind":"\\ud83d"'),
        GOOD.replace('"kind":"x"', '"kind":"\t"'),
        GOOD.replace('"kind":"x"', '"kind":"x","more":1'),
        GOOD.replace('"kind":"x"', '"kind":"x","kind":"y"'),
        GOOD.replace('"detail":{"a":"b"}', '"detail":{"a":5}'),
        GOOD.replace('"detail":{"a":"b"}', '"detail":[]'),
        re.sub(r'"ts":\d+', '"ts":1234567890123456789', GOOD),
        re.sub(r'"ts":\d+', '"ts":007', GOOD),
        re.sub(r'"ts":\d+', '"ts":-0', GOOD),
        re.sub(r'"ts":\d+', '"ts":NaN', GOOD),
        re.sub(r'"ts":\d+', '"ts":"1"', GOOD),
        re.sub(r'"ts":\d+', '"ts":1.5', GOOD),
    ],
)
def test_what_parsers_may_disagree_about_is_not_of_the_form(text):
    """Other types, other columns, values that do not fit, escapes of half characters and second rows are not."""
    assert not fits("event", text)


def test_a_bucket_beyond_32_bits_is_not_of_the_form():
    """An index that another parser would cut off to 32 bits is not of the form."""
    good = line("latency_hist", **histogram([5]))

    assert fits("latency_hist", good)
    assert not fits("latency_hist", good.replace('"i":5', '"i":4294967301'))


@pytest.mark.parametrize(
    ("number", "is_of_the_form"),
    [
        ("0", True),
        ("-0.0", True),
        ("0.00012345678901234567", True),
        ("-1.2345678901234567e-05", True),
        ("1e+16", True),
        ("5e-324", True),
        ("01.5", False),
        (".5", False),
        ("1.", False),
        ("1e400", False),
        ("1" * 30, False),
    ],
)
def test_decimal_numbers_as_python_writes_them_are_of_the_form(number, is_of_the_form):
    """Numbers below 1e100 are of the form as Python writes them; those with leading zeros, or larger ones, are not."""
    good = line("queue_interval", ingress_ewma=1.25)

    assert is_of_the_form is fits("queue_interval", good.replace("1.25", number, 1))

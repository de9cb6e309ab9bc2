import json

import pytest
from made_rows import histogram, row

from leveret.analytics.fast_lines import is_readable, parse
from leveret.analytics.schemas import tables

READABLE = sorted(name for name in tables() if is_readable(tables()[name]))


def line(table, **values):
    """A row as the broker writes it."""
    return json.dumps(row(table, **values), ensure_ascii=False, separators=(",", ":"))


def parsed(table, *lines):
    """Return the rows of a file of these lines, or None."""
    text = "".join(f"{each}\n" for each in lines)
    found = parse(text.encode("utf-8", "surrogatepass"), tables()[table])
    return None if found is None else found.to_pylist()


@pytest.mark.parametrize("table", READABLE)
def test_rows_of_tables_without_maps_are_parsed(table):
    """Rows as the broker writes them are parsed, each with all columns in the order of the declaration."""
    rows = [row(table), row(table, 5)]

    found = (
        parsed(table, *map(json.dumps, rows)),
        parsed(table, *(json.dumps(each, separators=(",", ":")) for each in rows)),
    )

    assert (None, rows) == found
    assert [column.name for column in tables()[table].columns] == list(found[1][0])


def test_tables_with_maps_are_not_parsed():
    """Arrow's parser knows no maps, so events and costs are for another one."""
    assert {"event", "bench_cost"} == set(tables()) - set(READABLE)


def test_lists_and_any_text_are_parsed():
    """Histograms, alarms, escapes and characters of any language are parsed as they were written."""
    buckets = row("latency_hist", name='q"\\ \n очередь \U0001f407 \u007f', **histogram([5, 700, 9_000_000]))
    alarms = row("node_interval", alarms=["memory", "disk"])

    assert [buckets, buckets] == parsed(
        "latency_hist", *[json.dumps(buckets, separators=(",", ":"), ensure_ascii=False)] * 2
    )
    assert [alarms] == parsed("node_interval", json.dumps(alarms, separators=(",", ":")))


def test_a_file_without_lines_has_no_rows():
    """An empty file is one without rows."""
    assert [] == parsed("queue_interval")


GOOD = line("queue_interval", ingress_ewma=1.25, queue="x")


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "null",
        "true",
        "[1]",
        '"text"',
        f"{GOOD}null",
        f"{GOOD} null }}",
        f"{GOOD}{GOOD}",
        f"{GOOD}{GOOD[:-1]}\n}}",
        f"{GOOD},{GOOD}",
        f"{GOOD}]}}",
        f" {GOOD}",
        f"\ufeff{GOOD}",
        f"{GOOD} ",
        f"{GOOD}\r",
        f"{GOOD[:200]}",
        f"{GOOD[:200]}{GOOD}",
        GOOD.replace('"v":1', '"v":2'),
        GOOD.replace('"v":1,', ""),
        GOOD.replace('"v":1,', '"v":1,"v":1,'),
        GOOD.replace('"ready":0', '"ready":null'),
        GOOD.replace('"ready":0', '"ready":"0"'),
        GOOD.replace('"ready":0', '"ready":0.0'),
        GOOD.replace('"ready":0', '"ready":00'),
        GOOD.replace('"ready":0', '"ready":12345678901234567890'),
        GOOD.replace('"ready":0,', ""),
        GOOD.replace('"ready":0', '"ready":0,"more":1'),
        GOOD.replace('"ready":0', '"ready":0,"ready":0'),
        GOOD.replace("1.25", "NaN"),
        GOOD.replace("1.25", "-Infinity"),
        GOOD.replace("1.25", "1e400"),
        GOOD.replace("1.25", "1" * 400),
        GOOD.replace("1.25", "true"),
        GOOD.replace('"queue":"x"', '"queue":5'),
        GOOD.replace('"queue":"x"', '"queue":"\ud83d"'),
        GOOD.replace('"queue":"x"', '"queue":"\\ud83d"'),
        GOOD.replace('"queue":"x"', '"queue":"\t"'),
        GOOD.replace('"queue":"x"', '"queue":"\n"'),
        GOOD.replace('"queue":"x"', '"queue":"}"'),
    ],
)
def test_a_file_with_a_line_that_is_not_surely_a_row_is_not_parsed(text):
    """Damaged lines, and what parsers may disagree about, make the file one for another parser, wherever the line is."""
    for lines in ([text], [GOOD, text], [text, GOOD], [GOOD, text, GOOD]):
        assert parsed("queue_interval", *lines) is None


def test_a_last_line_without_an_end_is_not_parsed():
    """A file that ends within a line, or without the end of the last one, is not parsed."""
    for length in range(1, len(GOOD) + 1):
        assert parse(f"{GOOD}\n{GOOD[:length]}".encode(), tables()["queue_interval"]) is None


@pytest.mark.parametrize(
    "wrong", ["null", "{}", '{"i":1}', '{"i":4294967301,"c":1}', '{"i":1,"c":1,"x":1}', "[]"]
)
def test_what_is_wrong_within_a_list_is_seen(wrong):
    """A bucket that is null, lacks a value or has another type makes the file one for another parser."""
    good = line("latency_hist", **histogram([5]))
    bucket = good[good.index('"b":[') + 5 : good.rindex("]")]

    assert parsed("latency_hist", good.replace(bucket, f"{bucket},{bucket}")) is not None
    assert parsed("latency_hist", good.replace(bucket, wrong)) is None
    assert parsed("latency_hist", good.replace(bucket, f"{bucket},{wrong}")) is None

import json

import pytest
from samples.made_rows import Made, index, quiet, row

from leveret.analytics import paging
from leveret.analytics.job import run
from leveret.analytics.reading import (
    GREATEST,
    IMPOSSIBLE,
    INCOMPLETE,
    LONGEST,
    OTHER_VERSION,
    TIMES,
    UNREADABLE,
    Counted,
    Input,
    InputError,
)
from leveret.analytics.schemas import tables


def nodes(count):
    """Rows of a node, five seconds apart."""
    return [row("node_interval", 5 * number, published=number) for number in range(count)]


def without(whole, name):
    """A row that lacks a column."""
    return {key: value for key, value in whole.items() if key != name}


def test_whole_lines_are_rows(data):
    """Every line is read with the types of the declaration, and nothing is set aside."""
    made = data({"node_interval": nodes(3)})

    rows = made.table("node_interval")

    assert tables()["node_interval"].schema.names == rows.columns
    assert [0, 1, 2] == sorted(found["published"] for found in rows.collect())
    assert Counted(3, {}, {("2026-11-21", "07"): 3}) == made.counted["node_interval"]


BAD = {
    "cut": (json.dumps(row("node_interval"))[:50], UNREADABLE),
    "no JSON": ("hello", UNREADABLE),
    "blank": ("", UNREADABLE),
    "null": ("null", UNREADABLE),
    "an array": ("[1, 2]", UNREADABLE),
    "an array of a row": (json.dumps([row("node_interval")]), UNREADABLE),
    "text for a number": (json.dumps(row("node_interval", rss="much")), UNREADABLE),
    "a fraction for a whole number": (json.dumps(row("node_interval", rss=1.5)), UNREADABLE),
    "too large for 64 bits": (json.dumps(row("node_interval", rss=2**63)), UNREADABLE),
    "no number": (json.dumps(row("queue_interval", capacity=float("nan"))), UNREADABLE),
    "two on a line": (json.dumps(row("node_interval"), separators=(",", ":")) * 2, UNREADABLE),
    "a column is missing": (json.dumps(without(row("node_interval"), "cpu_user_us")), INCOMPLETE),
    "null for a number": (json.dumps(row("node_interval", rss=None)), INCOMPLETE),
    "a later version": (json.dumps(row("node_interval", v=2)), OTHER_VERSION),
}


@pytest.mark.parametrize(("line", "reason"), BAD.values(), ids=BAD)
def test_a_line_that_is_no_row_is_set_aside(data, line, reason):
    """A bad line between good ones is counted by its reason and kept with its file; the good ones are read."""
    name = "queue_interval" if "NaN" in line else "node_interval"
    made = data({name: [row(name), line, row(name, 5)]})

    count = made.table(name).count()
    kept = made.spark.read.parquet(str(made.output / "quarantine" / name)).collect()

    assert 2 == count
    assert (3, {reason: 1}) == (made.counted[name].lines, dict(made.counted[name].aside))
    assert [(reason, line)] == [(found["reason"], found["line"]) for found in kept]
    assert kept[0]["file"].endswith("node_interval-1-0.jsonl") or "queue" in name


HOSTILE = {
    "a time of the far future": ("node_interval", {"ts": 2**63 - 1}),
    "a time before 1970": ("node_interval", {"ts": -1}),
    "an object of the far future": ("queue_interval", {"since_ms": TIMES["since_ms"][1] + 1}),
    "a clock that overflows": ("queue_interval", {"mono_us": -(2**63)}),
    "a count that overflows": ("queue_interval", {"ready": GREATEST + 1}),
    "an infinite number": ("queue_interval", {"capacity": 1e308}),
    "a bucket that is none": ("latency_hist", {"b": [{"i": index(2**63 - 1) + 1, "c": 1}]}),
    "a negative bucket": ("latency_hist", {"b": [{"i": -1, "c": 1}]}),
    "a negative number of samples": ("latency_hist", {"b": [{"i": 1, "c": -1}]}),
    "too many samples": ("latency_hist", {"b": [{"i": 1, "c": 2**62}]}),
    "a bucket without a number": ("latency_hist", {"b": [{"i": 1}]}),
}


@pytest.mark.parametrize(("name", "values"), HOSTILE.values(), ids=HOSTILE)
def test_sec_46_numbers_that_no_broker_writes_are_set_aside(data, name, values):
    """One row with an impossible number is counted and kept aside, and never decides how much memory charts take."""
    line = json.dumps(row(name, 5, **values)).replace("1e+308", "1e400")
    greatest = row(name, 10, **{"since_ms": TIMES["since_ms"][1]} if name == "queue_interval" else {})
    made = data({name: [row(name), line, greatest]})

    assert 2 == made.table(name).count()
    assert {IMPOSSIBLE: 1} == dict(made.counted[name].aside)


def test_sec_46_a_line_that_is_too_long_is_no_row(data):
    """A line of megabytes is set aside with its beginning, and not parsed: Spark would hold several copies of it."""
    line = json.dumps(row("queue_interval", queue="q" * LONGEST))
    made = data({"queue_interval": [row("queue_interval"), line]})

    assert 1 == made.table("queue_interval").count()
    assert {UNREADABLE: 1} == dict(made.counted["queue_interval"].aside)
    (kept,) = made.spark.read.parquet(str(made.output / "quarantine" / "queue_interval")).collect()
    assert line[:LONGEST] == kept["line"]


def test_sec_46_times_in_parquet_that_no_broker_writes_are_set_aside(spark, tmp_path):
    """Parquet may come from elsewhere, too: rows with impossible times are counted, and no job gets them."""
    rows = [(1, each) for each in (-1, TIMES["ts"][0], TIMES["ts"][1], 2**63 - 1)]
    spark.createDataFrame(rows, "v int, ts bigint").write.parquet(str(tmp_path / "in" / "node_interval"))
    made = Input(spark, tmp_path / "in", tmp_path / "out")

    assert [*TIMES["ts"]] == sorted(found["ts"] for found in made.table("node_interval").collect())
    assert (2, {IMPOSSIBLE: 2}) == (
        made.counted["node_interval"].rows,
        dict(made.counted["node_interval"].aside),
    )


def test_sec_46_a_clock_that_jumps_makes_no_more_bins_than_a_chart_has(spark, tmp_path):
    """A row whose monotonic clock is a century ahead is spread over a few hundred bins, not over that century."""
    century_us = 100 * 366 * 86_400_000_000
    rows = [row("queue_interval", 5 * number, vhost="/", queue="q", mode="standard") for number in range(3)]
    rows[-1]["mono_us"] += century_us

    run(paging.JOB, Made(spark, {"queue_interval": rows}), tmp_path / "paging", quiet)

    assert spark.read.parquet(str(tmp_path / "paging" / "residence")).count() < 1000


def test_the_judgement_does_not_depend_on_the_columns_asked_for(data):
    """A line with a bad value in one column is no row for those who ask for another one either."""
    made = data({"node_interval": [*nodes(2), row("node_interval", rss="much", published=7)]})

    assert [0, 1] == sorted(
        found["published"] for found in made.table("node_interval").select("published").collect()
    )


def test_octets_that_are_no_text_are_set_aside(data, tmp_path):
    """A line that is not UTF-8 is no row, and the others are."""
    made = data({"node_interval": nodes(1)})
    (file,) = (tmp_path / "in").rglob("*.jsonl")
    whole = json.dumps(row("node_interval", 5, node="x")).encode()
    file.write_bytes(file.read_bytes() + whole.replace(b'"x"', b'"\xff\xfe"') + b"\n" + whole + b"\n")

    count = made.table("node_interval").count()

    assert 3 == made.counted["node_interval"].lines
    assert count == made.counted["node_interval"].rows
    assert count in {2, 3}


def test_names_of_all_alphabets_come_through(data):
    """Names are what clients called things: quotes, newlines, dollars, other alphabets."""
    names = ['}{"v":1', 'q"1', "a\nb", "$x^2$", "очередь", "😀", "a/b=c", "\\"]
    made = data({"queue_interval": [row("queue_interval", queue=name) for name in names]})

    assert sorted(names) == sorted(found["queue"] for found in made.table("queue_interval").collect())


def test_unfinished_files_are_not_read(data, tmp_path):
    """Files still being written have another name, and are left alone."""
    made = data({"node_interval": nodes(2)})
    (file,) = (tmp_path / "in").rglob("*.jsonl")
    file.with_name(".node_interval-2-0.jsonl.tmp").write_text("half a li")
    file.with_name(".node_interval-3-0.jsonl").write_text("half a li")

    assert 2 == made.table("node_interval").count()


def test_only_a_column_that_may_be_null_is_null(data):
    """A disk that counts no flushes leaves the column null; the row is whole."""
    made = data({"bench_cost": [row("bench_cost", flushes=None, counters={"commits": 3})]})

    (found,) = made.table("bench_cost").collect()

    assert (None, {"commits": 3}) == (found["flushes"], found["counters"])


def test_a_table_that_is_not_there_is_reported(data, tmp_path):
    """Asking for a table of which there is nothing names the directory and the table."""
    made = data({})

    assert not made.has("event")
    with pytest.raises(InputError, match="no table event in "):
        made.table("event")


def test_parquet_is_read_as_it_is(spark, data, tmp_path):
    """Compacted tables have the same rows, with or without directories by hour."""
    made = data({"node_interval": nodes(4)})
    made.placed("node_interval").write.partitionBy("dt", "hour").parquet(
        str(tmp_path / "p" / "node_interval")
    )

    again = Input(spark, tmp_path / "p", tmp_path / "out")

    assert sorted(made.table("node_interval").collect()) == sorted(again.table("node_interval").collect())
    assert 4 == again.counted["node_interval"].rows


@pytest.mark.parametrize("name", ["a b%20c=d ü", "*?[a]{b,c}^\\d", "[{"])
def test_directories_may_be_called_anything(spark, data, tmp_path, name):
    """Spaces, percent and equals signs, and what patterns are made of, in names of directories do not lead elsewhere."""
    made = data({"node_interval": [*nodes(2), "{"]})
    odd = tmp_path / name
    made.directory.rename(odd)

    again = Input(spark, odd, odd / "out put")

    assert 2 == again.table("node_interval").count()
    (odd / "out put" / "quarantine").rename(tmp_path / "quarantine")
    assert ["{"] == [
        found["line"] for found in spark.read.parquet(f"{tmp_path}/quarantine/node_interval").collect()
    ]


def test_what_an_earlier_input_saw_is_not_seen_again(spark, data, tmp_path):
    """Rows are kept while a command runs, but what has come since is seen by the next who looks."""
    made = data({"node_interval": nodes(2)})
    assert 2 == made.table("node_interval").count()
    later = data({"node_interval": [*nodes(5), "{"]})

    assert 5 == later.table("node_interval").count()
    assert (tmp_path / "out" / "quarantine" / "node_interval").exists()


def test_the_quarantine_is_that_of_the_last_run(spark, data, tmp_path):
    """A file that has been mended is no longer in the quarantine of the next run."""
    data({"node_interval": [*nodes(2), "{"]}).table("node_interval")
    data({"node_interval": nodes(3)}).table("node_interval")

    assert [] == spark.read.parquet(f"{tmp_path}/out/quarantine/node_interval").collect()

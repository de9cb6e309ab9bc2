import json
import shutil

import pytest
from pyspark.testing import assertDataFrameEqual
from samples.made_rows import quiet, row

from leveret.analytics.compact import COMPACT, KEPT, TABLES, VALIDATE, WRITTEN, compact, validate
from leveret.analytics.job import run
from leveret.analytics.reading import Input, InputError


def queues(count, **values):
    """Rows of two queues, five seconds apart."""
    return [
        row("queue_interval", 5 * (number // 2), queue=f"q{number % 2}", pub=number, **values)
        for number in range(count)
    ]


def actions(made):
    """Return what was done with which rows."""
    return [
        (found["table"], found["rows"], found["before"], found["action"])
        for found in made["partitions"].collect()
    ]


def test_no_row_is_lost_or_changed(spark, data):
    """Parquet has the rows of the JSON, all columns equal, in directories by date and hour."""
    made = data({"queue_interval": queues(6), "event": [row("event", kind="start", detail={"a": "b"})]})

    done = actions(compact(made))
    again = Input(spark, made.output / TABLES, made.output)

    assert [("event", 1, 0, WRITTEN), ("queue_interval", 6, 0, WRITTEN)] == sorted(done)
    assertDataFrameEqual(again.table("queue_interval"), made.table("queue_interval"))
    assert [{"a": "b"}] == [found["detail"] for found in again.table("event").collect()]
    assert (made.output / TABLES / "event" / "dt=2026-11-21" / "hour=07").is_dir()


def test_doing_it_twice_changes_nothing(spark, data):
    """A second time nothing is written, and the files are those of the first."""
    made = data({"queue_interval": queues(6)})
    compact(made)
    before = {path: path.stat().st_mtime_ns for path in (made.output / TABLES).rglob("*.parquet")}

    done = actions(compact(Input(spark, made.directory, made.output)))

    assert [("queue_interval", 6, 6, KEPT)] == done
    assert before == {path: path.stat().st_mtime_ns for path in (made.output / TABLES).rglob("*.parquet")}


def test_an_output_may_be_called_like_a_pattern(spark, data, tmp_path):
    """Earlier output in the directory is found again, and so are the tables that a page is made of."""
    made, output = data({"queue_interval": queues(6)}), tmp_path / "[k]*{e,p}?\\t"
    for _ in range(2):
        page = run(COMPACT, Input(spark, made.directory, output), output / "compact", quiet)

    assert "6 rows of 1 table in 1 hour; 0 new rows." == page.lead


def test_an_hour_that_grew_gets_its_new_rows(spark, data):
    """Rows that came later are there after the next time, none of them twice."""
    made = data({"queue_interval": queues(4)})
    compact(made)
    grown = data({"queue_interval": queues(10)})

    assert [("queue_interval", 10, 4, WRITTEN)] == actions(compact(grown))
    assert sorted(range(10)) == sorted(
        found["pub"]
        for found in Input(spark, made.output / TABLES, made.output).table("queue_interval").collect()
    )


def test_rows_whose_json_is_gone_stay(spark, data, tmp_path):
    """Rows that the export's retention removes in the meantime are kept in Parquet, those of other hours too."""
    made = data({"queue_interval": queues(6)})
    compact(made)
    shutil.rmtree(tmp_path / "in")
    fewer = data({"queue_interval": queues(2)})
    later = tmp_path / "in" / "queue_interval" / "dt=2026-11-21" / "hour=08"
    (tmp_path / "in" / "queue_interval" / "dt=2026-11-21" / "hour=07").rename(later)
    done = actions(compact(fewer))
    stored = Input(spark, made.output / TABLES, made.output)

    assert [("queue_interval", 2, 0, WRITTEN)] == done
    assert 8 == stored.table("queue_interval").count()


def test_fewer_rows_of_an_hour_do_not_replace_more(spark, data, tmp_path):
    """An hour of which half the files are gone is not written over the whole one."""
    made = data({"queue_interval": queues(6)})
    compact(made)
    shutil.rmtree(tmp_path / "in")

    assert [("queue_interval", 6, 6, KEPT)] == actions(compact(data({"queue_interval": queues(2)})))


def test_exports_of_several_brokers_come_together(spark, data, tmp_path):
    """An hour that several brokers export gets the rows of each, however many each has."""
    compact(data({"queue_interval": queues(6)}))
    shutil.rmtree(tmp_path / "in")
    other = data({"queue_interval": queues(8, node="other@host"), "event": [row("event", kind="start")]})

    assert [("event", 1, 0, WRITTEN), ("queue_interval", 14, 6, WRITTEN)] == sorted(actions(compact(other)))
    assert {("here", 6), ("other@host", 8)} == {
        (found["node"], found["count"])
        for found in Input(spark, other.output / TABLES, other.output)
        .table("queue_interval")
        .groupBy("node")
        .count()
        .collect()
    }


def test_what_is_no_row_is_set_aside_and_counted(data):
    """A cut line is not in Parquet, and is reported."""
    made = data({"queue_interval": [*queues(2), "{half"]})

    assert [("queue_interval", 2, 0, WRITTEN)] == actions(compact(made))
    assert 1 == sum(made.counted["queue_interval"].aside.values())


def test_without_json_there_is_nothing_to_do(data, tmp_path):
    """An empty directory is reported, and so are files that lie in no hour."""
    with pytest.raises(InputError, match="no JSON Lines tables in "):
        compact(data({}))

    (tmp_path / "in" / "event").mkdir()
    (tmp_path / "in" / "event" / "event-1.jsonl").write_text("{}\n")
    made = data({})

    (tmp_path / "in" / "node_interval").mkdir()
    (tmp_path / "in" / "node_interval" / "x.jsonl").write_text(json.dumps(row("node_interval")) + "\n")
    with pytest.raises(InputError, match="no directories"):
        compact(made)


def found_in(made):
    """Return the number of rows of each finding, by table and kind of contradiction."""
    return {(found["table"], found["what"]): found["rows"] for found in made["findings"].collect()}


def test_sound_tables_have_no_findings(data):
    """Rows as the export writes them contradict nothing, and have no gaps."""
    made = data({
        "queue_interval": queues(8),
        "node_interval": [row("node_interval", 5 * number) for number in range(10)],
        "event": [row("event", 1, kind="start")] * 2,
    })  # fmt: skip

    result = validate(made)

    assert {} == found_in(result)
    assert 0 == result["gaps"].count()
    assert [("event", 2, 2, 0), ("node_interval", 10, 10, 0), ("queue_interval", 8, 8, 0)] == [
        tuple(found) for found in result["tables"].orderBy("table").collect()
    ]


def test_counters_that_fall_are_found_once_for_each_fall(data):
    """A counter may start again with another boot or another making of the object, and at no other time."""
    pubs = [
        ("boot", 1, 10),
        ("boot", 1, 20),
        ("boot", 1, 15),
        ("boot", 2, 0),
        ("later", 1, 0),
        ("later", 1, 5),
    ]
    rows = [
        row("queue_interval", 5 * at, queue="q", boot_id=boot, since_ms=since, pub=pub)
        for at, (boot, since, pub) in enumerate(pubs)
    ]

    assert {("queue_interval", "pub decreased"): 1} == found_in(validate(data({"queue_interval": rows})))


def test_sums_that_do_not_add_up_are_found(data):
    """States that are not the ready messages, publishes that went nowhere, buckets that are not the samples."""
    made = data({
        "queue_interval": [
            row("queue_interval", ready=3, alpha=1, beta=1, t_ab=1),
            row("queue_interval", 5, ready=1, delta=1, t_ab=1, t_to_delta=1),
        ],
        "exchange_interval": [row("exchange_interval", pub_in=5, routed=4)],
        "latency_hist": [row("latency_hist", count=3, b=[{"i": 1, "c": 2}])],
    })  # fmt: skip

    assert {
        ("queue_interval", "alpha + beta + gamma + delta differs from ready"): 1,
        ("exchange_interval", "pub_in differs from routed + returned + dropped"): 1,
        ("latency_hist", "count differs from the sum of the buckets"): 1,
    } == found_in(validate(made))


def test_a_row_that_is_there_twice_and_a_clock_that_was_set_are_found(data):
    """A moment recorded twice, and a wall clock that jumps while the monotonic clock does not, are findings."""
    rows = [row("node_interval", second) for second in (0, 5, 5, 10)]
    rows.append(row("node_interval", 15, ts=rows[0]["ts"] + 3_600_000))

    assert {
        ("node_interval", "duplicate row"): 1,
        ("node_interval", "wall clock was changed"): 1,
    } == found_in(validate(data({"node_interval": rows})))


def test_missing_intervals_are_found(data):
    """Three intervals that were not written are a gap of fifteen seconds; a restart is none."""
    seconds = [0, 5, 10, 15, 35, 40, 45]
    rows = [row("node_interval", second) for second in seconds]
    rows += [row("node_interval", 1000 + second, boot_id="later") for second in (0, 5, 10)]

    (gap,) = validate(data({"node_interval": rows}))["gaps"].collect()

    assert ("here", "boot", 15.0) == (gap["node"], gap["boot_id"], gap["missing_s"])


def test_the_reports_say_it(data, tmp_path):
    """The page of `validate` counts what was set aside, that of `compact` the rows."""
    made = data({"node_interval": [row("node_interval", 5 * number) for number in range(4)] + ["x"]})

    checked = run(VALIDATE, made, tmp_path / "out" / "validate", lambda _text: None)
    written = run(COMPACT, made, tmp_path / "out" / "compact", lambda _text: None)

    assert "Lines set aside: 1 of 5." == checked.facts[0]
    assert "4 rows of 1 table in 1 hour; 4 new rows." == written.lead

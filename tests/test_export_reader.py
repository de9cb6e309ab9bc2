"""`leveret.export`: the files of the export as Arrow tables."""

import asyncio
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest
from processes.commands import execute

from bench.demo_export import LEAST, Demo
from leveret import export
from leveret.broker.counters.histogram import Histogram
from leveret.broker.export.tables import TABLES

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "docs" / "howto" / "telemetry.ipynb"
START = 1_795_245_600_000
"""2026-11-21 07:20 UTC, ms."""
EMPTY = {"integer": 0, "long": 0, "double": 0.0, "string": "", "boolean": False}
DECLARED = json.loads((ROOT / "analytics" / "tables.json").read_text(encoding="utf-8"))


def line(table, seconds=0.0, **values):
    """Return a row of a table, so many seconds after the start."""
    made = {
        column["name"]: EMPTY[kind]
        if isinstance(kind := column["type"], str)
        else {"array": [], "map": {}}[kind["type"]]
        for column in DECLARED[table]
    }
    return made | {"v": 1, "ts": START + round(seconds * 1000), "mono_us": round(seconds * 1e6)} | values


def write(folder, table, rows, place="dt=2026-11-21/hour=07", name="rows.jsonl"):
    target = folder / table / place / name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(
        b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in rows)
    )
    return folder


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The export of a real broker: two minutes of twelve queues, with its clock moved on."""
    folder = tmp_path_factory.mktemp("demo")
    asyncio.run(Demo(folder / "in", folder / "data", minutes=2, queues=LEAST, step=5).run())
    return folder / "in"


def test_every_table_of_a_broker_is_read(demo):
    """Each table that a broker writes has as many rows as its files have lines, with the declared columns."""
    expected = {
        name: sum(len(path.read_bytes().splitlines()) for path in (demo / name).rglob("*.jsonl"))
        for name in TABLES
        if (demo / name).is_dir()
    }

    assert list(expected) == export.tables(demo)
    for name, count in expected.items():
        rows = export.read(demo, name)
        assert (count, [column.name for column in export.columns(name)]) == (rows.num_rows, rows.column_names)


def test_values_are_those_of_the_files(demo):
    """Numbers, texts, maps and histograms are those that the lines have, in the order of time."""
    for name in ("queue_interval", "latency_hist", "event"):
        told = [
            json.loads(text)
            for path in (demo / name).rglob("*.jsonl")
            for text in path.read_bytes().splitlines()
        ]
        read = export.read(demo, name).to_pylist()
        for row in read:
            row["ts"] = round(row["ts"].timestamp() * 1000)
            if "detail" in row:
                row["detail"] = dict(row["detail"])

        assert sorted(map(json.dumps, told)) == sorted(map(json.dumps, read))
        assert [row["mono_us"] for row in read] == sorted(row["mono_us"] for row in read)


@pytest.mark.parametrize("table", TABLES)
def test_types_are_those_of_the_page(table, tmp_path):
    """Arrow's types follow from those of docs/export.md, also without rows; a column knows its unit and kind."""
    found = {
        "bigint": "int64",
        "int": "int32",
        "boolean": "bool",
        "map<string,string>": "map<string, string>",
        "map<string,bigint>": "map<string, int64>",
    }
    found |= {"array<string>": "list<item: string>"}
    found |= {"array<struct<i:int,c:bigint>>": "list<item: struct<i: int32, c: int64>>"}
    schema = export.read(write(tmp_path, table, []), table).schema

    for column in export.columns(table):
        is_time = column.unit == "ms since 1970, UTC"
        expected = "timestamp[ms, tz=UTC]" if is_time else found.get(column.type, column.type)
        field = schema.field(column.name)
        assert expected == str(field.type)
        assert {"kind": column.kind, "unit": column.unit, "doc": column.doc} == {
            name.decode(): text.decode() for name, text in field.metadata.items()
        }


def test_parquet_gives_the_same_rows(demo, tmp_path):
    """A table in Parquet, in the folders of `compact`, is read as the same table."""
    from pyarrow import parquet

    for name in export.tables(demo):
        rows = export.read(demo, name)
        target = tmp_path / name / "dt=2026-11-24" / "hour=14" / "part-0.parquet"
        target.parent.mkdir(parents=True)
        parquet.write_table(rows, target)

        assert rows.equals(export.read(tmp_path, name))


def test_since_until_vhost_and_queue_limit_the_rows(tmp_path):
    """Only the rows of a range, virtual host and queue are returned; both ends of the range belong to it."""
    rows = [
        line("queue_interval", at, queue=queue, vhost=vhost)
        for at in range(5)
        for queue, vhost in (("a", "/"), ("b", "/"), ("a", "v"))
    ]
    folder = write(tmp_path, "queue_interval", rows)
    begin = datetime.fromtimestamp(START / 1000, UTC)

    found = export.read(
        folder,
        "queue_interval",
        since=begin + timedelta(seconds=1),
        until="2026-11-21T07:20:03",
        vhost="/",
        queue="a",
        only=["ts", "queue"],
    )

    assert [{"ts": begin + timedelta(seconds=at), "queue": "a"} for at in (1, 2, 3)] == found.to_pylist()


def test_a_queue_of_latencies_is_that_of_its_scope(tmp_path):
    """Histograms of a queue are those of its name and scope."""
    rows = [
        line("latency_hist", scope=scope, name=name)
        for scope, name in (("queue", "a"), ("node", "a"), ("queue", "b"))
    ]

    found = export.read(
        write(tmp_path, "latency_hist", rows), "latency_hist", queue="a", only=["scope", "name"]
    )

    assert [{"scope": "queue", "name": "a"}] == found.to_pylist()


def test_folders_of_other_hours_are_not_opened(tmp_path):
    """A damaged file of an hour outside the range does not matter, and one within it does."""
    write(tmp_path, "queue_interval", [line("queue_interval")])
    write(tmp_path, "queue_interval", [b"damaged\n"], place="dt=2026-11-20/hour=23")

    assert export.read(tmp_path, "queue_interval", since="2026-11-21T07:00").num_rows == 1
    with pytest.raises(export.ExportError, match=r"rows.jsonl:1: "):
        export.read(tmp_path, "queue_interval")


def test_unfinished_files_are_left_out(tmp_path):
    """A file that the broker is still writing is not read."""
    write(tmp_path, "event", [line("event")])
    write(tmp_path, "event", [b"half"], name=".event.jsonl.tmp")
    write(tmp_path, "event", [b"half"], name=".event.jsonl")

    assert export.read(tmp_path, "event").num_rows == 1


def test_octets_that_are_no_text_are_replaced(tmp_path):
    """An octet that is not UTF-8, which the export writes as half of a pair, becomes U+FFFD."""
    text = json.dumps(line("conn_interval", client="pika NAME")).replace("NAME", "\\udcff")

    found = export.read(write(tmp_path, "conn_interval", [text.encode() + b"\n"]), "conn_interval")

    assert ["pika \ufffd"] == found["client"].to_pylist()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"table": "queues"}, "no table 'queues'; tables are: queue_interval, "),
        ({"table": "event", "queue": "a"}, "event has no queues: queue does not apply to it"),
        (
            {"table": "node_interval", "vhost": "/"},
            "node_interval has no virtual hosts: vhost does not apply to it",
        ),
        (
            {"table": "bench_run", "since": "2026-11-21"},
            "bench_run has no times: since and until do not apply to it",
        ),
        ({"table": "event", "since": "yesterday"}, "since: 'yesterday' is not a time in ISO 8601"),
        ({"table": "event", "only": ["ts", "queues"]}, "event has no column queues"),
        ({"table": "conn_interval"}, "no files of conn_interval in "),
    ],
)
def test_wrong_questions_are_refused(asked, message, tmp_path):
    """An unknown table, column or time, and a condition that does not apply, is named in the error."""
    write(tmp_path, "event", [line("event")])

    with pytest.raises(export.ExportError, match=message):
        export.read(tmp_path, **asked)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (b'{"v":1}\n', "missing required field"),
        (json.dumps(line("event", v=2)).encode() + b"\n", "version 2 of the table, not 1"),
        (json.dumps(line("event", ts="now")).encode() + b"\n", r"Expected `int`, got `str` - at `\$.ts`"),
    ],
)
def test_a_line_that_is_no_row_is_named(bad, message, tmp_path):
    """A line that is not a complete row raises an error with its file and number."""
    write(tmp_path, "event", [line("event"), bad])

    with pytest.raises(export.ExportError, match=rf"rows\.jsonl:2: .*{message}"):
        export.read(tmp_path, "event")


def test_a_missing_directory_is_named(tmp_path):
    """A directory that does not exist is named in the error."""
    with pytest.raises(export.ExportError, match="nowhere is not a directory"):
        export.tables(tmp_path / "nowhere")


def test_without_the_extra_the_error_says_what_to_install(tmp_path):
    """Without pyarrow the module can be imported, and `read` names the extra; neither Spark nor a broker is loaded."""
    write(tmp_path, "event", [line("event")])
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from leveret import export\n"
        f"print(export.tables({str(tmp_path)!r}), 'pyspark' in sys.modules, 'leveret.broker.server.server' in sys.modules)\n"
        f"try: export.read({str(tmp_path)!r}, 'event')\n"
        "except ImportError as error: print(error)\n"
    )

    done = execute([sys.executable, "-c", program], check=True, cwd=ROOT)

    assert done.stdout == (
        "['event'] False False\nmissing package pyarrow; install it with: pip install 'leveret[notebook]'\n"
    )


def test_rates_are_between_rows_of_one_object():
    """Counters begin again with each run and each declaration, where there is no rate; areas wrap around."""
    key = {"node": "here", "vhost": "/"}
    rows = [
        {**key, "queue": "b", "boot_id": "1", "since_ms": 0, "mono_us": 3_000_000, "pub": 40, "area_ready": 5_000_000},
        {**key, "queue": "a", "boot_id": "1", "since_ms": 0, "mono_us": 3_000_000, "pub": 30, "area_ready": 2_000_000},
        {**key, "queue": "a", "boot_id": "1", "since_ms": 0, "mono_us": 1_000_000, "pub": 10, "area_ready": 2**62 - 2_000_000},
        {**key, "queue": "a", "boot_id": "2", "since_ms": 0, "mono_us": 2_000_000, "pub": 3, "area_ready": 0},
        {**key, "queue": "a", "boot_id": "2", "since_ms": 9, "mono_us": 4_000_000, "pub": 1, "area_ready": 0},
    ]  # fmt: skip
    found = export.rates(pd.DataFrame(rows), "queue_interval", "pub", "area_ready")

    assert [("a", 10.0, 2.0)] == [
        (row.queue, row.pub_per_s, row.mean_ready) for row in found.dropna().itertuples()
    ]
    assert len(rows) == len(found)
    with pytest.raises(export.ExportError, match="no counter or area ready"):
        export.rates(pd.DataFrame(rows), "queue_interval", "ready")
    with pytest.raises(export.ExportError, match="the frame lacks since_ms"):
        export.rates(pd.DataFrame(rows).drop(columns="since_ms"), "queue_interval", "pub")


def test_percentiles_are_those_of_all_samples(demo):
    """Of the sum of the histograms, as the broker computes them; in data frames and in Arrow's columns."""
    rows = export.read(demo, "latency_hist", only=["metric", "b"])
    whole = Histogram()
    for buckets in rows["b"].to_pylist():
        for bucket in buckets:
            counts = whole.counts
            counts[bucket["i"]] = counts.get(bucket["i"], 0) + bucket["c"]
    whole.count, whole.greatest = sum(whole.counts.values()), 2**62
    for share in (0, 0.5, 0.99, 1):
        assert whole.percentile(share) == export.percentile(rows["b"], share)
        assert whole.percentile(share) == export.percentile(rows.to_pandas()["b"], share)
    assert export.percentile([], 0.5) is None
    with pytest.raises(ValueError, match="from 0 to 1"):
        export.percentile([], 99)


def test_the_program_of_the_reference_runs(demo):
    """The program of docs/export.md computes rates and a percentile of the export of a broker."""
    page = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = {}
    exec(program.replace("/var/lib/leveret/export", str(demo)), names)

    assert {"pub_per_s", "mean_ready"} <= {*names["frame"].columns}


def test_the_notebook_runs(demo, monkeypatch):
    """Each cell of the notebook in the documentation runs on the export of a broker; none has a stored result."""
    monkeypatch.setenv("LEVERET_NOTEBOOK_EXPORT", str(demo))
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    programs = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    space: dict[str, object] = {}
    for number, text in enumerate(programs):
        exec(compile(text, f"cell {number}", "exec"), space)

    assert all(cell["outputs"] == [] for cell in cells if cell["cell_type"] == "code")
    assert space["longest"].max() > 0
    assert space["backlog"].shape[1] == LEAST
    assert {"confirm", "deliver"} <= set(space["percentiles"].index)

"""Jobs run on a standalone cluster, of a master and two workers without Python, as they do in one process.

Two of them here, over three minutes of the demo, because a cluster is slow; `make campaign NAME=cluster` takes all.
"""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples.made_rows import histogram, row
from services.spark_cluster import JAVA_OPTIONS, SPARK_HOME, STARTING, standalone

from bench import generate
from bench.demo_export import LEAST, Demo
from leveret.analytics.locations import Remote, parse
from leveret.analytics.names import ALL, SUMMARIES
from leveret.analytics.reading import Input
from leveret.analytics.running import analyse, deliver

ROOT = Path(__file__).parents[2]
RUNNING = 600
BAD = ["{", "", "null", json.dumps(row("event", v=2))]
AT = 284_000
"""Seconds from the time of made rows to the hour of the demo."""
NAMED = json.dumps(row("event", AT, name="очередь", detail={"a": 'q"1'}), ensure_ascii=False)
COMPARED = ("bench_run", "bench_cost", "bench_sample")
JOBS = os.environ.get("LEVERET_CLUSTER_JOBS", "latency compact").split()


@pytest.fixture(scope="module")
def source(spark, tmp_path_factory):
    """Minutes of the demo's fleet, lines that are no rows, and if all jobs run records of a comparison."""
    folder = tmp_path_factory.mktemp("cluster") / "in"
    minutes = 10 if ALL in JOBS else 3
    asyncio.run(Demo(folder, folder.parent / "data", minutes=minutes, queues=LEAST, step=5, seed=1).run())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(generate, "BLOCKS", 2)
        patch.setattr(generate, "LEAST_SECONDS", 30)
        for name in COMPARED if ALL in JOBS else ():
            generate.write(generate.TABLES[name](spark, 1500), name, folder, parquet=False)
    (next((folder / "event").rglob("*.jsonl")).parent / "event-1-0.jsonl").write_text(
        "\n".join([NAMED, *BAD]) + "\n"
    )
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The address of a master with two workers, each of one core."""
    with standalone(tmp_path_factory.mktemp("workers")) as (master, _workers):
        yield master


@pytest.fixture(scope="module")
def outputs(spark, source, cluster, tmp_path_factory):
    """The outputs of all jobs: submitted to the cluster as a zip, and in this process."""
    folder = tmp_path_factory.mktemp("outputs")
    archive = folder / "leveret.zip"
    subprocess.run([sys.executable, "-m", "zipfile", "-c", archive, "leveret/"], cwd=ROOT, check=True)
    settings = {
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS, "spark.sql.shuffle.partitions": "2",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false",
    }  # fmt: skip
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [
            SPARK_HOME / "bin" / "spark-submit", "--master", cluster, "--py-files", archive, *given,
            "--driver-java-options", JAVA_OPTIONS, ROOT / "analytics" / "__main__.py", *JOBS,
            "--input", source, "--output", folder / "cluster",
        ],
        capture_output=True, text=True, cwd=folder, timeout=RUNNING, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        | {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": "/nowhere", "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert 0 == done.returncode, done.stderr[-4000:]
    analyse(JOBS, Input(spark, source, folder / "here"), folder / "here", lambda _text: None)
    return folder


def table(spark, folder):
    """Return the columns and the rows of a table, in the order of its files."""
    files = sorted(str(path) for path in folder.rglob("*.parquet"))
    rows = [found for file in files for found in spark.read.parquet(file).collect()]
    return rows and rows[0].__fields__, [tuple(found) for found in rows]


def is_same(one, other):
    """Return whether two values are equal; sums of floats were made in another order."""
    if isinstance(one, float) and isinstance(other, float):
        return one == pytest.approx(other, rel=1e-9, abs=1e-12, nan_ok=True)
    return one == other


def tables_of(folder):
    return sorted(path.relative_to(folder) for path in folder.glob("[!.]*/*") if path.is_dir())


def compared(spark, outputs, where, place):
    """Assert that a table is the same in another output; return its rows."""
    (names, rows), (other_names, other_rows) = (
        table(spark, outputs / each / place) for each in ("here", where)
    )
    assert (names, len(rows)) == (other_names, len(other_rows)), place
    if place.parts[0] in {"tables", "quarantine"}:  # in the order in which workers have read them
        rows, other_rows = sorted(map(str, rows)), sorted(map(str, other_rows))
    for one, other in zip(rows, other_rows, strict=True):
        assert all(map(is_same, one, other)), (place, one, other)
    return rows


@pytest.mark.timeout(RUNNING + 4 * STARTING)
def test_jobs_have_the_same_tables_on_a_cluster(spark, outputs):
    """Tables, columns, rows and their order are the same as in one process; few are empty, and each job has some."""
    places = tables_of(outputs / "here")
    empty = {str(place) for place in places if not compared(spark, outputs, "cluster", place)}

    expected = set(SUMMARIES if ALL in JOBS else JOBS) - {"compact"}
    assert {*expected, "tables", "quarantine"} <= {place.parts[0] for place in places}
    assert empty <= {
        "validate/gaps",
        "validate/findings",
        "anomalies/unusual",
        "anomalies/shown",
        "churn/failures",
    }
    for name in expected - {"overview"}:  # whose page is the index
        assert "<h1" in (outputs / "cluster" / name / "report.html").read_text()
    if ALL in JOBS:
        assert "churn/report.html" in (outputs / "cluster" / "index.html").read_text()


@pytest.fixture
def mounted(spark, tmp_path):
    """The URL of a file system that is not `file:`, and the directory of this machine that it leads to."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    name = "fs.viewfs.mounttable.made.link./data"
    settings.set(name, f"file://{tmp_path}")
    yield "viewfs://made/data"
    settings.unset(name)


def test_input_and_output_are_in_any_file_system_of_hadoop(spark, mounted, tmp_path):
    """Under URLs of another file system lines are read, tables, pages and the quarantine are written, and read again."""
    place = tmp_path / "in" / "latency_hist" / "dt=2026-11-21" / "hour=07"
    place.mkdir(parents=True)
    lines = [
        json.dumps(row("latency_hist", second, scope="node", metric="confirm", **histogram([5])))
        for second in (0, 5)
    ]
    (place / "latency_hist-1-0.jsonl").write_text("\n".join([*lines, "bad"]) + "\n")
    (place / ".latency_hist-2-0.jsonl.tmp").write_text("half a line")
    source, output = parse(f"{mounted}/in"), parse(f"{mounted}/out")

    for _ in range(2):
        deliver(["all", "compact"], Input(spark, source, output), output, lambda _text: None)

    page = (tmp_path / "out" / "latency" / "report.html").read_text()
    assert "Rows: latency_hist 2" in page
    assert (tmp_path / "out" / "index.html").exists()
    assert list((tmp_path / "out" / "latency" / "by_mode").glob("*.parquet"))
    assert ["bad"] == [
        found["line"]
        for found in spark.read.parquet(str(tmp_path / "out" / "quarantine" / "latency_hist")).collect()
    ]
    kept = Input(spark, parse(f"{mounted}/out/tables"), output)
    assert (2, False) == (kept.table("latency_hist").count(), kept.has("event"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a b/c", Path("/a b/c")),
        ("in", Path("in")),
        ("file:/a", Path("/a")),
        ("file:///a%20b", Path("/a%20b")),
        ("s3a://bucket/a", Remote("s3a://bucket/a")),
        ("hdfs:/a", Remote("hdfs:/a")),
        ("c:/a", Path("c:/a")),
    ],
)
def test_a_location_is_a_path_or_a_url(text, expected):
    """A scheme makes a URL, but `file:`, which is a path of this machine."""
    assert expected == parse(text)

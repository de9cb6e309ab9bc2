import os
import signal
import sys
from types import SimpleNamespace

from processes.commands import execute

from leveret.analytics import session
from leveret.analytics.running import is_small
from leveret.analytics.session import settings


def test_a_session_here_listens_on_loopback_only():
    """On one machine Spark is bound to loopback, and its page is off."""
    made = settings("local[*]", {}, cores=2, progress=False)

    assert "127.0.0.1" == made["spark.driver.bindAddress"] == made["spark.driver.host"]
    assert "false" == made["spark.ui.enabled"]
    assert "8" == made["spark.sql.shuffle.partitions"]


def test_a_small_input_has_few_tasks():
    """For a small input on one machine there is one partition; the user's settings count, and a cluster has none."""
    made = settings("local[*]", {"spark.sql.adaptive.enabled": "true"}, cores=2, progress=False, light=True)

    assert ("1", "true") == (made["spark.sql.shuffle.partitions"], made["spark.sql.adaptive.enabled"])
    large = settings("local[*]", {}, cores=2, progress=False)
    cluster = settings("spark://there:7077", {}, cores=2, progress=False, light=True)
    assert not {"spark.buffer.pageSize", "spark.driver.extraJavaOptions"} & (large.keys() | cluster.keys())


def test_a_small_file_of_parquet_may_have_many_rows(tmp_path):
    """The size of an input is that of its rows as lines: 10^8 rows in Parquet of 100 MB are compiled."""
    with (tmp_path / "part.zstd.parquet").open("wb") as file:
        file.truncate(5 << 20)
    assert not is_small(tmp_path)
    (tmp_path / "part.zstd.parquet").rename(tmp_path / "part.jsonl")
    assert is_small(tmp_path)


def test_a_cluster_reaches_the_driver():
    """For a cluster nothing is bound to loopback, and the number of partitions is left to it."""
    made = settings("spark://there:7077", {}, cores=2, progress=False)

    assert "spark://there:7077" == made["spark.master"]
    assert not {"spark.driver.host", "spark.sql.shuffle.partitions"} & made.keys()


def test_a_cluster_of_processes_here_is_bound_to_loopback_too():
    """Spark's cluster for tests, whose workers are processes of this machine, is not open to others."""
    assert (
        "127.0.0.1" == settings("local-cluster[1,1,1024]", {}, cores=2, progress=False)["spark.driver.host"]
    )


def test_spark_submit_has_the_word_about_the_master():
    """Started by spark-submit, the session does not name a master."""
    assert "spark.master" not in settings(None, {}, cores=2, progress=False)


def test_what_the_user_sets_counts():
    """`--conf` goes before every default."""
    made = settings("local[*]", {"spark.driver.memory": "6g"}, cores=2, progress=True)

    assert ("6g", "true") == (made["spark.driver.memory"], made["spark.ui.showConsoleProgress"])


def test_times_are_utc(spark):
    """Spark's dates do not depend on where it runs."""
    assert "UTC" == spark.conf.get("spark.sql.session.timeZone")


def test_a_java_that_ends_later_does_not_hold_the_output_of_the_command():
    """Its output comes out, and a reader of it does not wait for a process that goes on."""
    program = (
        "import subprocess, sys, time\n"
        "from leveret.analytics.java import give_way\n"
        "from leveret.analytics.session import pass_on\n"
        "words = ['sh', '-c', 'echo $$; exec sleep 300']\n"
        "process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)\n"
        "pass_on(process.stdout)\n"
        "give_way(process.pid)\n"
        "time.sleep(1)"
    )

    result = execute([sys.executable, "-c", program], timeout=60)

    process = int(result.stderr)
    try:
        assert 19 == os.getpriority(os.PRIO_PROCESS, process)
    finally:
        os.kill(process, signal.SIGKILL)


def test_a_name_of_java_is_looked_up_once():
    """py4j asks Java at each use of a class or method; what queries use all the time is asked for once."""
    asked = []

    class Java:
        def __getattr__(self, name):
            asked.append(name)
            return Java()

    spark = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=Java()))

    session.find_once(spark)

    functions = spark.sparkContext._jvm.functions
    assert functions.sum is functions.sum
    assert 1 == asked.count("sum") == asked.count("functions")


def test_a_program_is_compiled_once(spark):
    """A query compiles a program to see that it can be, and its tasks run that one."""
    metrics = getattr(spark.sparkContext._jvm.org.apache.spark.metrics.source, "CodegenMetrics$")
    counted = getattr(metrics, "MODULE$").METRIC_COMPILATION_TIME()
    before = counted.getCount()
    compiles = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    usual = {name: spark.conf.get(name) for name in compiles}
    try:
        for name, value in compiles.items():
            spark.conf.set(name, value)
        found = spark.range(3).selectExpr("id * 4711 AS made").collect()
    finally:
        for name, value in usual.items():
            spark.conf.set(name, value)

    assert [(0,), (4711,), (9422,)] == found
    assert 1 == counted.getCount() - before

"""The Spark session of a command (driver: starts and stops a Java process)."""

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final

import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from leveret.analytics import java
from leveret.analytics.names import EMBEDDED

APPLICATION: Final = "leveret analyze"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable set by `spark-submit`, whose Java process and master are used."""
CONFIGURED: Final = "SPARK_CONF_DIR"
"""Environment variable for a user's folder of Spark settings, including those for logging."""
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
DEFAULTS: Final = {
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    # Three calls of Java for each column of each query, to name lines of ours in messages that users do not see.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.files.maxPartitionBytes": "128m",
    "spark.sql.parquet.compression.codec": "zstd",
    # Times as all readers understand them, not in the form of 12 bytes that Parquet has given up.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    # hour=07 is the text 07
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.ui.enabled": "false",
    # Made for each query, and again when a plan changes, though only that page would show it.
    "spark.sql.ui.explainMode": "simple",
}
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
TASKS: Final = "Executor task"
"""Beginning of the names of the threads that run tasks."""
KEEPING: Final = "spark.leveret.keeping"
"""Setting of ours: `cut` if what several queries use is kept as rows without the plan that made them."""
LIGHT: Final = {  # settings for inputs of less than `LIGHT_BYTES`
    # Java compiles for a few seconds of use. The default of 48 MiB for compiled code is not enough for all jobs: what
    # was thrown away is compiled again. The heap has from the start what it would grow to, with a collection at each
    # step.
    JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Xms640m -Xmn384m "
    "-XX:MetaspaceSize=320m",
    # Plans are not changed while they run: there is little to learn from a few thousand rows.
    "spark.sql.adaptive.enabled": "false",
    # A task costs more than its rows, and to put rows in order Spark would look at all of them twice.
    "spark.sql.shuffle.partitions": "1",
    # All jobs together have more programs than the default of 100, and one that was dropped is compiled again.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Each sort and each aggregate takes a page, of 32 MiB otherwise: more than all rows that most of them see.
    "spark.buffer.pageSize": "2m",
    # Every query has the plan of its input to analyse: to read and to check 60 columns.
    KEEPING: "cut",
}
LIGHT_BYTES: Final = 256 << 20
LOOPBACK: Final = {
    # Otherwise Spark listens on the first interface that is up.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def settings(
    master: str | None, chosen: Mapping[str, str], *, cores: int, progress: bool, light: bool = False
) -> dict[str, str]:
    """Return the session's settings; the user's take precedence.

    Args:
        master: the Spark master; None if set by `spark-submit`.
        chosen: the user's `--conf`.
        cores: number of cores of this machine.
        progress: show Spark's own bar on the terminal.
        light: the input is small; only for a master on this machine.
    """
    made = dict(DEFAULTS)
    made["spark.ui.showConsoleProgress"] = str(progress).lower()
    if master is not None:
        made["spark.master"] = master
        if master.startswith("local"):
            made |= LOOPBACK
            # Adaptive execution coalesces small partitions.
            made["spark.sql.shuffle.partitions"] = str(4 * cores)
            if light:
                made |= LIGHT
    return made | dict(chosen)


@contextlib.contextmanager
def session(
    master: str | None = None,
    chosen: Mapping[str, str] | None = None,
    *,
    progress: bool = False,
    light: bool = False,
    archives: bool = False,
) -> Iterator[SparkSession]:
    """Start Spark for the duration of a `with` block.

    A process has one session at a time. `light` is for small inputs, as in `settings`, and `archives` to make an
    archive of Spark's classes for it if there is none. JAVA_HOME of this process is set to the Java that was found.
    Raises JavaError: no suitable Java was found.
    """
    submitted = SUBMITTED in os.environ
    homes: tuple[Path, java.Java] | None = None
    if not submitted:
        master = master or EMBEDDED
        found = java.find(os.environ)
        home = java.home_for_spark(found, os.environ)
        os.environ["JAVA_HOME"] = str(home)
        if home != found.home and "SPARK_HOME" not in os.environ:
            homes = home, found
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise the first one in the path
        if CONFIGURED not in os.environ:
            # Options that the user sets in another of Spark's ways are applied after these.
            os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={LOGGING.as_uri()}")
    builder = SparkSession.builder.appName(APPLICATION)
    cores = os.cpu_count() or 1
    made = settings(master, chosen or {}, cores=cores, progress=progress, light=light)
    lean = None
    if homes is not None and made.get(JAVA_OPTIONS) == LIGHT[JAVA_OPTIONS]:
        lean = java.lean_spark(*homes, Path(pyspark.__file__).parent)
    if lean is not None:
        made[JAVA_OPTIONS] += java.shared_classes(lean, makes=archives)
        os.environ["SPARK_HOME"] = str(lean)
    for name, value in made.items():
        builder = builder.config(name, value)
    making = _start_apart(made) if java.MAKES_ARCHIVE in made.get(JAVA_OPTIONS, "") else None
    try:
        spark = builder.getOrCreate()
    finally:
        if lean is not None:
            del os.environ["SPARK_HOME"]
    find_once(spark)
    compile_once(spark)
    try:
        yield spark
    finally:
        spark.stop()
        if making is not None:
            java.give_way(making)


def _start_apart(settings: Mapping[str, str]) -> int:
    """Start a Java with these settings for the session to come; return its process.

    It writes its archive of classes after this process has ended. A shell waits for all that have its end of a pipe, so
    this Java must not have it.
    """
    conf = SparkConf(loadDefaults=False)
    conf.setAll(list(settings.items()))
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
    process: subprocess.Popen[bytes] = gateway.proc
    pass_on(process.stdout)  # type: ignore[arg-type]
    SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - as the class itself does
    return process.pid


def pass_on(output: IO[bytes]) -> None:
    """Write what a Java writes to the terminal, in a thread: a Java that has the terminal itself would hold it."""

    def work() -> None:
        while octets := os.read(output.fileno(), 1 << 16):
            os.write(2, octets)

    threading.Thread(target=work, daemon=True).start()


class _Once:
    """A class of Java, or a package, whose members are looked up once each: py4j asks Java at each use."""

    def __init__(self, found: Any) -> None:
        self._found = found

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._found, name)
        setattr(self, name, found)
        return found


def find_once(spark: SparkSession) -> None:
    """Have classes that every column of a query asks for by name found once, not in hundreds of archives each time."""
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - no other way
    for name in ("functions", "org.apache.spark.sql.functions", "PythonUtils"):
        setattr(jvm, name, _Once(getattr(jvm, name)))


def compile_once(spark: SparkSession) -> None:
    """Have queries and tasks in one Java load classes alike: Spark 4.2 keeps a program for each class loader."""
    spark.sparkContext._jsc.sc().range(0, 1, 1, 1).count()  # noqa: SLF001 - as above; a task, whose thread is kept
    thread: Any = spark.sparkContext._jvm.java.lang.Thread  # type: ignore[union-attr]  # noqa: SLF001
    threads = list(thread.getAllStackTraces().keySet())
    own = thread.currentThread().getContextClassLoader()
    for loader in [each.getContextClassLoader() for each in threads if each.getName().startswith(TASKS)][:1]:
        # New threads, as those of later connections, have the loader of the one that starts them.
        for each in threads:
            if own.equals(each.getContextClassLoader()):
                each.setContextClassLoader(loader)

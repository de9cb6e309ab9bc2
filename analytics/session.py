"""The Spark session of a command (driver: starts and stops a Java process)."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

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
    "spark.sql.session.timeZone": "UTC",
    # hour=07 is the text 07
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.ui.enabled": "false",
    # Made for each query, and again when a plan changes, though only that page would show it.
    "spark.sql.ui.explainMode": "simple",
}
LOOPBACK: Final = {
    # Otherwise Spark listens on the first interface that is up.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def settings(master: str | None, chosen: Mapping[str, str], *, cores: int, progress: bool) -> dict[str, str]:
    """Return the session's settings; the user's take precedence.

    Args:
        master: the Spark master; None if set by `spark-submit`.
        chosen: the user's `--conf`.
        cores: number of cores of this machine.
        progress: show Spark's own bar on the terminal.
    """
    made = dict(DEFAULTS)
    made["spark.ui.showConsoleProgress"] = str(progress).lower()
    if master is not None:
        made["spark.master"] = master
        if master.startswith("local"):
            made |= LOOPBACK
            # Adaptive execution coalesces small partitions.
            made["spark.sql.shuffle.partitions"] = str(4 * cores)
    return made | dict(chosen)


@contextlib.contextmanager
def session(
    master: str | None = None, chosen: Mapping[str, str] | None = None, *, progress: bool = False
) -> Iterator[SparkSession]:
    """Start Spark for the duration of a `with` block.

    A process has one session at a time. JAVA_HOME of this process is set to the Java that was found.

    Raises:
        JavaError: no suitable Java was found.
    """
    submitted = SUBMITTED in os.environ
    if not submitted:
        master = master or EMBEDDED
        os.environ["JAVA_HOME"] = str(java.home_for_spark(java.find(os.environ), os.environ))
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if CONFIGURED not in os.environ:
            # Options that the user sets in another of Spark's ways are applied after these.
            os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={LOGGING.as_uri()}")
    builder = SparkSession.builder.appName(APPLICATION)
    for name, value in settings(master, chosen or {}, cores=os.cpu_count() or 1, progress=progress).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()

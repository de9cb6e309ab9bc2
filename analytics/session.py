"""The one Spark session of a command (driver: starts a Java, and ends it)."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from leveret.analytics import java

EMBEDDED: Final = "local[*]"
APPLICATION: Final = "leveret analyze"
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""In the environment where `spark-submit` started us: its Java runs already, and its master counts."""
CONFIGURED: Final = "SPARK_CONF_DIR"
"""In the environment of a user who has a folder of settings for Spark, what it logs among them."""
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
DEFAULTS: Final = {
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
    "spark.sql.files.maxPartitionBytes": "128m",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    # hour=07 is the text 07
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.ui.enabled": "false",
}
LOOPBACK: Final = {
    # Otherwise Spark picks the first interface that is up, and listens there.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def settings(master: str | None, chosen: Mapping[str, str], *, cores: int, progress: bool) -> dict[str, str]:
    """Return what the session is made with; what the user chose goes before everything.

    Args:
        master: where it runs; None where `spark-submit` has said it.
        chosen: the user's `--conf`.
        cores: of this machine.
        progress: show Spark's own bar on the terminal.

    """
    made = dict(DEFAULTS)
    made["spark.ui.showConsoleProgress"] = str(progress).lower()
    if master is not None:
        made["spark.master"] = master
        if master.startswith("local"):
            made |= LOOPBACK
            # Adaptive execution joins those that turn out small.
            made["spark.sql.shuffle.partitions"] = str(4 * cores)
    return made | dict(chosen)


@contextlib.contextmanager
def session(
    master: str | None = None, chosen: Mapping[str, str] | None = None, *, progress: bool = False
) -> Iterator[SparkSession]:
    """Start Spark for the length of a `with` block.

    The process has one at a time. JAVA_HOME of this process is set to the Java that was found.

    Raises:
        JavaError: there is no Java for it.

    """
    submitted = SUBMITTED in os.environ
    if not submitted:
        master = master or EMBEDDED
        os.environ["JAVA_HOME"] = str(java.home_for_spark(java.find(os.environ), os.environ))
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        if CONFIGURED not in os.environ:
            # Options that the user sets in one of Spark's other ways come after these.
            os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={LOGGING.as_uri()}")
    builder = SparkSession.builder.appName(APPLICATION)
    for name, value in settings(master, chosen or {}, cores=os.cpu_count() or 1, progress=progress).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()

"""A standalone cluster of Spark: a master and two workers as processes of this machine."""

import contextlib
import os
import re
import subprocess
import time
from pathlib import Path

import pyspark

from leveret.analytics import java

SPARK_HOME = Path(pyspark.__file__).parent
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
STARTING = 120


def process(stack, log, name, *arguments, python="/nowhere"):
    """Start a part of the cluster, which is ended with the stack."""
    home = java.find(os.environ).home
    environment = os.environ | {
        "JAVA_HOME": str(java.home_for_spark(java.probe(home), os.environ)), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": f"{JAVA_OPTIONS} -Dspark.deploy.maxExecutorRetries=-1", "SPARK_DAEMON_MEMORY": "256m", "PYSPARK_PYTHON": python,
    }  # fmt: skip
    with log.open("wb") as output:
        started = subprocess.Popen(
            [
                SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}",
                "--host", "127.0.0.1", "--port", "0", "--webui-port", "0", *arguments,
            ],
            stdout=output, stderr=output, env=environment, cwd=log.parent,
        )  # fmt: skip
    stack.callback(ended, started)
    return started


def ended(started):
    """End a process. Its Java ignores SIGTERM where it runs by our script."""
    started.kill()
    started.wait(STARTING)


def said(started, log, pattern):
    """Wait until a process has written something; return it."""
    end = time.monotonic() + STARTING
    while (found := re.search(pattern, log.read_text(errors="replace"))) is None:
        assert started.poll() is None, log.read_text(errors="replace")[-2000:]
        assert time.monotonic() < end, log.read_text(errors="replace")[-2000:]
        time.sleep(0.1)
    return found[1]


@contextlib.contextmanager
def standalone(folder, *, memory="768m", python="/nowhere"):
    """Run a master with two workers, each of one core; yields the URL of the master, and the processes of the workers."""
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        started = process(stack, log, "master.Master", python=python)
        master = said(started, log, r"Starting Spark master at (spark://\S+)")
        logs = [folder / f"worker{number}.log" for number in range(2)]
        workers = [
            process(
                stack, each, "worker.Worker", "--cores", "1", "--memory", memory,
                "--work-dir", str(folder / each.stem), master, python=python,
            )
            for each in logs
        ]  # fmt: skip
        for worker, each in zip(workers, logs, strict=True):
            said(worker, each, r"(Successfully registered with master)")
        yield master, workers

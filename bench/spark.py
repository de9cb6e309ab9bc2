"""Benchmark of the Spark source: `python -m bench.spark` or `make bench NAME=spark`.

A broker has a stream of messages of some bytes. A batch of Spark on this machine, with all its cores, counts them and
adds up the sizes of their bodies, once with the two columns that this needs and once with all.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from pamqp import commands
from pyspark.sql.functions import count, octet_length, sum as total

from bench import brokers
from bench.client import Client
from bench.results import Report
from bench.streams import STREAM, publish
from leveret.analytics.session import session
from leveret.spark import LeveretDataSource

RATE = 100_000.0
COLUMNS = {"offset and body": "offset BIGINT, body BINARY", "all columns": None}


async def _fill(port: int, count: int, size: int) -> int:
    """Append messages to a new stream; return their number."""
    client = await Client.connect(port)
    await client.call(commands.Confirm.Select())
    arguments = {"x-queue-type": "stream"}
    await client.call(commands.Queue.Declare(queue=STREAM, durable=True, arguments=arguments))
    await publish(client, STREAM, count, size)
    client.close()
    return client.confirmed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a body")
    parser.add_argument("--dir", default=None)
    options = parser.parse_args()
    report = Report("spark")
    with tempfile.TemporaryDirectory(prefix="leveret-bench-", dir=options.dir) as scratch:
        running = brokers.start("leveret", Path(scratch), [])
        messages = asyncio.run(_fill(running.port, options.messages, options.size))
        uri = f"amqp://guest:guest@127.0.0.1:{running.port}/"
        with session(f"local[{os.cpu_count()}]", {}) as spark:
            spark.dataSource.register(LeveretDataSource)
            for name, schema in COLUMNS.items():
                reader = spark.read.format("leveret").options(uri=uri, stream=STREAM)
                rows = (reader.schema(schema) if schema else reader).load()
                before, began = running.cpu_seconds(), time.perf_counter()
                found = rows.agg(count("offset"), total(octet_length("body"))).collect()[0]
                seconds = time.perf_counter() - began
                if tuple(found) != (messages, messages * options.size):
                    raise SystemExit(
                        f"{messages} messages of {options.size} bytes were read as {tuple(found)}"
                    )
                report.line(f"batch with {name}", messages / seconds, "msg/s", least=RATE)
                used = (running.cpu_seconds() - before) / messages * 1e6
                report.line(f"processor time of the broker, {name}", used, "us")
        running.stop(60)
    return bool(report.missed)


if __name__ == "__main__":
    sys.exit(main())

"""The driver that the campaign kills: copies a stream to a queue, on a cluster. `--rest` ends when all is copied."""

import argparse

from pyspark.sql import SparkSession

from leveret.spark import LeveretDataSource

SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.memory": "512m",
    "spark.log.level": "ERROR",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.task.maxFailures": "20",
    "spark.ui.enabled": "false",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rest", action="store_true")
    for name in ("master", "source", "stream", "sink", "queue", "checkpoint", "limit"):
        parser.add_argument(name)
    chosen = parser.parse_args()
    builder = SparkSession.builder.master(chosen.master).appName("copy")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(LeveretDataSource)
    rows = (
        spark.readStream.format("leveret")
        .options(uri=chosen.source, stream=chosen.stream, startingOffset="earliest")
        .options(maxOffsetsPerTrigger=chosen.limit, offsetsPerPartition=int(chosen.limit) // 4)
        .load()
        .select("body")
    )
    writer = rows.writeStream.format("leveret").options(uri=chosen.sink, queue=chosen.queue)
    writer = writer.option("checkpointLocation", chosen.checkpoint)
    query = writer.trigger(availableNow=True).start() if chosen.rest else writer.start()
    query.awaitTermination()


if __name__ == "__main__":
    main()

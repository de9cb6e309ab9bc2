"""A Spark source and sink of messages: streams and queues of Leveret, RabbitMQ and other AMQP 0-9-1 brokers.

    from leveret.spark import LeveretDataSource

    spark.dataSource.register(LeveretDataSource)
    frame = spark.readStream.format("leveret").option("uri", uri).option("stream", "orders").load()

It uses the Python Data Source API of Spark 4: no jar is needed, but the packages of the extras
`leveret[analytics,notebook]`, on the workers too. docs/howto/spark-streaming.md has the options.
"""

try:
    from leveret.spark.source import LeveretDataSource
except ImportError as error:
    raise ImportError(f"{error}; pip install 'leveret[analytics,notebook]'") from error

__all__ = ["LeveretDataSource"]

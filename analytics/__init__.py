"""Analysis of the broker's telemetry export: PySpark jobs, run by `leveret analyze` or `spark-submit`.

This package imports nothing of the broker, and the broker never imports it: it needs PySpark and Java, which are the
extra `leveret[analytics]`.
"""

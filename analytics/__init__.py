"""Analysis of what the broker exports: PySpark jobs, run by `leveret analyze` or `spark-submit`.

Nothing of the broker is imported here, and the broker never imports this package: it needs PySpark and a Java,
which are the extra `leveret[analytics]`.
"""

"""The load tool `leveret perf`: publishes and consumes at a broker, and measures rates and latencies."""

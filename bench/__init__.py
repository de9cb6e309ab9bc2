"""Benchmarks of Leveret: against other brokers, against the interpreter's speed, and at scale."""

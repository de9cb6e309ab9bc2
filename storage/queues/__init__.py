"""Backing queues: the messages of one queue in memory, on disk, or both."""

"""Backing queues, the state of one queue's messages: in memory, on disk, or both."""

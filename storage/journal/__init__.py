"""Pending writes: entries and blocks, the batch of a commit, bodies shared by queues."""

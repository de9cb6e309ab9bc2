"""Pending writes: entries and blocks, the batch of a commit, bodies that queues share."""

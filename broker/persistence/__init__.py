"""Persistence of a running broker: data store, committer, readers, lock (drivers)."""

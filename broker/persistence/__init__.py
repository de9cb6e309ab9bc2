"""The data directory of a running broker: store, committer, readers, lock (drivers)."""

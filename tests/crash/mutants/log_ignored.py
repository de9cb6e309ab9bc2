"""Mutant: a start does not write to the tables what is only in the redo log."""

from leveret.storage.store.lmdb_environment import LmdbEnvironment

LmdbEnvironment.replay = lambda _tables: 0

"""The LMDB environments of a data directory: tables, recovery, check, compaction."""

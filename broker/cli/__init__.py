"""The command `leveret` (drivers)."""

"""The command line `leveret` (drivers)."""

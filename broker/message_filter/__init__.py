"""Conditions on messages, in a small language of comparisons: the option `--where`."""

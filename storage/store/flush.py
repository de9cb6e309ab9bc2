"""Writes to files, and flushes them and directories to the disk."""

import os
from pathlib import Path


def write_at(descriptor: int, octets: memoryview | bytes, offset: int) -> None:
    """Write all of some bytes to a file, given by its descriptor, at an offset."""
    rest = memoryview(octets)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def sync_data(descriptor: int) -> None:
    """Flush the contents of a file, given by its descriptor."""
    getattr(os, "fdatasync", os.fsync)(descriptor)  # macOS has only the second


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Files that others have named: regular ones only, without waiting, and within a limit."""

import os
from pathlib import Path

import pytest

from leveret.broker.process.named_files import read_named


def test_a_regular_file_is_read(tmp_path):
    """Completely, also through a symbolic link, up to the limit."""
    (tmp_path / "file").write_bytes(b"four")
    (tmp_path / "link").symlink_to(tmp_path / "file")

    assert b"four" == read_named(tmp_path / "link", 4)
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_named(tmp_path / "file", 3)


@pytest.mark.parametrize("name", ["fifo", "/dev/ptmx", "/dev/zero", "/dev/tty", "."])
def test_nothing_else_is_opened(tmp_path, name):
    """A FIFO that nobody writes, a device and a directory are refused at once."""
    os.mkfifo(tmp_path / "fifo")

    with pytest.raises(OSError, match=r"is not a regular file|Is a directory|No such"):
        read_named(tmp_path / name)


def test_who_types_a_name_may_mean_a_pipe(tmp_path):
    """A pipe is read to its end, and a device without an end up to the limit."""
    reading, writing = os.pipe()
    os.write(writing, b"typed")
    os.close(writing)

    assert b"typed" == read_named(Path(f"/dev/fd/{reading}"), is_typed=True)
    os.close(reading)
    assert b"" == read_named("/dev/null", is_typed=True)
    with pytest.raises(OSError, match="larger than"):
        read_named("/dev/zero", 1000, is_typed=True)

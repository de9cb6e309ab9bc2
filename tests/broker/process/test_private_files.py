"""Files with secrets: for their owner only, complete or not there."""

import os
import stat
from pathlib import Path

import pytest

from leveret.broker.process import named_files
from leveret.broker.process.named_files import private_copy, write_private


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
@pytest.mark.parametrize("before", [None, 0o644, 0o666])
def test_only_the_owner_may_read(tmp_path, umask, before):
    """Whatever the umask, and whoever might read the file that was there before."""
    path = tmp_path / "export.json"
    if before is not None:
        path.write_bytes(b"old, and longer than what is new")
        path.chmod(before)
    old = os.umask(umask)
    try:
        write_private(path, b"new")
    finally:
        os.umask(old)

    assert (b"new", 0o600) == (path.read_bytes(), stat.S_IMODE(path.stat().st_mode))
    assert ["export.json"] == [each.name for each in tmp_path.iterdir()]


def test_a_link_is_replaced(tmp_path):
    """Not what it leads to."""
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "export").symlink_to(tmp_path / "other")
    write_private(tmp_path / "export", b"new")

    assert (b"new", b"other") == ((tmp_path / "export").read_bytes(), (tmp_path / "other").read_bytes())
    assert not (tmp_path / "export").is_symlink()


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    """On a full disk, the old file is complete and nothing lies beside it."""
    path = tmp_path / "export"
    path.write_bytes(b"old")

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(path, b"new")

    assert b"old" == path.read_bytes()
    assert [path] == list(tmp_path.iterdir())


def test_a_device_is_written_to():
    """It is not replaced by a file."""
    write_private(Path(os.devnull), b"gone")

    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs the names of descriptors in /proc")
@pytest.mark.parametrize("place", ["dev", "fd", "proc"])
def test_a_name_of_a_descriptor_is_written_to(tmp_path, monkeypatch, place):
    """/dev/stdout stays what it is, also if the output goes to a file, and root writes."""
    devices = tmp_path / "dev"
    devices.mkdir()
    monkeypatch.setattr(named_files, "_OF_SYSTEM", named_files._OF_SYSTEM | {devices})
    with (tmp_path / "output").open("wb") as output:
        number = output.fileno()
        (devices / "stdout").symlink_to(f"/proc/self/fd/{number}")
        name = {"dev": devices / "stdout", "fd": f"/dev/fd/{number}", "proc": f"/proc/self/fd/{number}"}[
            place
        ]
        write_private(Path(name), b"written")

    assert b"written" == (tmp_path / "output").read_bytes()
    assert (devices / "stdout").is_symlink()


@pytest.mark.parametrize("name", ["x" * 255, "\u00e9" * 127, "\u20ac" * 85], ids=["x", "e", "euro"])
def test_a_name_may_be_as_long_as_any(tmp_path, name):
    """In bytes, of which a letter may have several."""
    write_private(tmp_path / name, b"new")

    assert b"new" == (tmp_path / name).read_bytes()


def test_a_copy_is_gone_afterwards():
    """It has the octets as long as it is needed."""
    with private_copy(b"secret") as name:
        assert b"secret" == Path(name).read_bytes()
        assert 0 == os.stat(name).st_mode & 0o077 or name.startswith("/proc/self/fd")  # noqa: PTH116

    assert not Path(name).exists() or b"secret" != Path(name).read_bytes()

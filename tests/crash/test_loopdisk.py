"""The disk whose power can be cut."""

import shutil
import subprocess

import pytest
from crash import loopdisk
from crash.judged import needs_power_cuts


@needs_power_cuts
@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_a_copy_of_the_mount_is_named(tmp_path, monkeypatch):
    """A disk of which another mount namespace has a copy is not mounted again: it would be the one without power."""
    disk = loopdisk.LoopDisk(tmp_path, 8)
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", "echo made; cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        try:
            assert b"made\n" == other.stdout.readline()
            disk.cut()
            monkeypatch.setattr(loopdisk, "UMOUNT_SECONDS", 0.2)
            with pytest.raises(OSError, match="another mount namespace has a copy"):
                disk.restore()
            monkeypatch.undo()
        finally:
            other.stdin.close()
    disk.restore()
    disk.umount()

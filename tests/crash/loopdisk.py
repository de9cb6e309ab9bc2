"""A disk whose power can be cut: ext4 in a file, mounted through a loop device.

The cut is ext4's own shutdown: the file system stops at once, its journal is not flushed, and what lies in the page
cache never gets to the disk. What was flushed is there after the next mount, as after a real power failure; what a
disk does to a sector that was being written is not imitated.
"""

import contextlib
import fcntl
import functools
import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2
_OPTIONS = "loop,commit=300"
UMOUNT_SECONDS = 10.0
MOUNT_SECONDS = 60.0


class LoopDisk:
    """One file system below `home`; needs root.

    Args:
        home: an existing folder, on a file system that stays.
        megabytes: its size.

    """

    def __init__(self, home: Path, megabytes: int = 512) -> None:
        self.image, self.mount_point = home / "disk.img", home / "disk"
        self.mount_point.mkdir()
        with self.image.open("wb") as image:
            image.truncate(megabytes << 20)
        subprocess.run(
            ["mkfs.ext4", "-q", "-F", str(self.image)], check=True, capture_output=True, timeout=MOUNT_SECONDS
        )
        self.mounted = False
        self.mount()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.umount()

    def mount(self) -> None:
        """Mount; ext4 replays its journal."""
        subprocess.run(
            ["mount", "-o", _OPTIONS, str(self.image), str(self.mount_point)],
            check=True,
            capture_output=True,
            timeout=MOUNT_SECONDS,
        )
        self.mounted = True

    def cut(self) -> None:
        """Cut the power. Files open there have errors from now on."""
        folder = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(folder, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(folder)

    def restore(self) -> None:
        """Give it power again; no file may be open."""
        self.umount()
        self.mount()

    def umount(self) -> None:
        """Unmount; a process that was just killed may still hold it for a moment.

        A mount namespace that was made meanwhile has a copy of the mount, which keeps the file system as it is: one
        whose power was cut would be mounted again without power.
        """
        deadline = time.monotonic() + UMOUNT_SECONDS
        while self.mounted:
            done = subprocess.run(
                ["umount", str(self.mount_point)],
                capture_output=True,
                text=True,
                check=False,
                timeout=MOUNT_SECONDS,
            )
            if done.returncode == 0:
                self.mounted = False
            elif time.monotonic() > deadline:
                raise OSError(done.stderr)
            else:
                time.sleep(0.01)
        while self._is_attached():
            if time.monotonic() > deadline:
                raise OSError(f"{self.image} is still mounted: another mount namespace has a copy")
            time.sleep(0.01)

    def _is_attached(self) -> bool:
        """Return whether a loop device has the image."""
        for each in Path("/sys/block").glob("loop*/loop/backing_file"):
            with contextlib.suppress(OSError):  # it was detached meanwhile
                if each.read_text(encoding="utf-8").rstrip("\n") == str(self.image.resolve()):
                    return True
        return False


class MemoryDisk:
    """A small file system in memory that can be filled; needs root."""

    def __init__(self, home: Path, megabytes: int = 64) -> None:
        self.mount_point = home / "small"
        self.mount_point.mkdir(exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(self.mount_point)]
        subprocess.run(words, check=True, capture_output=True, timeout=MOUNT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        subprocess.run(
            ["umount", "-l", str(self.mount_point)], check=True, capture_output=True, timeout=MOUNT_SECONDS
        )


@functools.cache
def why_no_power_cuts() -> str:
    """Return why there are no power cuts here; empty if there are."""
    if os.geteuid() != 0:
        return "mounting needs root"
    for program in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    home = Path(tempfile.mkdtemp(prefix="leveret-loop-"))
    try:
        with LoopDisk(home, 8) as disk:
            disk.cut()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no loop-mounted ext4 that can be shut down: {error}"
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return ""


@functools.cache
def why_no_small_disks() -> str:
    """Return why no small file system can be mounted here; empty if one can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    home = Path(tempfile.mkdtemp(prefix="leveret-small-"))
    try:
        with MemoryDisk(home, 1):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no tmpfs: {error}"
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return ""

"""Directories with a release of Debian, also for another processor, and commands within them. Needs root and debootstrap."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

SUITES: Final = {"3.11": "bookworm", "3.13": "trixie"}
"""Versions of Python, and the releases of Debian that have them as python3; sid has the newest ones."""
EMULATOR: Final = Path("/usr/bin/qemu-aarch64-static")
MAGIC: Final = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK: Final = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
EMULATED: Final = f"""mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
printf %s ':arm64:M::{MAGIC}:{MASK}:{EMULATOR}:F' > /proc/sys/fs/binfmt_misc/register
"""
MOUNTED: Final = """root=$1 bound=$2; shift 2
mount --rbind /proc "$root/proc"; mount --rbind /dev "$root/dev"
test -z "$bound" || mount --bind "$bound" "$root/src"
exec chroot "$@"
"""


def made(root: Path, suite: str, packages: Sequence[str], machine: str | None = None) -> None:
    """Fill a directory with a release of Debian and some packages, which for another processor are not configured."""
    words = ["debootstrap", "--variant=minbase", f"--include={','.join(packages)}"]
    words += ["--foreign", f"--arch={machine}"] if machine else []
    subprocess.run([*words, suite, root], check=True, stdout=subprocess.DEVNULL)
    if machine:
        for package in (root / "var/cache/apt/archives").glob("*.deb"):
            subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
        for name in ("passwd", "group"):
            shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)


def inside(
    root: Path,
    *words: str,
    user: str = "",
    bound: Path | None = None,
    folder: str = "/",
    emulated: bool = False,
) -> list[str]:
    """Return a command that runs words in a directory, as root or another user, in a folder; all its mounts end with it.

    `bound` is a directory to appear as `/src`. `emulated`: programs for ARM run, in a namespace that alone knows how.
    """
    spaces = ["--user", "--map-root-user"] if emulated else []
    script = f"{EMULATED if emulated else ''}{MOUNTED}"
    chosen = [f"--userspec={user}:{user}"] if user else []
    chroot = [*chosen, str(root), "env", "-i", f"--chdir={folder}", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    return [
        *("unshare", *spaces, "--mount", "--propagation", "private", "sh", "-euc", script, "-"),
        *(str(root), str(bound or ""), *chroot, *words),
    ]

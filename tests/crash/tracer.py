"""strace as a fault injector: words that go before a command."""

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

KILL = "signal=KILL"
EIO = "error=EIO"
ENOSPC = "error=ENOSPC"


def inject(calls: str, what: str, when: str, *, log: Path, path: Path | None = None) -> Sequence[str]:
    """Have strace do something to system calls of a command and of its threads.

    Args:
        calls: names of system calls, by commas.
        what: `signal=KILL` (before the call is carried out) or `error=...` (instead of it).
        when: the how-manieth of a thread's calls, `3`; `3+` for it and all later ones, `3..9` for a range.
        log: where strace writes what it did.
        path: only calls on this file.

    """
    words = ["strace", "-D", "-f", "-qq", "-o", str(log)]
    if "signal" not in what:  # which strace loses with it: the call goes on as if nothing were
        words += ["--seccomp-bpf"]
    if path is not None:
        words += ["-P", str(path)]
    return [*words, "-e", f"trace={calls}", "-e", f"inject={calls}:{what}:when={when}"]


def slowed(milliseconds: int, *, log: Path) -> Sequence[str]:
    """Have each flush of a command take so much longer: small commits have no asynchronous writes, but are flushed."""
    flushes = "fdatasync,fsync"
    words = inject(flushes, f"delay_exit={1000 * milliseconds}", "1+", log=log)
    return [*words[:-3], f"trace={flushes},io_setup", *words[-2:], "-e", "inject=io_setup:error=ENOSYS"]


def injected(log: Path) -> int:
    """Return the number of system calls that strace has made fail."""
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return 0
    return text.count("(INJECTED)")


@functools.cache
def why_not() -> str:
    """Return why strace cannot be used here; empty if it can."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    probe = [*inject("fdatasync", KILL, "60000", log=Path("/dev/null")), sys.executable, "-c", "pass"]
    done = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=60)
    return "" if done.returncode == 0 else f"strace does not work: {done.stderr.strip()[:200]}"

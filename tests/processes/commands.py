"""Running a command to its end."""

import subprocess
from collections.abc import Sequence
from typing import Any

SECONDS = 60.0


def execute(
    words: Sequence[object], *, check: bool = False, timeout: float = SECONDS, **options: Any
) -> "subprocess.CompletedProcess[str]":
    """Return the finished command with its output and its errors as text; `options` are those of `subprocess.run`.

    Raises:
        CalledProcessError: with `check`, it has failed.
        TimeoutExpired: it took longer than `timeout`, in seconds, and was killed.
    """
    captured = {"capture_output": True, "text": True, **options}
    return subprocess.run([str(word) for word in words], check=check, timeout=timeout, **captured)

"""Plugin of pytest that keeps what tests would throw away: temporary folders, and what brokers print.

`KEPT_LOGS` is the folder for the latter. Loaded by `run.py` only.
"""

import logging
import os
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest

VARIABLE = "KEPT_LOGS"


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary folders from now on, and what is logged and printed."""
    folder = Path(os.environ[VARIABLE])
    folder.mkdir(parents=True, exist_ok=True)
    _keep_folders()
    _keep_output(folder)
    if config.getoption("numprocesses", None) is None:  # a process that runs tests
        handler = logging.FileHandler(folder / f"process-{os.getpid()}.log", errors="backslashreplace")
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
        logging.getLogger().addHandler(handler)


def _keep_folders() -> None:
    def detached(self: tempfile.TemporaryDirectory) -> None:
        self._finalizer.detach()

    tempfile.TemporaryDirectory.cleanup = detached
    tempfile.TemporaryDirectory.__exit__ = lambda self, *_error: detached(self)


def _keep_output(folder: Path) -> None:
    from processes import running

    judge = running.Running.look_for_slow_steps
    finish = running.finished

    def kept(self: running.Running, text: str) -> None:
        with (folder / f"console-{id(self):x}-{os.getpid()}.log").open(
            "a", errors="backslashreplace"
        ) as file:
            file.write(text)
        judge(self, text)

    def kept_command(*words: str, **options: object) -> object:
        done = finish(*words, **options)
        (folder / f"command-{uuid4().hex}.log").write_text(
            done.stdout + done.stderr, errors="backslashreplace"
        )
        return done

    running.Running.look_for_slow_steps = kept
    running.finished = kept_command

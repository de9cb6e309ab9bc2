"""The files of the broker's process beside its data (driver): its log and its process id."""

import contextlib
import os
import sys
from pathlib import Path

from leveret.broker import exit_codes
from leveret.broker.config.config import Config
from leveret.broker.process import logs
from leveret.broker.process.log_rotation import Rotation


class StartupError(Exception):
    """Raised if the broker cannot start; the text is one line for the administrator."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def configure_logs(config: Config) -> logs.Logs:
    """Open the outputs of the log; raises StartupError."""
    log = config.log
    outputs = []
    if log.console:
        stream = sys.stderr if log.console_stream == "stderr" else sys.stdout
        outputs.append(logs.Output(log.console_level, log.console_formatter, stream=stream))
    if log.file is not None:
        rotation = Rotation(log.rotation_size, log.rotation_date, log.rotation_count, log.rotation_compress)
        outputs.append(logs.Output(log.file_level, log.file_formatter, file=log.file, rotation=rotation))
    try:
        return logs.configure(outputs, log.levels)
    except OSError as error:
        raise StartupError(
            f"cannot open log file {log.file}: {error.strerror}", exit_codes.CANNOT_CREATE
        ) from None


def write_pid_file(path: Path | None) -> None:
    """Write the process id to a file, if one is wanted; raises StartupError."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{os.getpid()}\n", encoding="ascii")
    except OSError as error:
        raise StartupError(
            f"cannot write pid file {path}: {error.strerror}", exit_codes.CANNOT_CREATE
        ) from None


def remove_pid_file(path: Path | None) -> None:
    """Remove that file."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink()

"""The files of the broker's process beside its data (driver): its log and its process id."""

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from leveret.broker import exit_codes
from leveret.broker.config.config import Config
from leveret.broker.process import logs
from leveret.broker.process.audit_log import AuditLog
from leveret.broker.process.log_rotation import Rotation

if TYPE_CHECKING:
    from leveret.broker.process.audit_writer import AuditWriter


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


def open_audit_log(
    config: Config, audit: AuditLog, ending: contextlib.AsyncExitStack
) -> "AuditWriter | None":
    """Open the file of the audit log, if one is wanted, until the end of `ending`; raises StartupError."""
    wanted = config.audit
    if wanted.file is None:
        return None
    from leveret.broker.process.audit_writer import AuditWriter  # noqa: PLC0415 - most brokers have none

    rotation = Rotation(
        wanted.rotation_size, wanted.rotation_date, wanted.rotation_count, wanted.rotation_compress
    )
    try:
        writer = AuditWriter(audit, wanted.file, rotation)
    except OSError as error:
        raise StartupError(
            f"cannot open audit log {wanted.file}: {error.strerror}", exit_codes.CANNOT_CREATE
        ) from None
    ending.callback(writer.close)
    return writer


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

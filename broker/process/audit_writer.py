"""Writes the audit log to its file, in a thread of its own (driver)."""

import contextlib
import logging
import threading
from pathlib import Path
from typing import Final

from leveret.broker.process.audit_log import AuditLog
from leveret.broker.process.logs import RotatedFile, Rotation

log = logging.getLogger("leveret")

RETRY_SECONDS: Final = 1.0  # time between two attempts to write to a disk that is full
STOP_SECONDS: Final = 5.0  # time that the last entries may take


class AuditWriter:
    """The thread that continues the file of an audit log, whose directory it creates; raises OSError: no such file."""

    def __init__(self, audit: AuditLog, file: Path, rotation: Rotation) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._audit = audit
        self._file = RotatedFile(file, rotation)
        self._has_work = threading.Event()
        self._stop = threading.Event()
        audit.wake = self._has_work.set
        self._thread = threading.Thread(target=self._run, name="leveret-audit", daemon=True)
        self._thread.start()
        audit.is_on = True

    def reopen(self) -> None:
        """Continue in a new file of the same name, for example after logrotate moved it."""
        try:
            self._file.reopen()
        except OSError as error:
            log.error("cannot reopen audit log %s: %s", self._file.baseFilename, error.strerror)  # noqa: TRY400

    def close(self) -> None:
        """Write what is left, for a few seconds at most, and close the file; may be called twice."""
        self._stop.set()
        self._has_work.set()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive() or len(self._audit):
            log.error("audit log: %d entries were not written", len(self._audit))
        with contextlib.suppress(OSError, ValueError):
            self._file.close()

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._has_work.wait()
            self._has_work.clear()
            is_last = self._stop.is_set()
            self._write()
            if self._audit.is_failing and not is_last:
                self._stop.wait(RETRY_SECONDS)
                self._has_work.set()

    def _write(self) -> None:
        audit = self._audit
        lines = audit.take()
        for at, line in enumerate(lines):
            try:
                self._file.write_line(line)
            except OSError as error:
                if not audit.is_failing:
                    log.error("cannot write audit log %s: %s", self._file.baseFilename, error)  # noqa: TRY400
                audit.is_failing = True
                audit.put_back(lines[at:])
                return
        if lines and audit.is_failing:
            audit.is_failing = False
            log.info(
                "audit log %s is written again; entries lost so far: %d", self._file.baseFilename, audit.lost
            )

"""The section of the audit log: its settings are combined here."""

from pathlib import Path
from typing import Any

from leveret.broker.config.sections import AuditConfig


def audit_config(parts: dict[str, Any], file: Path | None, log_dir: Path, problems: list[str]) -> AuditConfig:
    """Return the settings of the audit log.

    Args:
        parts: the settings by the names of their attributes, without the file.
        file: `log.audit.file`; None if there is none.
        log_dir: directory of a relative file.
        problems: gets a sentence about each inconsistency.

    """
    if file is not None:
        parts["file"] = log_dir / file
    elif parts.get("required"):
        problems.append("log.audit.required is true, but log.audit.file names no file")
    if parts.get("rotation_date"):
        if parts.get("rotation_size"):
            problems.append("log.audit.rotation.size and log.audit.rotation.date exclude each other")
        parts["rotation_size"] = 0
    return AuditConfig(**parts)

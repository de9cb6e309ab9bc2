"""Sections of the configuration that protect the broker, or tell of it: audit log, events, shovels, passwords."""

from pathlib import Path
from typing import Any

from leveret.broker.config.audit_section import audit_config
from leveret.broker.config.credentials_section import credentials_config
from leveret.broker.config.sections import EventsConfig, ShovelConfig

_LONGEST_NAME = 255
"""Bytes of a short string, the type of names in AMQP."""


def add(parts: dict[str, Any], values: dict[str, Any], problems: list[str]) -> None:
    """Add these sections to the parts of a configuration.

    Args:
        parts: attributes of the configuration; the sections are replaced by their objects.
        values: parsed values by their keys.
        problems: gets a sentence about each inconsistency.

    """
    log_dir = values.get("log.dir", parts.get("data_dir", Path("var")) / "log")
    parts["audit"] = audit_config(parts["audit"], values.get("log.audit.file"), log_dir, problems)
    events = parts["events"]
    vhost = events.get("vhost") or values.get("default_vhost", "/")
    if len(vhost.encode("utf-8", "surrogateescape")) > _LONGEST_NAME:
        key = "event_exchange.vhost" if events.get("vhost") else "default_vhost"
        problems.append(f"{key}: the name of a virtual host has at most {_LONGEST_NAME} bytes")
    parts["shovel"] = ShovelConfig(**parts["shovel"])
    parts["events"] = EventsConfig(enabled=events.get("enabled", False), vhost=vhost)
    python = values.get("compatibility.python_patterns", False)
    parts["credentials"] = credentials_config(parts.get("credentials", {}), problems, python=python)

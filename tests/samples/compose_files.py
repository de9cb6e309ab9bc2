"""Compose files as Docker reads them: services that extend those of other files are merged with them."""

from pathlib import Path
from typing import Any

import yaml
from processes.running import ROOT

DOCKER = ROOT / "docker"


def services(name: str) -> dict[str, dict[str, Any]]:
    """Return the services of a file by their names."""
    found = yaml.safe_load((DOCKER / name).read_text(encoding="utf-8"))["services"]
    return {service: _extended(parts) for service, parts in found.items()}


def _extended(parts: dict[str, Any]) -> dict[str, Any]:
    if "extends" not in parts:
        return parts
    own = dict(parts)
    base = own.pop("extends")
    return _merged(services(base["file"])[base["service"]], own)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in own.items():
        if isinstance(value, dict) and key in base:
            found[key] = _merged(base[key], value)
        elif isinstance(value, list) and key in base:
            found[key] = [*base[key], *value]
        else:
            found[key] = value
    return found


def sources(service: dict[str, Any]) -> list[Path]:
    """Return the files of this repository that a service mounts."""
    found = [volume.split(":")[0] for volume in service.get("volumes", ())]
    return [DOCKER / source for source in found if source.startswith(".")]

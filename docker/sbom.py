"""Prints the software bill of materials of a Python environment: CycloneDX 1.5, as JSON.

    python docker/sbom.py /opt/leveret > sbom.cdx.json

Each installed distribution is a component with its version, its package URL and its licence. The same environment gives
the same octets, so that images can be compared.
"""

import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

MAIN = "leveret"


def site_packages(environment: Path) -> list[str]:
    """Return the directories with the packages of an environment."""
    return sorted(str(path) for path in environment.glob("lib/python*/site-packages"))


def component(distribution: Distribution) -> dict[str, Any]:
    """Return the component of a distribution."""
    metadata = distribution.metadata
    name, version = metadata["Name"], metadata["Version"]
    purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    }
    if expression := metadata.get("License-Expression"):
        found["licenses"] = [{"expression": expression}]
    elif names := [
        line.rpartition(" :: ")[2] for line in metadata.get_all("Classifier") or [] if "License ::" in line
    ]:
        found["licenses"] = [{"license": {"name": name}} for name in names]
    return found


def bill(environment: Path) -> dict[str, Any]:
    """Return the bill of an environment.

    Raises:
        SystemExit: there is no package of that name in it.

    """
    found = {
        each.metadata["Name"].lower(): component(each)
        for each in distributions(path=site_packages(environment))
    }
    if MAIN not in found:
        raise SystemExit(f"{environment}: {MAIN} is not installed there")
    main = {**found.pop(MAIN), "type": "application"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": main},
        "components": [found[name] for name in sorted(found)],
    }


if __name__ == "__main__":
    print(json.dumps(bill(Path(sys.argv[1])), indent=1))

"""The how-to page of limits and audit: its configuration and its commands are tried."""

import json
import re
from pathlib import Path

from checks.how_to import follow
from processes.waiting import wait_until

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "howto" / "limits-and-audit.md"


def test_the_page_is_followed(tmp_path):
    """With the configuration of the page, every command of it does what it says, and leaves its entries."""
    conf = tmp_path / "page.conf"
    conf.write_text("\n".join(re.findall(r"^```ini\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)))
    audit = tmp_path / "data" / "log" / "audit.log"

    def entries() -> list[dict]:
        return [json.loads(line) for line in audit.read_text().splitlines()]

    follow(PAGE, tmp_path, str.split, "--config", str(conf))

    wait_until(lambda: "broker.start" in [entry["event"] for entry in entries()])
    found = [(entry["event"], entry.get("object"), entry["outcome"]) for entry in entries()]
    assert ("users.put", "auditor", "ok") in found
    assert "secret" not in audit.read_text()

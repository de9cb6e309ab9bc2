"""The page about shovels: its commands run, and its table has the keys that there are."""

import re
import shlex

from click.testing import CliRunner
from processes.running import ROOT, serving

from leveret.broker.cli.ctl.main import ctl
from leveret.broker.vhost import shovel_keys

PAGE = ROOT / "docs" / "howto" / "shovels.md"
OLDER = {
    "delete-after",
    "prefetch-count",
    "add-forward-headers",
    "add-timestamp-header",
    "publish-properties",
    "src-protocol",
    "dest-protocol",
}
"""Keys that RabbitMQ keeps for old definitions, and those that have one value."""


def test_the_commands_of_the_page_run(tmp_path):
    """In their order, on a new broker; the other broker need not be there."""
    lines = [
        line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("leveret ctl ")
    ]
    with serving(tmp_path) as running:
        words = [["--data-dir", str(running.data_dir), *shlex.split(line)[2:]] for line in lines]
        results = [CliRunner().invoke(ctl, each) for each in words]

    assert [0] * 4 == [each.exit_code for each in results]
    assert "orders-to-b" in results[1].stdout
    assert "guest" not in results[0].stdout + results[1].stdout


def test_the_page_has_all_keys():
    """In its table, and no others."""
    rows = [
        line
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if re.match(r"\| `(src|dest|ack|rec)", line)
    ]
    shown = set(re.findall(r"`((?:src|dest|ack|reconnect)-[a-z-]+)`", "\n".join(rows)))

    assert set(shovel_keys._KEYS) - OLDER == shown

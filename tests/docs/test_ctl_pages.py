"""The pages about `leveret ctl`: the reference is what the commands say, and the commands of the how-to run."""

import shlex

from click.testing import CliRunner
from running import ROOT, Running

from leveret.broker.cli.ctl.main import ctl

HOW_TO = ROOT / "docs" / "howto" / "users-and-permissions.md"
REFERENCE = ROOT / "docs" / "command-line.md"
WORDS = ("leveret", "ctl")


def test_the_reference_is_what_the_commands_say():
    """`leveret ctl help --markdown` prints the page."""
    assert REFERENCE.read_text(encoding="utf-8") == CliRunner().invoke(ctl, ["help", "--markdown"]).stdout


def test_the_commands_of_the_how_to_run(tmp_path):
    """In the order of the page, on a new broker."""
    lines = HOW_TO.read_text(encoding="utf-8").splitlines()
    commands = [words[2:] for line in lines if tuple((words := line.split(" "))[:2]) == WORDS]
    commands = [shlex.split(" ".join(words)) for words in commands]
    with Running(tmp_path) as running:
        running.wait_for("Server startup complete")
        failed = [
            (words, result.output)
            for words in commands
            if (result := CliRunner().invoke(ctl, ["--data-dir", str(running.data_dir), *words])).exit_code
        ]

    assert [] == failed
    assert len(commands) > 10

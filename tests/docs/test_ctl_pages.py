"""The pages about `leveret ctl`: the examples of the reference and the commands of the how-to run."""

import shlex

import pika
import pytest
from click.testing import CliRunner
from processes.running import ROOT, serving

from leveret.broker.cli.ctl.command import COMMANDS, CtlCommand
from leveret.broker.cli.ctl.main import ctl

HOW_TO = ROOT / "docs" / "howto" / "users-and-permissions.md"
WORDS = ("leveret", "ctl")
NOT_RUN = {
    "wait", "delete_shovel", "close_connection", "log_tail", "stop", "shutdown",
    "cluster_transfer", "forget_cluster_node", "cluster_accept_log", "move_vhost", "cluster_balance",
}  # fmt: skip
"""They need a file, a shovel, a client or other nodes, or end the broker."""


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_has_its_arguments(name):
    """The declaration of a command that needs arguments has words for them."""
    words = shlex.split(COMMANDS[name].example)

    assert name == CtlCommand(name).make_context(name, words[1:]).info_name == words[0]


def order(name: str) -> int:
    """The last are those that remove what others have made: settings before objects."""
    return next(
        (number for number, verb in enumerate(("delete", "clear", "disable")) if name.startswith(verb)), 3
    )


def test_the_examples_run(tmp_path, monkeypatch):
    """In the order of the declarations, on a new broker; but those that need a client, or another file, or end it."""
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path) as running:
        monkeypatch.setenv("LEVERET_CTL_DATA_DIR", str(running.data_dir))
        host, port = running.address
        with pika.BlockingConnection(pika.ConnectionParameters(host, port)) as connection:
            connection.channel().queue_declare("orders", durable=True)
        results = {
            name: CliRunner().invoke(ctl, shlex.split(COMMANDS[name].example.replace("5672", str(port))))
            for name in sorted(COMMANDS, key=order, reverse=True)
            if name not in NOT_RUN
        }

    assert {} == {name: each.output for name, each in results.items() if each.exit_code}


def test_the_help_of_a_command_has_its_example_and_columns():
    """The options of the command stand apart from those that all have."""
    text = CliRunner().invoke(ctl, ["list_queues", "--help"]).stdout

    assert "Example:\n  leveret ctl list_queues name messages_ready" in text
    assert (
        text.index("Options:") < text.index("--offline") < text.index("Common options:") < text.index("--uri")
    )
    assert "messages_unacknowledged" in text[text.index("Columns:") :]


def test_the_commands_of_the_how_to_run(tmp_path):
    """In the order of the page, on a new broker."""
    lines = HOW_TO.read_text(encoding="utf-8").splitlines()
    commands = [words[2:] for line in lines if tuple((words := line.split(" "))[:2]) == WORDS]
    commands = [shlex.split(" ".join(words)) for words in commands]
    with serving(tmp_path) as running:
        failed = [
            (words, result.output)
            for words in commands
            if (result := CliRunner().invoke(ctl, ["--data-dir", str(running.data_dir), *words])).exit_code
        ]

    assert [] == failed
    assert len(commands) > 10

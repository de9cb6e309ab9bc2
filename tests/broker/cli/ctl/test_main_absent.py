"""Commands of RabbitMQ that do not exist: refused without a broker, with what to use instead."""

import re

import pytest
from click.testing import CliRunner

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import COMMANDS
from leveret.broker.cli.ctl.main import ABSENT, INSTEAD, ctl

LEFT = "limits set by `set_vm_memory_high_watermark` and `set_disk_free_limit` stay until they are set again"


def refusal(*words: str) -> str:
    """Return what a command line is answered."""
    done = CliRunner().invoke(ctl, words)
    assert (exit_codes.USAGE, "") == (done.exit_code, done.stdout)
    return done.stderr


@pytest.mark.parametrize(
    ("expression", "advice"),
    [
        (
            "rabbit_alarm:set_alarm({{resource_limit, memory, node()}, []}).",
            "`leveret ctl set_vm_memory_high_watermark absolute 1` raises the memory alarm",
        ),
        (
            "rabbit_alarm:clear_alarm({resource_limit, memory, node()}).",
            "`leveret ctl set_vm_memory_high_watermark 0.4`",
        ),
        (
            "vm_memory_monitor:set_vm_memory_high_watermark(0.4).",
            "`leveret ctl set_vm_memory_high_watermark 0.4`",
        ),
        (
            "rabbit_alarm:set_alarm({{resource_limit, disk, node()}, []}).",
            "`leveret ctl set_disk_free_limit 1000TB` raises the disk alarm",
        ),
        (
            "rabbit_alarm:clear_alarm({resource_limit,\n disk, node()}).",
            "`leveret ctl set_disk_free_limit 50MB`",
        ),
        ("application:set_env(rabbit, channel_max, 1024).", "`leveret config` lists them"),
        ("application:get_env(rabbit, loopback_users).", "`leveret ctl environment` shows"),
    ],
)
def test_the_usual_expressions_are_answered_with_a_command(expression, advice):
    """`eval` names the command for the expression, says that nothing was changed, and what an earlier command has left."""
    lines = refusal("eval", expression).splitlines()

    assert "Command 'eval' not found." == lines[1]
    assert lines[2].endswith("Nothing was changed.")
    assert advice in lines[3]
    assert LEFT in lines[4]
    assert 5 == len(lines)


def test_other_expressions_are_refused_too():
    """Without advice, but what an earlier command has left is told as well."""
    assert LEFT in refusal("eval", "node().").splitlines()[3]
    assert LEFT in refusal("eval").splitlines()[3]


def test_to_stop_the_application_is_refused_with_what_to_do():
    """`stop_app` names the command that ends connections and exclusive queues, and does not send a script to `start_app`."""
    text = refusal("stop_app")

    assert "`leveret ctl close_all_connections REASON --global`" in text
    assert "Did you mean" not in text


@pytest.mark.parametrize("name", sorted(" ".join(ABSENT.values()).split()))
def test_every_absent_command_says_why(name):
    """Each of RabbitMQ's other commands is refused with what it is about."""
    assert "It is one of RabbitMQ's commands that do not exist here, about " in refusal(name)


def test_the_advice_names_commands_that_exist():
    """Every `leveret ctl` command in the texts is there."""
    texts = [refusal("eval", "rabbit_alarm:set_alarm(disk)"), refusal("eval", "rabbit_alarm:clear_alarm()")]
    texts += INSTEAD.values()
    named = {name for text in texts for name in re.findall(r"leveret ctl (\w+)", text)}

    assert {"alarms", "close_all_connections", "set_disk_free_limit", "set_vm_memory_high_watermark"} == named
    assert named <= COMMANDS.keys()

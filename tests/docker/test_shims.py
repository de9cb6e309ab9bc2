"""RabbitMQ's commands in the image: scripts that call them work, and hear what has no effect."""

import pytest
from processes.commands import execute
from processes.running import ROOT

from leveret.broker import exit_codes

BIN = ROOT / "docker" / "bin"
SECONDS = 30


@pytest.fixture
def run(tmp_path):
    """Run a command beside a `leveret` that prints its arguments."""
    (tmp_path / "leveret").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "leveret").chmod(0o755)

    def run(name: str, *arguments: str) -> tuple[int, list[str], str]:
        done = execute([BIN / name, *arguments], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=SECONDS)
        return done.returncode, done.stdout.splitlines(), done.stderr

    return run


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("rabbitmqctl", ["ctl"]),
        ("rabbitmq-diagnostics", ["ctl"]),
        ("rabbitmq-queues", ["ctl"]),
        ("rabbitmq-upgrade", ["ctl"]),
        ("rabbitmq-server", ["serve"]),
    ],
)
def test_arguments_are_handed_on(run, name, command):
    """As they are, with spaces and without changes."""
    assert (0, [*command, "-q", "a b", ""], "") == run(name, "-q", "a b", "")


def test_plugins_are_listed(run):
    """Those whose work Leveret does itself."""
    code, minimal, _ = run("rabbitmq-plugins", "list", "-E", "-m")

    names = ["rabbitmq_management", "rabbitmq_prometheus", "rabbitmq_shovel", "rabbitmq_shovel_management"]
    assert (0, names) == (code, minimal)
    assert [f"[E*] {name}" for name in names] == run("rabbitmq-plugins", "list")[1]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("rabbitmq-plugins", ["--offline", "enable", "rabbitmq_management"]),
        ("rabbitmq-plugins", ["enable", "-n", "rabbit@here", "rabbitmq_federation"]),
        ("rabbitmq-plugins", ["disable", "rabbitmq_stream"]),
        ("rabbitmq-upgrade", ["drain"]),
        ("rabbitmq-upgrade", ["-q", "post_upgrade"]),
        ("rabbitmq-upgrade", ["revive"]),
    ],
)
def test_what_has_no_effect_is_told(run, name, arguments):
    """On standard error, with exit code 0: scripts go on."""
    code, out, err = run(name, *arguments)

    assert (0, []) == (code, out)
    assert "nothing" in err


def test_an_unknown_command_is_an_error(run):
    """It is not silently taken for done."""
    assert exit_codes.USAGE == run("rabbitmq-plugins", "nonsense")[0]


def test_a_plugin_that_is_not_there_is_not_enabled(run):
    """Scripts may ask before they rely on it."""
    assert 0 == run("rabbitmq-plugins", "-q", "is_enabled", "rabbitmq_management")[0]
    assert exit_codes.UNAVAILABLE == run("rabbitmq-plugins", "is_enabled", "rabbitmq_federation")[0]

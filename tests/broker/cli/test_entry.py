"""The program `leveret`: what its commands load, and their help."""

import json
import re
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner
from processes.commands import execute

from leveret.broker.cli.entry import LIGHT
from leveret.broker.cli.main import main

SECONDS = 60
PROGRAM = """
import atexit, json, sys
atexit.register(lambda: print("\\n" + json.dumps(sorted(sys.modules))))
from leveret.broker.cli.entry import main
sys.argv = ["leveret", *sys.argv[1:]]
main()
"""
HEAVY = {
    "aiofiles",
    "aiohttp",
    "asyncio",
    "importlib.metadata",
    "leveret.broker.cli.main",
    "leveret.broker.config",
    "leveret.broker.server",
    "lmdb",
    "logging",
    "pamqp",
    "re2",
    "uvloop",
}
"""Modules that a client of the broker has no use for, and waits for."""


@pytest.mark.parametrize("command", ["ping", "list_queues", "add_user"])
def test_a_command_for_a_running_broker_loads_no_broker(tmp_path, command):
    """Scripts call such commands often, so these load only a client."""
    words = [sys.executable, "-c", PROGRAM, "ctl", command, "--data-dir", str(tmp_path), "-q"]
    words += ["ann", "secret"] if command == "add_user" else []
    done = execute(words, timeout=SECONDS)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))

    assert "it is not running" in done.stderr
    assert set() == HEAVY & loaded


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command in a group, but of those that are described elsewhere."""
    context = click.Context(group)
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        if isinstance(each, click.Group) and name != "ctl":
            yield from commands(each, (*path, name))
        elif name not in {"ctl", "analyze"}:
            yield (*path, name)


@pytest.mark.parametrize("words", [(), *commands(main)], ids=" ".join)
def test_the_help_of_each_command_has_an_example(words):
    """In a line of its own, which can be copied."""
    text = CliRunner().invoke(main, [*words, "--help"]).stdout

    assert re.search(rf"Examples?:\n    {' '.join(['leveret', *words])}", text)


def test_the_list_of_commands_has_whole_sentences():
    """Sentences that are cut say nothing to who does not know the command yet."""
    for words in ((), ("store",), ("definitions",), ("dlq",), ("explain",)):
        assert "..." not in CliRunner().invoke(main, [*words, "--help"]).stdout.replace("[ARGS]...", "")


@pytest.mark.parametrize("words", [(name,) for name in LIGHT] + [("dlq", "retry"), ("ctl", "ping")])
def test_light_commands_have_the_short_option_for_help(words):
    """`-h` prints the help of a command that is run without loading the broker, as it does of the other commands."""
    done = execute([sys.executable, "-m", "leveret", *words, "-h"], timeout=SECONDS)

    assert (0, "") == (done.returncode, done.stderr)
    assert done.stdout.startswith(f"Usage: leveret {' '.join(words)} ")


def test_other_commands_are_there():
    """The entry hands them to the command line of the broker."""
    words = [sys.executable, "-m", "leveret", "--help"]
    done = execute(words, timeout=SECONDS, check=True)

    assert {"config", "ctl", "definitions", "perf", "serve", "store"} <= set(done.stdout.split())

"""Arguments of commands that are not UTF-8, on a broker of their own."""

import json
import os
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result
from processes.running import Running, serving

from leveret.broker import exit_codes
from leveret.broker.cli import entry
from leveret.broker.cli.ctl.client import ApiClient

NAME = os.fsdecode(b"\xff\xfe")
"""A name that only the API can give to a queue."""
SHOWN = r"\udcff\udcfe"


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """A broker with two queues."""
    with serving(tmp_path_factory.mktemp("broker")) as running:
        api = ApiClient(running.data_dir)
        for name in (NAME, "orders"):
            api.put("queues", "/", name, body={"durable": True})
        api.close()
        yield running


def run(running: Running, *words: str) -> Result:
    """Run a command of `leveret`."""
    name = words[0]
    group = click.Group(commands={name: entry.load(name)})
    return CliRunner().invoke(group, [*words, "--data-dir", str(running.data_dir)])


def test_a_queue_is_reached_by_its_name(running):
    """All commands on a queue take a name that is not UTF-8, and show it with escapes."""
    for words, text in (
        (("peek", NAME), "no messages\n"),
        (("pause", NAME), f"queue '{SHOWN}' is paused\n"),
        (("resume", NAME), f"queue '{SHOWN}' is resumed\n"),
        (("move", NAME, "orders"), "0 of 0 messages moved to queue 'orders'\n"),
        (("discard", NAME), "0 of 0 messages discarded\n"),
        (("dlq", "retry", NAME), "0 of 0 messages retried to their origins\n"),
        (("ctl", "purge_queue", NAME), f"Purging queue '{SHOWN}' in vhost '/' ...\n"),
    ):
        result = run(running, *words)
        assert (0, text) == (result.exit_code, result.stdout), result.output
    assert SHOWN == json.loads(run(running, "pause", NAME, "--format", "json").stdout)["queue"]
    assert "settings" in run(running, "explain", "queue", NAME).stdout


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("peek", "orders", "-p", NAME), 69, ""),
        (("peek", NAME, "--where", NAME), 64, "where"),
        (("tail", NAME), 69, ""),
        (("tail", "amq.topic", NAME), 64, "pattern"),
        (("move", "orders", NAME), 64, "destination"),
        (("discard", "orders", "--where", NAME), 64, "where"),
        (("dlq", "list", "-p", NAME), 69, ""),
        (("dlq", "retry", "orders", "--to", NAME), 64, "destination"),
        (("dlq", "retry", "orders", "--reason", NAME), 64, "reason"),
        (("explain", "publish", "amq.topic", NAME), 64, "routing_key"),
        (("explain", "publish", "amq.topic", "a", "--header", f"{NAME}=1"), 64, "headers"),
        (("explain", "publish", "amq.topic", "a", "--header", f"x={NAME}"), 64, "headers"),
        (("replay", "orders", "--since", NAME, "--to", "orders"), 2, SHOWN),
        (("ctl", "add_user", "ann", NAME), 64, "password"),
        (("ctl", "set_parameter", "shovel", "a", NAME), 69, "JSON decoding error"),
        (("ctl", "close_connection", NAME, NAME), 69, SHOWN),
        (("ctl", "resolve_hostname", NAME), 69, SHOWN),
        (("ctl", "check_port_connectivity", "--address", NAME), 69, SHOWN),
    ],
)
def test_other_arguments_are_refused(running, words, code, text):
    """The error names the argument, but not its value, which may be a secret; nothing ends with a traceback."""
    result = run(running, *words)

    assert isinstance(result.exception, SystemExit), result.exception
    assert code == result.exit_code
    assert text in result.stderr
    assert code != exit_codes.USAGE or f"Error: {text}: not UTF-8\n" == result.stderr


@pytest.mark.parametrize(
    "uri", [f"http://{NAME}:{NAME}@127.0.0.1:1", f"http://{NAME}", f"http://127.0.0.1:1/{NAME}"]
)
def test_a_uri_is_told_to_lead_nowhere(uri):
    """No part of a URI that is not UTF-8 is more than an error."""
    result = CliRunner().invoke(entry.load("peek"), ["orders", "--uri", uri])

    assert (69, True) == (result.exit_code, "unable to connect" in result.stderr)

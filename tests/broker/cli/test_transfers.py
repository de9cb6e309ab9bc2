"""The commands `leveret move`, `copy`, `discard` and `dlq`, on a broker of their own."""

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import click
import pika
import pytest
from click.testing import CliRunner, Result
from processes.running import Running, channel_to, serving

from leveret.broker.cli import entry, transfers


@pytest.fixture
def running(tmp_path) -> Iterator[Running]:
    """A broker with ten messages in `orders`, and two dead letters in `failed`."""
    with serving(tmp_path) as running:
        with channel_to(running.address) as channel:
            channel.confirm_delivery()
            failed = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
            for name, arguments in (("orders", {}), ("others", {}), ("failed", {}), ("work", failed)):
                channel.queue_declare(name, durable=True, arguments=arguments)
            for number in range(10):
                channel.basic_publish(
                    "", "orders", b"%d" % number, pika.BasicProperties(headers={"n": number})
                )
            for body in (b"one", b"two"):
                channel.basic_publish("", "work", body)
                channel.basic_reject(channel.basic_get("work")[0].delivery_tag, requeue=False)
            channel.queue_declare("work", passive=True)
        yield running


def run(running: Running, name: str, *words: str) -> Result:
    group = click.Group(commands={name: entry.load(name)})
    return CliRunner().invoke(group, [name, *words, "--data-dir", str(running.data_dir)])


def test_messages_are_moved(running):
    """The result is told in a line; what cannot go is told with its cause, and the exit code is 1."""
    where = ("--where", "headers.n in (1, 2, 3)")
    dry = run(running, "move", "orders", "others", *where, "--dry-run")
    done = run(running, "move", "orders", "others", *where)
    unroutable = run(running, "move", "orders", "exchange:amq.topic/none")
    copied = run(running, "copy", "orders", "others", "--limit", "2", "--rate", "100")
    gone = run(running, "discard", "orders", "--format", "json")

    assert (0, "3 of 10 messages would be moved to queue 'others'\n") == (dry.exit_code, dry.stdout)
    assert (0, "3 of 10 messages moved to queue 'others'\n") == (done.exit_code, done.stdout)
    assert 1 == unroutable.exit_code
    assert "7 stay: unroutable" in unroutable.stdout
    assert (0, "2 of 7 messages copied to queue 'others'\n") == (copied.exit_code, copied.stdout)
    found: dict[str, Any] = json.loads(gone.stdout)
    assert (0, "done", 7) == (gone.exit_code, found["state"], found["done"])


def test_dead_letters_are_listed_and_retried(running):
    """The list says where dead letters are, why and from where; a retry moves them back."""
    listed = run(running, "dlq", "list")
    heading, row = listed.stdout.splitlines()
    assert heading.startswith("queue ")
    assert heading.endswith("first died            last died")
    assert "failed  2         2             rejected 2  work 2" in row
    assert 1 == len(json.loads(run(running, "dlq", "list", "--all", "--format", "json").stdout))
    dry = run(running, "dlq", "retry", "failed", "--dry-run", "--limit", "1")
    assert "1 of 2 messages would be retried to their origins\n" == dry.stdout
    done = run(running, "dlq", "retry", "failed", "--to-origin", "--reason", "rejected")
    assert (0, "2 of 2 messages retried to their origins\n") == (done.exit_code, done.stdout)
    assert "no dead letters\n" == run(running, "dlq", "list").stdout
    used_up = run(running, "dlq", "retry", "work", "--max-retries", "1")
    assert (1, True) == (used_up.exit_code, "2 stay: retries used up" in used_up.stdout)
    run(running, "move", "work", "failed", "--limit", "1")
    heading, row = run(running, "dlq", "list").stdout.splitlines()
    assert ("retries", "1") == (heading.split()[-1], row.split()[-1])
    run(running, "move", "failed", "work")


def test_a_long_queue_of_dead_letters_is_told(running):
    """Of a queue with more messages than are looked at, the list says so."""
    with channel_to(running.address) as channel:
        for _ in range(2500):
            channel.basic_publish("", "failed", b"")
        channel.queue_declare("failed", passive=True)
    *_, last = run(running, "dlq", "list").stdout.splitlines()
    (found,) = json.loads(run(running, "dlq", "list", "--format", "json").stdout)

    assert 1000 <= found["examined"] < found["messages"] == 2502
    assert f"failed: only the first {found['examined']:,} of 2,502 messages were examined" == last


def test_names_do_not_act_on_the_terminal(running):
    """A name with escapes, which any client may choose, is shown as what it is, in lists and in errors."""
    name, shown = "e\x1b[31m\x1b]0;pwn\x07", r"e\x1b[31m\x1b]0;pwn\x07"
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name, "x-message-ttl": 0}
    with channel_to(running.address) as channel:
        channel.queue_declare(name)
        channel.queue_declare("short", arguments=arguments)
        channel.basic_publish("", "short", b"")
        for _ in range(1500):
            channel.basic_publish("", name, b"")
        channel.queue_declare(name, passive=True)
    listed = run(running, "dlq", "list")
    missing = run(running, "peek", f"{name}2")
    refused = run(running, "ctl", "close_connection", name, "why")
    unknown = run(running, "ctl", "delete_vhost", name)

    assert f"{shown}: only the first" in listed.stdout
    assert f"no queue '{shown}2'" in missing.stderr
    assert shown in refused.stderr
    assert shown in unknown.stderr
    assert "\x1b" not in f"{listed.output}{missing.output}{refused.stderr}{unknown.stderr}"


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("move", "orders"), 2, "Missing argument 'DESTINATION'"),
        (("move", "orders", "none"), 69, "no queue 'none' in vhost '/'"),
        (("move", "orders", "orders"), 69, "is the source itself"),
        (("discard", "orders", "--where", "n = 1"), 69, "where: column"),
        (("dlq", "retry", "failed", "--to", "work", "--to-origin"), 2, "exclude each other"),
    ],
)
def test_wrong_commands(running, words, code, text):
    """A wrong command is refused with the reason, and moves nothing."""
    result = run(running, *words)

    assert (code, True) == (result.exit_code, text in result.stderr), result.stderr


def test_an_interrupted_command_ends_after_a_batch(running, monkeypatch):
    """Ctrl-C ends the transfer in the broker, too, and the result says how far it went."""
    asked = []

    def interrupt(seconds: float) -> None:
        asked.append(seconds)
        if len(asked) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(transfers, "clock", SimpleNamespace(sleep=interrupt))
    result = run(running, "move", "orders", "others", "--rate", "1")

    assert 1 == result.exit_code
    assert "cancelled" in result.stdout


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("discard", "orders", "--where", ""), "the condition is empty"),
        (("move", "orders", "others", "--where", "  "), "the condition is empty"),
        (("dlq", "retry", "failed", "--first", "--to", "others"), "--first and --to exclude each other"),
        (("dlq", "retry", "failed", "--reason", "reject"), "reason: 'reject' is none of rejected, expired"),
        (("discard", "orders", "--timeout", "-1"), "-1.0 is not a number of seconds"),
        (("discard", "orders", "--timeout", "nan"), "nan is not a number of seconds"),
        (("discard", "orders", "--timeout", "1e300"), "1e+300 is not a number of seconds"),
    ],
)
def test_a_choice_that_cannot_be_meant_is_refused(running, words, text):
    """An empty condition, two destinations, an unknown reason and no time are errors, and do not choose all or no messages."""
    refused = run(running, *words)
    left = run(running, "discard", "orders", "--dry-run")

    assert refused.exit_code
    assert text in refused.output
    assert "10 of 10 messages would be discarded\n" == left.stdout

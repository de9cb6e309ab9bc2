"""The command `leveret peek`, on a broker of its own."""

import json
from collections.abc import Iterator

import pika
import pytest
from click.testing import CliRunner, Result
from processes.running import Running, channel_to, serving

from leveret.broker.cli import entry
from leveret.broker.cli.ctl.output import duration, printable, printable_lines
from leveret.broker.cli.target import table
from leveret.broker.time_text import moment


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """A broker with some messages in `orders`, one of them unacked."""
    with serving(tmp_path_factory.mktemp("broker")) as running, channel_to(running.address) as channel:
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True)
        for number in range(12):
            properties = pika.BasicProperties(headers={"n": number})
            channel.basic_publish("", "orders", b"order %d" % number, properties)
        channel.basic_publish("", "orders", b"\x1b[2J\xff")
        channel.queue_declare("celery")
        task = pika.BasicProperties(headers={"task": "shop.charge", "eta": None})
        channel.basic_publish("", "celery", b"[[17], {}, {}]", task)
        channel.basic_get("orders")
        yield running


def run(running: Running, *words: str) -> Result:
    return CliRunner().invoke(entry.load("peek"), ["--data-dir", str(running.data_dir), *words])


def test_a_table_for_people(running):
    """A line for each message, with a number to refer to it; nothing of a body acts on the terminal."""
    result = run(running, "orders", "-n", "100")

    heading, *lines = result.stdout.splitlines()
    assert 0 == result.exit_code
    assert ["#", "state"] == heading.split()[:2]
    assert heading.endswith("bytes  body")
    assert 13 == len(lines)
    assert lines[0].split()[:2] == ["1", "ready"]
    assert lines[0].endswith("order 1")
    assert "base64: G1sySv8=" in lines[11]
    assert lines[12].split()[:1] == ["unacked"]


def test_a_task_of_celery_has_its_name(running):
    """The task's name has a column, which queues without tasks do not get."""
    heading, line = run(running, "celery").stdout.splitlines()

    assert "routing key  task         bytes  body" in heading
    assert "celery       shop.charge  14     [[17], {}, {}]" in line
    assert "task" not in run(running, "orders").stdout.splitlines()[0]


def test_json_for_programs(running):
    """The API's answer, whole."""
    found = json.loads(run(running, "orders", "--format", "json", "--where", "headers.n in (3, 0)").stdout)

    assert [("ready", "order 3", 3), ("unacked", "order 0", None)] == [
        (each["state"], each["payload"], each["number"]) for each in found
    ]


def test_the_newest_first(running):
    """`--from tail` begins with the newest."""
    assert "12  ready" in run(running, "orders", "--from", "tail", "-n", "1").stdout.splitlines()[1]


def test_errors_end_the_command(running, tmp_path):
    """A missing queue, a wrong condition and a broker that does not run are errors with one line each."""
    result = run(running, "none")
    assert (69, "Error: no queue 'none' in vhost '/'\n") == (result.exit_code, result.stderr)
    result = run(running, "orders", "--where", "size = 1")
    assert (69, "Error: where: column 6: unexpected '=': equality is '=='\n") == (
        result.exit_code,
        result.stderr,
    )
    result = CliRunner().invoke(entry.load("peek"), ["--data-dir", str(tmp_path), "orders"])
    assert 69 == result.exit_code
    assert "it is not running" in result.stderr
    assert "no messages\n" == run(running, "orders", "--where", "size > 1MB").stdout


def test_every_command_has_examples():
    """The help of each command has a heading for them, and is one of `leveret`."""
    for name in [name for name, place in entry.LIGHT.items() if name not in {"analyze", "ctl", "top"}]:
        text = CliRunner().invoke(entry.load(name), ["--help"]).stdout
        assert f"leveret {name} " in text.partition("Example")[2]


def test_cells():
    """Durations, times and cells are short, and no character of a cell acts on a terminal."""
    assert ["", "0s", "59s", "1m01s", "1h01m", "2d03h"] == [
        duration(each) for each in (None, 0.4, 59, 61, 3660, 183_600)
    ]
    assert ("", "1970-01-01T00:00:01Z") == (moment(None), moment(1000))
    assert r"a\x1b\n\u202e" == printable("a\x1b\n\u202e")
    assert "a\\x1b\n\\u202e\n" == printable_lines("a\x1b\n\u202e\n")
    assert ["A   B", "1   xy", "22"] == table(
        [{"a": 1, "b": "xy"}, {"a": 22}], {"a": "A", "b": "B", "c": "C"}
    )


def test_explanations(running):
    """`leveret explain` prints the lines of the API, or its facts as JSON."""

    def explain(*words: str) -> Result:
        kind, *rest = words
        return CliRunner().invoke(entry.load("explain"), [kind, "--data-dir", str(running.data_dir), *rest])

    assert "queue 'orders' in vhost '/' (classic, durable)" in explain("queue", "orders").stdout
    found = explain("publish", "amq.default", "orders", "--header", "n=5", "--header", "kind=a")
    assert "reaches 1 queue:\n    'orders'" in found.stdout
    assert "11 messages before it" in explain("message", "orders", "12").stdout
    assert "by basic.get" in explain("message", "orders", "1", "--state", "unacked").stdout
    assert "orders" == json.loads(explain("queue", "orders", "--format", "json").stdout)["name"]
    assert 2 == explain("publish", "", "orders", "--header", "n").exit_code
    assert (69, "Error: no queue 'none' in vhost '/'\n") == (
        explain("queue", "none").exit_code,
        explain("queue", "none").stderr,
    )

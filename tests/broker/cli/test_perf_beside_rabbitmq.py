"""`leveret perf` against a real RabbitMQ: counts, alarms, refusals, and nothing left behind."""

import re
import signal
import subprocess
from collections.abc import Iterator

import msgspec
import pytest
from click.testing import CliRunner
from conformance.brokers import Broker, SetUp, rabbitmq_server, start_rabbitmq
from processes.running import command, deadline, environment

from leveret.broker.cli.main import main
from leveret.broker.perf.measurement import Result

pytestmark = pytest.mark.skipif(rabbitmq_server() is None, reason="needs rabbitmq-server")
SECONDS = 60


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    broker = start_rabbitmq(SetUp("measured"))
    yield broker
    broker.stop()


def url(node: Broker, user: str = "guest", password: str | None = None, vhost: str = "%2F") -> str:
    host, port = node.address
    return f"amqp://{user}:{password or user}@{host}:{port}/{vhost}"


@pytest.mark.parametrize(
    "arguments",
    [
        ("-r", "500"),
        ("-c", "20", "-q", "20", "-f", "persistent"),
        ("-x", "3", "-y", "2", "--queues", "5", "-c", "10", "-A", "5", "-s", "2000"),
        ("-x", "2", "-s", "300000", "-c", "3", "-a"),
        ("-e", "measured", "-t", "fanout", "--queues", "3", "-r", "100"),
    ],
    ids=" ".join,
)
def test_everything_sent_is_confirmed_and_received(node, arguments):
    """Each message is confirmed once and received once from each of its queues; queues and exchanges are deleted."""
    done = CliRunner().invoke(main, ["perf", "--uri", url(node), "--json", "-z", "1", *arguments])
    assert 0 == done.exit_code, done.output
    result = msgspec.json.decode(done.stdout, type=Result, strict=True)
    copies = 3 if "fanout" in arguments else 1

    assert "RabbitMQ" == result.server.product
    assert result.sent.count > 0
    assert result.sent.count * copies == result.received.count == result.latency_us.count
    assert result.confirmed.count == (result.sent.count if "-c" in arguments else 0)
    assert (0, 0, None) == (result.unsent, result.unconfirmed, result.error)
    if "-r" in arguments:
        assert result.load.rate == result.sent.count
    assert "perf" not in node.control("list_queues", "name")
    assert "measured" not in node.control("list_exchanges", "name")


def test_a_memory_alarm_is_shown(node):
    """While RabbitMQ's memory alarm blocks the producer its line says so; all messages arrive afterwards."""
    process = subprocess.Popen(
        command("perf", "--uri", url(node), "-z", "0", "-r", "100", "-c", "50"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"PYTHONUNBUFFERED": "1"},
    )
    with process, deadline(process, SECONDS):
        try:
            next(line for line in process.stdout if line.lstrip()[:1].isdigit())
            node.short_of("memory")
            next(line for line in process.stdout if "blocked by the broker: low on memory" in line)
        finally:
            node.short_of()
        next(line for line in process.stdout if re.match(r" +\d+\.\d +[1-9]", line) and "blocked" not in line)
        process.send_signal(signal.SIGINT)
        out, err = process.stdout.read(), process.stderr.read()

    (sent,), (confirmed,) = (
        re.findall(rf"^  {name} +([\d,]+) ", out, re.MULTILINE) for name in ("sent", "confirmed")
    )
    assert (0, "", sent) == (process.returncode, err, confirmed)
    assert re.search(r"^blocked by the broker for \d+\.\d s: low on memory$", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("login", "reason"),
    [
        (("guest", "wrong"), "403 ACCESS_REFUSED - Login was refused"),
        (("guest", None, "none"), "530 NOT_ALLOWED - "),
        (("limited",), "403 ACCESS_REFUSED - "),
    ],
)
def test_a_refusal_is_said(node, login, reason):
    """A wrong password, an unknown vhost and a missing permission end the command with RabbitMQ's reason and 77."""
    done = CliRunner().invoke(main, ["perf", "--uri", url(node, *login), "-z", "1"])

    assert (77, "") == (done.exit_code, done.stdout)
    assert reason in done.stderr
    assert 1 == len(done.stderr.splitlines())

"""`leveret perf` against our broker: counts, pacing, clean-up, output, errors."""

import json
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pika
import pika.exceptions
import pytest
from click.testing import CliRunner, Result as Output
from processes.running import command, deadline, environment, free_port, serving
from samples.certificates import Authority

import leveret
from leveret.broker.cli.main import main
from leveret.broker.perf.load import STAMP_SIZE, Load
from leveret.broker.perf.measurement import Interval, Percentiles, Result

PAGE = Path(__file__).resolve().parents[3] / "docs" / "howto" / "measure.md"
SECONDS = 60


@pytest.fixture
def broker() -> Iterator[leveret.Broker]:
    with leveret.Broker() as running:
        yield running


def perf(url: str, *arguments: str) -> Output:
    return CliRunner().invoke(main, ["perf", "--uri", url, *arguments])


def measured(broker: leveret.Broker, *arguments: str) -> Result:
    """Return the JSON document of a run that ends well."""
    done = perf(broker.url, "--json", *arguments)

    assert 0 == done.exit_code, done.output
    return msgspec.json.decode(done.stdout, type=Result, strict=True)


def started(url: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("perf", "--uri", url, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment() | {"PYTHONUNBUFFERED": "1"},
    )


def first_row(process: subprocess.Popen[str]) -> str:
    """Return the row of the first second, which comes later on a busy machine."""
    return next(line for line in process.stdout if line.lstrip()[:1].isdigit())


def rest(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return what else the command prints, and its errors, once it has ended."""
    with deadline(process, SECONDS):
        out, err = process.stdout.read(), process.stderr.read()
        process.wait()
    return out, err


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("-a",),
        ("-A", "7"),
        ("-q", "10", "-c", "3", "-f", "persistent"),
        ("-x", "3", "-y", "2", "--queues", "5", "-c", "50"),
        ("-x", "2", "-y", "3", "--queues", "2", "--persistent", "-s", "300000", "-c", "4"),
        ("-r", "300", "-c", "20"),
        ("-y", "0", "-c", "10"),
    ],
    ids=" ".join,
)
def test_everything_sent_is_confirmed_and_received(broker, arguments):
    """With any number of producers, consumers, queues and any acks, each message is received and confirmed once."""
    result = measured(broker, "-z", "0.5", *arguments)

    assert result.sent.count > 0
    assert result.confirmed.count == (result.sent.count if "-c" in arguments else 0)
    if "-y" not in arguments or arguments[arguments.index("-y") + 1] != "0":
        assert result.sent.count == result.received.count == result.latency_us.count
        assert 0 == result.unreceived
    assert (0, 0, None, 0.0) == (result.unsent, result.unconfirmed, result.error, result.blocked_seconds)
    assert [] == broker.queues()


@pytest.mark.parametrize(("rate", "producers"), [("200", "1"), ("150.5", "2"), ("3000", "1")])
def test_a_rate_is_kept_by_every_producer(broker, rate, producers):
    """A paced run sends the rate times the seconds times the producers, no message more or less."""
    result = measured(broker, "-z", "2", "-r", rate, "-x", producers)
    expected = round(2 * float(rate)) * int(producers)

    assert expected == result.sent.count == result.received.count == result.send_delay_us.count
    assert 0.7 * expected / 2 <= result.sent.rate <= expected / 2
    assert result.latency_us.min <= result.latency_us.p50 <= result.latency_us.p99 <= result.latency_us.max


def test_a_fanout_exchange_reaches_every_queue(broker):
    """With --exchange and --type the run declares and binds an exchange, and deletes it and its queues afterwards."""
    result = measured(broker, "-z", "0.3", "-r", "200", "-e", "all", "-t", "fanout", "--queues", "3")

    assert (60, 180, None) == (result.sent.count, result.received.count, result.unreceived)
    assert [] == broker.queues()
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="NOT_FOUND"):
        connection.channel().exchange_declare("all", passive=True)
    connection.close()


def test_an_existing_queue_is_used_and_kept(broker):
    """A queue that exists is consumed from whatever it contains, and is there afterwards; a new one is deleted."""
    broker.declare(queue="kept")
    broker.publish("", "kept", b"a message of somebody else")
    result = measured(broker, "-z", "0.3", "-r", "100", "-u", "kept")
    measured(broker, "-z", "0.1", "-r", "100", "-u", "new")

    assert (30, 31, 30) == (result.sent.count, result.received.count, result.latency_us.count)
    assert ["kept"] == broker.queues()


def test_messages_without_a_queue_are_returned(broker):
    """Mandatory messages that reach no queue are counted as returned, and are confirmed."""
    words = "-z 0.3 -r 100 -f mandatory -e amq.direct -k x --queues 0 -y 0 -c 9"
    result = measured(broker, *words.split())

    assert (30, 30, 30) == (result.sent.count, result.returned, result.confirmed.count)


def test_refused_messages_are_counted(broker):
    """Messages that the broker refuses with basic.nack are counted as such, and are not confirmed."""
    with broker.faults.nack_next(5):
        result = measured(broker, "-z", "0.3", "-r", "100", "-c", "10")

    assert (5, 25, 0) == (result.nacked, result.confirmed.count, result.unconfirmed)


def test_a_blocked_connection_is_shown_and_part_of_the_latency(broker):
    """While an alarm blocks the producer its line says so, and the time counts for all messages that were due."""
    with started(broker.url, "-z", "3", "-r", "200") as process:
        first = first_row(process)
        with broker.faults.block("memory"):
            time.sleep(0.7)  # the length of the pause that is measured
        out, err = rest(process)

    assert "" == err
    assert "blocked" not in first
    assert "blocked by the broker: low on memory" in out
    assert re.search(r"^blocked by the broker for [0-2]\.\d s: low on memory$", out, re.MULTILINE)
    assert re.search(r"sent +600 ", out)
    greatest = float(re.search(r"^ +latency .* ([\d.]+)$", out, re.MULTILINE)[1])
    assert 600 < greatest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_summary(broker, number):
    """SIGINT and SIGTERM end a run without a limit: summary, exit code 0, and no queue is left."""
    with started(broker.url, "-z", "0", "-r", "100", "-c", "10") as process:
        first_row(process)
        process.send_signal(number)
        out, err = rest(process)

    assert (0, "") == (process.returncode, err)
    assert re.search(r"sent +\d+", out)
    assert "not confirmed" not in out
    assert [] == broker.queues()


def test_an_interrupt_before_the_run_begins_leaves_nothing():
    """SIGINT while connections are opened ends the command."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with started(f"amqp://127.0.0.1:{port}") as process:
            silent.settimeout(SECONDS)
            connection, _ = silent.accept()
            connection.recv(8)
            process.send_signal(signal.SIGINT)
            out, err = rest(process)
            connection.close()

    assert (1, "") == (process.returncode, out)
    assert "Traceback" not in err


def test_a_broker_that_stops_ends_the_run(broker):
    """If the broker closes the connections, the command prints the summary, the reason, and exits with 69."""
    with started(broker.url, "-z", "0", "-r", "100") as process:
        first_row(process)
        broker.stop()
        out, err = rest(process)

    assert 69 == process.returncode
    assert re.search(r"sent +\d+", out)
    assert err.startswith("leveret: the broker replied 320 CONNECTION_FORCED")
    assert 1 == len(err.splitlines())


def test_a_deleted_queue_ends_the_run(broker):
    """If somebody deletes the queue, the command says that a consumer was cancelled, and exits with 69."""
    broker.declare(queue="mine")
    with started(broker.url, "-z", "0", "-r", "100", "-u", "mine") as process:
        first_row(process)
        broker.queue("mine").delete()
        _, err = rest(process)

    assert (69, "leveret: the broker cancelled a consumer: its queue was deleted, or may not be read\n") == (
        process.returncode,
        err,
    )


def test_a_refused_connection_is_said():
    """Without a broker the command says what refused the connection, and exits with 69."""
    port = free_port()
    done = perf(f"amqp://127.0.0.1:{port}")

    assert (69, f"leveret: cannot connect to 127.0.0.1:{port}: Connection refused\n") == (
        done.exit_code,
        done.stderr,
    )


def test_an_unknown_host_is_said():
    """A name without an address is an error with its name and exit code 69."""
    done = perf("amqp://nowhere.invalid")

    assert 69 == done.exit_code
    assert done.stderr.startswith("leveret: cannot connect to nowhere.invalid:5672: ")


def test_another_protocol_is_said():
    """A server that does not speak AMQP is an error of one line, exit code 69."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            connection.recv(8)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=answer)
        thread.start()
        done = perf(f"amqp://127.0.0.1:{server.getsockname()[1]}")
        thread.join(SECONDS)

    assert (69, "leveret: the server does not speak AMQP 0-9-1\n") == (done.exit_code, done.stderr)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("guest:guest@", "guest:wrong@"), "403 ACCESS_REFUSED"),
        (("%2F", "none"), "530 NOT_ALLOWED - vhost none not found"),
    ],
)
def test_a_refused_login_is_said(broker, change, reason):
    """A wrong password and an unknown vhost are errors with the broker's reason, exit code 77."""
    done = perf(broker.url.replace(*change))

    assert 77 == done.exit_code
    assert reason in done.stderr
    assert "wrong" not in done.stderr
    assert 1 == len(done.stderr.splitlines())


def test_a_queue_of_another_connection_is_said(broker):
    """A queue that the broker does not give to the run is an error with its reason, exit code 69, before the run."""
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    connection.channel().queue_declare("exclusive", exclusive=True)
    done = perf(broker.url, "-u", "exclusive")
    connection.close()

    assert (69, "") == (done.exit_code, done.stdout)
    assert "405 RESOURCE_LOCKED" in done.stderr


def test_without_an_address_it_finds_the_broker_of_its_user(tmp_path, monkeypatch):
    """As other commands do: a broker on another port needs no option."""
    with serving(tmp_path) as running:
        monkeypatch.setenv("LEVERET_DATA_DIR", str(running.data_dir))
        done = CliRunner().invoke(main, ["perf", "--json", "-z", "0.2", "-r", "50"])

    assert 0 == done.exit_code, done.output
    assert f":{running.address[1]}/" in msgspec.json.decode(done.stdout, type=Result).uri


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--uri", "h"), "must begin with amqp://"),
        (("-x", "0", "-y", "0"), "at least one producer or consumer"),
        (("-s", str(STAMP_SIZE - 1)), "12"),
        (("-r", "0"), "0"),
        # nobody believes that a connection is encrypted that is not
        (("--cacert", "ca.pem"), "--cacert needs a URI that begins with amqps://"),
        (("--insecure",), "--insecure needs a URI that begins with amqps://"),
        (("--uri", "amqps://h", "--key", "k.pem"), "--key needs --cert"),
    ],
)
def test_wrong_options_are_refused(arguments, reason):
    """Options that are not valid are refused before anything is connected, with exit code 2."""
    done = CliRunner().invoke(main, ["perf", *arguments])

    assert 2 == done.exit_code
    assert reason in done.stderr


def test_an_interval_is_printed_every_second(broker):
    """A run prints a line a second, each with its rates, and a summary."""
    done = perf(broker.url, "-z", "2.5", "-r", "100", "-c", "10")
    seconds = re.findall(r"^ +(\d\.\d) +\d+ +\d+ +\d+ +[\d.-]+ ", done.stdout, re.MULTILINE)

    assert done.stdout.startswith(f"Leveret {leveret.__version__} at amqp://guest@127.0.0.1:")
    assert ["1.0", "2.0", "2.5"] == seconds
    assert re.search(r"^  confirmed +250 ", done.stdout, re.MULTILINE)


def test_the_json_document_has_the_documented_fields(broker):
    """The page about measuring names each field of the document, and the load in it has the options of the run."""
    done = perf(broker.url, "--json", "-z", "1.3", "-r", "100", "-c", "10", "-s", "20")
    document = json.loads(done.stdout)
    page = PAGE.read_text(encoding="utf-8")
    fields = {
        *Result.__struct_fields__,
        *Interval.__struct_fields__,
        *Percentiles.__struct_fields__,
        *Load.__struct_fields__,
    }

    assert [] == sorted(name for name in fields if f"`{name}`" not in page)
    assert set(Result.__struct_fields__) == set(document)
    assert (100.0, 10, 20, 1.3) == tuple(
        document["load"][name] for name in ("rate", "confirm", "size", "seconds")
    )
    assert "guest:guest" not in done.stdout
    seconds = [0.0, *(each["second"] for each in document["intervals"])]
    sent = [
        each["sent"] * (each["second"] - before)
        for each, before in zip(document["intervals"], seconds, strict=False)
    ]
    assert 130 == pytest.approx(sum(sent), abs=2)


def test_it_measures_over_tls(tmp_path: Path) -> None:
    """With amqps all connections are encrypted, and the broker's certificate is checked unless that is switched off."""
    ca = Authority(tmp_path)
    server = ca.server()
    settings = {
        "listeners.ssl.default": "127.0.0.1:0",
        "ssl_options.certfile": server.certfile,
        "ssl_options.keyfile": server.keyfile,
    }
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    with serving(tmp_path, *words) as running:
        url = f"amqps://localhost:{running.tls_address[1]}"
        load = ("--rate", "100", "--seconds", "0.3", "--json")

        untrusted = perf(url, *load)
        done = [perf(url, *load, *more) for more in (("--cacert", str(ca.file)), ("--insecure",))]

    assert 69 == untrusted.exit_code
    assert "certificate" in untrusted.output
    for each in done:
        assert 0 == each.exit_code, each.output
        result = msgspec.json.decode(each.stdout, type=Result, strict=True)
        assert result.uri.startswith("amqps://")
        assert 0 < result.sent.count == result.received.count

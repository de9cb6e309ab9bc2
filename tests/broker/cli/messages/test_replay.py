"""The command `leveret replay`: times as people type them, and replays on a broker of its own."""

import signal
import time as clock
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import click
import pika
import pytest
from click.testing import CliRunner, Result
from running import Running

from leveret.broker.cli import commands
from leveret.broker.cli.messages.replay import moment

ZONE = timezone(timedelta(hours=2))
NOON = datetime(2026, 11, 23, 12, 0, tzinfo=ZONE)


@pytest.fixture
def local_time(monkeypatch) -> Iterator[None]:
    """The time zone of this process is `ZONE`, without a database of time zones."""
    monkeypatch.setenv("TZ", "XXX-2")
    clock.tzset()
    yield
    monkeypatch.undo()
    clock.tzset()


@pytest.mark.usefixtures("local_time")
@pytest.mark.parametrize(
    ("typed", "time"),
    [
        ("11:59", "2026-11-23T11:59:00+02:00"),
        ("12:00", "2026-11-23T12:00:00+02:00"),
        ("12:01", "2026-11-22T12:01:00+02:00"),
        ("9:05:30", "2026-11-23T09:05:30+02:00"),
        ("2026-11-20", "2026-11-20T00:00:00+02:00"),
        ("2026-11-20T08:00", "2026-11-20T08:00:00+02:00"),
        ("2026-11-20T08:00Z", "2026-11-20T10:00:00+02:00"),
        ("2026-11-20T08:00:00.5+01:00", "2026-11-20T09:00:00.500000+02:00"),
    ],
)
def test_a_time_of_day_is_the_last_one(typed, time):
    """A local time of day is the last one that is not in the future; other times are ISO 8601, local without an offset."""
    assert time == moment(typed, NOON).isoformat()


@pytest.mark.usefixtures("local_time")
def test_the_end_is_the_next_time_of_day():
    """A time of day for the end is the first one after the beginning."""
    begin = moment("23:50", NOON)

    assert "2026-11-22T23:50:00+02:00" == begin.isoformat()
    assert "2026-11-23T00:10:00+02:00" == moment("00:10", NOON, begin).isoformat()
    assert "2026-11-22T23:55:00+02:00" == moment("23:55", NOON, begin).isoformat()


@pytest.mark.parametrize("typed", ["", "24:00", "10:60", "yesterday", "10", "2026-13-01", "10:00:00:00"])
def test_other_texts_are_no_times(typed):
    """Anything else is refused, with an example."""
    with pytest.raises(click.BadParameter, match="neither HH:MM nor a time such as"):
        moment(typed, NOON)


def run(running: Running, *words: str) -> Result:
    """Run the command."""
    group = click.Group(commands={"replay": commands.load("replay")})
    return CliRunner().invoke(group, ["replay", *words, "--data-dir", str(running.data_dir)])


def test_acked_messages_are_replayed(tmp_path):
    """The command copies what was acked, after restarts, too, and tells what it did; a mistake is told with its reason."""
    with Running(tmp_path) as running:
        running.wait_for("Server startup complete")
        with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("orders", durable=True, arguments={"x-retain-for": 3_600_000})
            channel.queue_declare("others", durable=True)
            for number in range(10):
                properties = pika.BasicProperties(delivery_mode=2, headers={"n": number})
                channel.basic_publish("", "orders", b"%d" % number, properties)
            for _ in range(10):
                last = channel.basic_get("orders")[0].delivery_tag
            channel.basic_ack(last, multiple=True)
            channel.queue_declare("orders", passive=True)
        assert 0 == running.stopped_by(signal.SIGTERM)[0]
    with Running(tmp_path) as running:
        running.wait_for("Server startup complete")
        choice = ("orders", "--since", "2026-01-01", "--to", "others", "--where", "headers.n < 3")
        dry = run(running, *choice, "--dry-run")
        done = run(running, *choice)
        later = run(running, "orders", "--since", "2126-01-01", "--to", "others")
        assert "note: the oldest retained message was acked at 20" in done.stderr
        wrong = run(running, "others", "--since", "10:00", "--to", "orders")

        assert (0, "3 of 10 messages would be replayed to queue 'others'\n") == (dry.exit_code, dry.stdout)
        assert (0, "3 of 10 messages replayed to queue 'others'\n") == (done.exit_code, done.stdout)
        assert (0, "0 of 10 messages replayed to queue 'others'\n") == (later.exit_code, later.stdout)
        assert 0 != wrong.exit_code
        assert "retains no messages: it needs x-retain-for" in wrong.output
        with pika.BlockingConnection(pika.ConnectionParameters(*running.address)) as connection:
            channel = connection.channel()
            found = [channel.basic_get("others", auto_ack=True) for _ in range(4)]
            assert [b"0", b"1", b"2", None] == [body for _, _, body in found]
            assert {"n": 0, "x-leveret-replayed": "orders"} == found[0][1].headers  # type: ignore[union-attr]

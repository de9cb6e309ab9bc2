"""The command `leveret replay`: times as people type them, and replays on a broker of its own."""

import contextlib
import signal
import time as clock
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone

import click
import pika
import pytest
from click.testing import CliRunner, Result
from hypothesis import given, strategies as st
from processes.running import Running, channel_to, serving

from leveret.broker.cli import entry
from leveret.broker.cli.transfers import typed_time as moment

ZONE = timezone(timedelta(hours=2))
NOON = datetime(2026, 11, 23, 12, 0, tzinfo=ZONE)
BERLIN = "CET-1CEST,M3.5.0,M10.5.0/3"
"""Rules that need no database of time zones: clocks change on 2026-03-29 and 2026-10-25."""


@contextlib.contextmanager
def time_zone(name: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        clock.tzset()
        yield
    clock.tzset()


@pytest.fixture
def local_time() -> Iterator[None]:
    """The time zone of this process is `ZONE`, without a database of time zones."""
    with time_zone("XXX-2"):
        yield


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


@pytest.mark.parametrize(
    ("now", "since", "begin", "until", "end"),
    [
        # clocks were put forward, or back, since the beginning
        ("03-30T12:00+02:00", "2026-03-28T23:30", "03-28T23:30+01:00", "23:45", "03-28T23:45+01:00"),
        ("10-26T12:00+01:00", "2026-10-24T00:30", "10-24T00:30+02:00", "00:15", "10-25T00:15+02:00"),
        # the hour from 2 to 3 comes twice
        ("10-25T02:45+01:00", "02:30", "10-25T02:30+01:00", "02:40", "10-25T02:40+01:00"),
        ("10-25T02:15+01:00", "02:30", "10-25T02:30+02:00", "02:10", "10-25T02:10+01:00"),
        ("10-25T02:45+02:00", "02:30", "10-25T02:30+02:00", "02:15", "10-25T02:15+01:00"),
        ("10-25T12:00+01:00", "02:30", "10-25T02:30+01:00", "02:15", "10-26T02:15+01:00"),
        # it does not come
        ("03-29T12:00+02:00", "02:30", "03-28T02:30+01:00", "02:15", "03-30T02:15+02:00"),
        ("03-29T03:15+02:00", "01:45", "03-29T01:45+01:00", "03:10", "03-29T03:10+02:00"),
    ],
)
def test_times_of_day_around_a_change_of_clocks(now, since, begin, until, end):
    """The beginning is the last such time, the end the next, with the offset of that day."""
    with time_zone(BERLIN):
        first = moment(since, datetime.fromisoformat(f"2026-{now}"))
        last = moment(until, datetime.fromisoformat(f"2026-{now}"), first)

    assert (f"2026-{begin}", f"2026-{end}") == (
        first.isoformat(timespec="minutes"),
        last.isoformat(timespec="minutes"),
    )


@given(
    at=st.sampled_from([(3, 27), (10, 23)]),
    minutes=st.integers(0, 6 * 1440),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
)
def test_a_time_of_day_is_the_nearest_that_clocks_show(at, minutes, hour, minute):
    """The minutes before, or after, in which the system's clock shows the time end with the first one found."""
    with time_zone(BERLIN):
        now = (datetime(2026, *at, tzinfo=UTC) + timedelta(minutes=minutes)).astimezone()
        typed = f"{hour}:{minute:02}"
        for found, step in ((moment(typed, now), -60), (moment(typed, now, now), 60)):
            seconds = int(now.timestamp()) + max(step, 0)
            while clock.localtime(seconds)[3:5] != (hour, minute):
                seconds += step
            assert seconds == found.timestamp()


def test_a_time_of_day_beyond_the_calendar_is_refused():
    """There is no day after the last one that can be written."""
    with time_zone("UTC0"), pytest.raises(click.BadParameter, match="beyond the calendar"):
        moment("22:00", NOON, datetime(9999, 12, 31, 23, 0, tzinfo=UTC))


@pytest.mark.parametrize("typed", ["", "24:00", "10:60", "yesterday", "10", "2026-13-01", "10:00:00:00"])
def test_other_texts_are_no_times(typed):
    """Anything else is refused, with an example."""
    with pytest.raises(click.BadParameter, match="neither HH:MM nor a time such as"):
        moment(typed, NOON)


def run(running: Running, *words: str) -> Result:
    group = click.Group(commands={"replay": entry.load("replay")})
    return CliRunner().invoke(group, ["replay", *words, "--data-dir", str(running.data_dir)])


def test_acked_messages_are_replayed(tmp_path):
    """The command copies what was acked, after restarts, too, and tells what it did; a mistake is told with its reason."""
    with serving(tmp_path) as running:
        with channel_to(running.address) as channel:
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
    with serving(tmp_path) as running:
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
        with channel_to(running.address) as channel:
            found = [channel.basic_get("others", auto_ack=True) for _ in range(4)]
            assert [b"0", b"1", b"2", None] == [body for _, _, body in found]
            assert {"n": 0, "x-leveret-replayed": "orders"} == found[0][1].headers  # type: ignore[union-attr]

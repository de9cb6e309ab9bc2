"""The command `leveret replay` (driver: times of day are those of now)."""

import re
from collections.abc import Iterator
from datetime import datetime, time, timedelta
from typing import Any

import click

from leveret.broker.cli.messages.command import Target, moment as moment_of, with_target
from leveret.broker.cli.messages.transfers import chosen, transfer

_DAYS = 2
"""Days before and after in which a time of day is looked for: on one of them clocks may be put forward over it."""
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


def moment(text: str, now: datetime, after: datetime | None = None) -> datetime:
    """Return the time that somebody has typed.

    Args:
        text: a time in ISO 8601, or a local time of day: HH:MM or HH:MM:SS.
        now: the current time, in the local time zone.
        after: for a time of day, the first one after this time; None for the last one before now.

    Raises:
        click.BadParameter: it is neither, or beyond the calendar.

    """
    found = _TIME_OF_DAY.fullmatch(text)
    if found is None:
        try:
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):
            raise click.BadParameter(
                f"{text!r} is neither HH:MM nor a time such as 2026-11-23T10:00"
            ) from None
    hour, minute, second = (int(part or 0) for part in found.groups())
    clock = time(hour, minute, second)
    try:
        if after is None:
            return max(each for each in _moments(clock, now) if each <= now)
        return min(each for each in _moments(clock, after) if each > after)
    except (OverflowError, ValueError):
        raise click.BadParameter(f"{text!r} is beyond the calendar") from None


def _moments(clock: time, around: datetime) -> Iterator[datetime]:
    """Yield the moments around another at which local clocks show a time.

    There are two of them in a night in which clocks are put back over it, none in one in which they are put forward.
    """
    today = around.astimezone().date()
    for days in range(-_DAYS, _DAYS + 1):
        for fold in (0, 1):
            shown = datetime.combine(today + timedelta(days), clock.replace(fold=fold))
            found = shown.astimezone()
            if found.replace(tzinfo=None) == shown:
                yield found


@click.command("replay")
@click.argument("queue")
@click.option(
    "--to", "destination", required=True, metavar="DESTINATION", help="Queue or exchange for the copies."
)
@click.option("--until", default="", metavar="TIME", help="Only messages acked before.")
@click.option(
    "--since",
    required=True,
    metavar="TIME",
    help="Only messages acked then or later: ISO 8601, or local HH:MM.",
)
@chosen
@with_target
def replay(target: Target, *, queue: str, since: str, until: str, destination: str, **choice: Any) -> None:
    """Copy messages that consumers of QUEUE have acked to DESTINATION: a queue, exchange:NAME or exchange:NAME/KEY.

    A slash in NAME is written %2F. The queue must retain them: x-retain-for, or a policy with retain-for. Copies have
    the header x-leveret-replayed. A local time of day is the last one, for --until the next one after --since. A
    message that the destination cannot take is counted, and the exit code is 1.

    \b
    Examples:
      leveret replay orders --since 10:00 --to orders.again --dry-run
      leveret replay orders --since 10:00 --until 11:30 --to orders.again
      leveret replay orders --since 2026-11-23T10:00Z --where 'headers.tenant == "acme"' --to exchange:shop
    """  # noqa: D301 - \b keeps the lines of the examples
    now = datetime.now().astimezone()
    begin = moment(since, now)
    body = {"destination": destination, "since": begin.isoformat()}
    if until:
        body["until"] = moment(until, now, begin).isoformat()
    _note_beginning(target, queue, begin)
    transfer(target, "replay", queue, body, choice)


def _note_beginning(target: Target, queue: str, begin: datetime) -> None:
    """Say on standard error that what is retained begins later than somebody has asked for."""
    retention = target.api.get("leveret", "explain", "queue", target.vhost, queue)["retention"]
    oldest = None if retention is None else retention["oldest"]
    if oldest is not None and oldest > begin.timestamp() * 1000:
        click.echo(f"note: the oldest retained message was acked at {moment_of(oldest)}", err=True)

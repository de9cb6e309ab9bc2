"""The commands `leveret move`, `copy`, `discard`, `dlq` and `replay` (driver: they wait for the broker).

Times of day that are typed at `replay` are those of now.
"""

import re
import sys
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, time, timedelta
from typing import Any

import click

from leveret.broker.cli.ctl.output import printable
from leveret.broker.cli.entry import Group, examples, with_options
from leveret.broker.cli.target import Target, table, with_target, with_where
from leveret.broker.time_text import moment

POLL_SECONDS = (0.02, 0.5)  # time between two questions to the broker: at first, and at most
_DONE = {"move": "moved", "copy": "copied", "discard": "discarded", "retry": "retried", "replay": "replayed"}
DEAD_LETTERS = {
    "vhost": "vhost",
    "queue": "queue",
    "messages": "messages",
    "dead_letters": "dead letters",
    "reasons": "reasons",
    "origins": "died in",
    "oldest": "first died",
    "newest": "last died",
    "retries": "retries",
}
_DAYS = 2
"""Days before and after in which a time of day is looked for: on one of them clocks may be put forward over it."""
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?")


chosen = with_options(  # the options that choose messages
    with_where,
    click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N messages."),
    click.option("--rate", type=click.IntRange(1), metavar="N", help="At most N messages a second."),
    click.option("--dry-run", is_flag=True, help="Only count."),
    with_target,
)


@click.command("move")
@click.argument("queue")
@click.argument("destination")
@chosen
@examples(
    """move failed orders --where 'headers.tenant == "acme"' --dry-run""",
    """move failed orders --where 'headers.tenant == "acme"'""",
    "move parked exchange:events/order.new --limit 100",
)
def move(target: Target, *, queue: str, destination: str, **choice: Any) -> None:
    """Move messages of QUEUE to DESTINATION: a queue, or exchange:NAME, or exchange:NAME/KEY.

    A slash in NAME is written %2F. Batches are whole: whenever this command or the broker is killed, each message is
    in exactly one place. A message that the destination cannot take stays in its place, is counted, and the exit code
    is 1.
    """
    transfer(target, "move", queue, {"destination": destination}, choice)


@click.command("copy")
@click.argument("queue")
@click.argument("destination")
@chosen
@examples(
    """copy orders audit --where 'routing_key =~ "^order[.]"' --dry-run""",
    """copy orders audit --where 'routing_key =~ "^order[.]"'""",
)
def copy(target: Target, *, queue: str, destination: str, **choice: Any) -> None:
    """Copy messages of QUEUE to DESTINATION as `leveret move` does, and leave them where they are."""
    transfer(target, "copy", queue, {"destination": destination}, choice)


@click.command("discard")
@click.argument("queue")
@chosen
@examples(
    """discard failed --where 'death.reason == "expired"' --dry-run""",
    """discard failed --where 'death.reason == "expired"'""",
)
def discard(target: Target, *, queue: str, **choice: Any) -> None:
    """Discard messages of QUEUE. They are deleted, and are not dead-lettered."""
    transfer(target, "discard", queue, {}, choice)


@click.group("dlq", cls=Group)
@examples("dlq list", "dlq retry failed --dry-run")
def dlq() -> None:
    """Find dead letters, and retry them."""


@dlq.command("list")
@click.option("--all", "everywhere", is_flag=True, help="In all virtual hosts.")
@with_target
@examples("dlq list")
def list_dead_letters(target: Target, *, everywhere: bool) -> None:
    """List the queues that hold dead letters, with the reasons, the queues in which they died, and the times.

    The first 1,000 messages of each queue are looked at, or a few more: counts and times are those of these messages. A
    line below the list names each queue that has others, and each whose dead letters were dropped in a cycle.
    """
    rows = target.api.get("leveret", "dead-letters", *(() if everywhere else (target.vhost,)))
    columns = (
        DEAD_LETTERS if everywhere else {name: DEAD_LETTERS[name] for name in DEAD_LETTERS if name != "vhost"}
    )
    held = [row for row in rows if row["dead_letters"]]
    lines = table(list(map(_cells, held)), columns) if held else ["no dead letters"]
    target.show(rows, [*lines, *_more(rows)])


def _more(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines about the queues with more messages than were looked at, and those that lost dead letters."""
    return [
        f"{printable(row['queue'])}: only the first {row['examined']:,} of {row['messages']:,} messages were examined"
        for row in rows
        if row["examined"] < row["messages"]
    ] + [
        f"{printable(row['queue'])}: {row['cycled']:,} of its dead letters dropped in a cycle "
        "(without a reject, they would have returned to a queue in which they had died)"
        for row in rows
        if row["cycled"]
    ]


def _cells(found: Mapping[str, Any]) -> dict[str, Any]:
    cells = {
        key: ", ".join(f"{name} {count}" for name, count in found[key].items())
        for key in ("reasons", "origins")
    }
    times = {
        key: moment(None if found[key] is None else int(1000 * found[key])) for key in ("oldest", "newest")
    }
    return {**found, **cells, **times}


@dlq.command("retry")
@click.argument("queue")
@click.option("--to-origin", is_flag=True, help="To the queue in which each message died; the default.")
@click.option("--to", "destination", default="", metavar="DESTINATION", help="To another queue or exchange.")
@click.option("--first", is_flag=True, help="To the queue of the first death, not of the newest.")
@click.option("--reason", default="", metavar="R", help="Only those whose newest death has this reason.")
@click.option(
    "--max-retries",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    metavar="N",
    help="Messages that were retried N times stay.",
)
@chosen
@examples(
    "dlq retry failed --reason rejected --dry-run",
    "dlq retry failed --reason rejected",
    """dlq retry failed --to parked --where 'headers.tenant == "acme"'""",
)
def retry(target: Target, *, queue: str, to_origin: bool, max_retries: int, **options: Any) -> None:
    """Move dead letters of QUEUE back to where they died, straight into the queue, through no exchange.

    The header x-leveret-retries counts. A message that was retried too often, whose origin no longer exists, or that is
    no dead letter stays in its place, is counted by cause, and the exit code is 1.
    """
    if to_origin and options["destination"]:
        raise click.UsageError("--to-origin and --to exclude each other")
    if options["first"] and options["destination"]:
        raise click.UsageError("--first and --to exclude each other")
    body = {key: options.pop(key) for key in ("destination", "first", "reason")}
    transfer(target, "retry", queue, {**body, "max_retries": max_retries}, options)


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
@examples(
    "replay orders --since 10:00 --to orders.again --dry-run",
    "replay orders --since 10:00 --until 11:30 --to orders.again",
    """replay orders --since 2026-11-23T10:00Z --where 'headers.tenant == "acme"' --to exchange:shop""",
)
def replay(target: Target, *, queue: str, since: str, until: str, destination: str, **choice: Any) -> None:
    """Copy messages that consumers of QUEUE have acked to DESTINATION: a queue, exchange:NAME or exchange:NAME/KEY.

    A slash in NAME is written %2F. The queue must retain them: x-retain-for, or a policy with retain-for. Copies have
    the header x-leveret-replayed. A local time of day is the last one, for --until the next one after --since. A
    message that the destination cannot take is counted, and the exit code is 1.
    """
    now = datetime.now().astimezone()
    begin = typed_time(since, now)
    body = {"destination": destination, "since": begin.isoformat()}
    if until:
        body["until"] = typed_time(until, now, begin).isoformat()
    _note_beginning(target, queue, begin)
    transfer(target, "replay", queue, body, choice)


def _note_beginning(target: Target, queue: str, begin: datetime) -> None:
    """Say on standard error that the retained messages begin later than the requested time."""
    retention = target.api.get("leveret", "explain", "queue", target.vhost, queue)["retention"]
    oldest = None if retention is None else retention["oldest"]
    if oldest is not None and oldest > begin.timestamp() * 1000:
        click.echo(f"note: the oldest retained message was acked at {moment(oldest)}", err=True)


def typed_time(text: str, now: datetime, after: datetime | None = None) -> datetime:
    """Return the typed time: in ISO 8601, or a local time of day, HH:MM or HH:MM:SS.

    A time of day is the first one after `after`, or without that the last one before now, which has the local time
    zone. Raises BadParameter if it is neither, or beyond the calendar.
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
    shown = time(hour, minute, second)
    try:
        if after is None:
            return max(each for each in _moments(shown, now) if each <= now)
        return min(each for each in _moments(shown, after) if each > after)
    except (OverflowError, ValueError):
        raise click.BadParameter(f"{text!r} is beyond the calendar") from None


def _moments(wanted: time, around: datetime) -> Iterator[datetime]:
    """Yield the moments around another at which local clocks show a time."""
    # There are two of them in a night in which clocks are put back over it, none in one in which they are put
    # forward.
    today = around.astimezone().date()
    for days in range(-_DAYS, _DAYS + 1):
        for fold in (0, 1):
            shown = datetime.combine(today + timedelta(days), wanted.replace(fold=fold))
            found = shown.astimezone()
            if found.replace(tzinfo=None) == shown:
                yield found


def transfer(
    target: Target, action: str, queue: str, body: Mapping[str, Any], choice: Mapping[str, Any]
) -> None:
    """Have the broker transfer messages, and wait; interrupted, it ends after a whole batch.

    `action` is a key of `_DONE`; `body` has the request but for the messages, which are those of the options of
    `chosen`. The process ends with 1 if messages stay because of their destination, or if the transfer does not come to
    its end.
    """
    api = target.api
    asked = {**body, **{name: value for name, value in choice.items() if value not in ("", None, False)}}
    found = api.post("leveret", "queues", target.vhost, queue, action, body=asked)
    try:
        found = _watched(target, found)
    except KeyboardInterrupt:
        api.close()  # an answer may be on its way
        api.delete("leveret", "transfers", str(found["id"]))
        found = _watched(target, found)
    target.show(found, _summary(found))
    if found["state"] != "done" or found["refused"]:
        sys.exit(1)


def _watched(target: Target, found: dict[str, Any]) -> dict[str, Any]:
    pause = POLL_SECONDS[0]
    with click.progressbar(
        length=max(1, found["messages"]),
        label=found["action"],
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as bar:
        while found["ended"] is None:
            clock.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS[1])
            before = found["examined"]
            found = target.api.get("leveret", "transfers", str(found["id"]))
            bar.length = max(1, found["messages"])
            bar.update(found["examined"] - before)
    return found


def _summary(found: Mapping[str, Any]) -> list[str]:
    to = f" to {printable(found['destination'])}" if found["destination"] else ""
    would = "would be " if found["dry_run"] else ""
    lines = [f"{found['done']} of {found['messages']} messages {would}{_DONE[found['action']]}{to}"]
    lines += [f"{count} stay: {printable(cause)}" for cause, count in found["causes"].items()]
    if found["state"] != "done":
        lines.append(f"{found['state']}{': ' * bool(found['error'])}{printable(found['error'])}")
    return lines

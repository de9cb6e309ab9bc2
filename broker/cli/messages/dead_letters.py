"""The commands `leveret dlq list` and `leveret dlq retry`."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from leveret.broker.cli.ctl.escaping import printable
from leveret.broker.cli.messages.command import Target, moment, table, with_target
from leveret.broker.cli.messages.group import Group
from leveret.broker.cli.messages.transfers import chosen, transfer

COLUMNS = {
    "vhost": "vhost",
    "queue": "queue",
    "messages": "messages",
    "dead_letters": "dead letters",
    "reasons": "reasons",
    "origins": "died in",
    "oldest": "oldest",
    "newest": "newest",
}


@click.group("dlq", cls=Group)
def command() -> None:
    """Find dead letters, and retry them.

    \b
    Examples:
      leveret dlq list
      leveret dlq retry failed --dry-run
    """  # noqa: D301 - \b keeps the lines of the examples


@command.command("list")
@click.option("--all", "everywhere", is_flag=True, help="In all virtual hosts.")
@with_target
def list_dead_letters(target: Target, *, everywhere: bool) -> None:
    """List the queues that hold dead letters, with the reasons, the queues in which they died, and the times.

    The first 1,000 messages of each queue are looked at, or a few more: counts and times are those of these messages. A
    line below the list names each queue that has others, and each whose dead letters were dropped in a cycle.

    \b
    Example:
      leveret dlq list
    """  # noqa: D301
    rows = target.api.get("leveret", "dead-letters", *(() if everywhere else (target.vhost,)))
    columns = COLUMNS if everywhere else {name: COLUMNS[name] for name in COLUMNS if name != "vhost"}
    held = [row for row in rows if row["dead_letters"]]
    lines = table(list(map(_row, held)), columns) if held else ["no dead letters"]
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


def _row(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a queue."""
    cells = {
        key: ", ".join(f"{name} {count}" for name, count in found[key].items())
        for key in ("reasons", "origins")
    }
    times = {
        key: moment(None if found[key] is None else int(1000 * found[key])) for key in ("oldest", "newest")
    }
    return {**found, **cells, **times}


@command.command("retry")
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
@with_target
def retry(target: Target, *, queue: str, to_origin: bool, max_retries: int, **options: Any) -> None:
    """Move dead letters of QUEUE back to where they died, straight into the queue, through no exchange.

    The header x-leveret-retries counts. A message that was retried too often, whose origin no longer exists, or that is
    no dead letter stays in its place, is counted by cause, and the exit code is 1.

    \b
    Examples:
      leveret dlq retry failed --reason rejected --dry-run
      leveret dlq retry failed --reason rejected
      leveret dlq retry failed --to parked --where 'headers.tenant == "acme"'
    """  # noqa: D301
    if to_origin and options["destination"]:
        raise click.UsageError("--to-origin and --to exclude each other")
    if options["first"] and options["destination"]:
        raise click.UsageError("--first and --to exclude each other")
    body = {key: options.pop(key) for key in ("destination", "first", "reason")}
    transfer(target, "retry", queue, {**body, "max_retries": max_retries}, options)

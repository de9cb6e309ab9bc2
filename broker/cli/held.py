"""The command `leveret held` (driver: it waits for the broker)."""

from datetime import UTC, datetime
from typing import Any

import click

from leveret.broker.cli.entry import Group, examples, with_options
from leveret.broker.cli.peek import COLUMNS, cells, search
from leveret.broker.cli.target import Target, narrowed, table, with_target, with_where


@click.group("held", cls=Group)
@examples("held list tasks", """held reschedule tasks --to 2027-01-01T08:00 --where 'headers.id == "17"'""")
def held() -> None:
    """Look at messages that a queue holds until their time, and change it."""


@held.command("list")
@click.argument("queue")
@click.option(
    "-n", "--count", type=click.IntRange(1, 1000), default=10, show_default=True, help="Number of messages."
)
@with_where
@with_target
@examples("""held list tasks -n 100 --where 'headers.task == "app.remind"'""")
def list_held(target: Target, *, queue: str, count: int, where: str) -> None:
    """List messages that QUEUE holds, those that are due first."""
    found = search(target, queue, {"count": str(count), "state": "held", **narrowed(target, where)})
    target.show(found, table(list(map(cells, found)), COLUMNS) if found else ["no held messages"])


_chosen = with_options(
    with_where,
    click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N, those that are due first."),
    click.option("--dry-run", is_flag=True, help="Only count."),
    with_target,
)


def _command(action: str, done: str, text: str) -> None:
    """Add the command of an action that needs no more than a choice."""

    def act(target: Target, *, queue: str, **choice: Any) -> None:
        _act(target, queue, action, done, choice)

    act.__doc__ = text
    described = examples(f"""held {action} tasks --where 'headers.id == "17"'""")(act)
    held.command(action)(click.argument("queue")(_chosen(described)))


_command("release", "released", "Deliver held messages of QUEUE now.")
_command("cancel", "cancelled", "Remove held messages of QUEUE for good. They are not dead-lettered.")


@held.command("reschedule")
@click.argument("queue")
@click.option("--to", required=True, metavar="TIME", help="The new time: ISO 8601, local without an offset.")
@_chosen
@examples(
    "held reschedule tasks --to 2027-01-01T08:00 --dry-run",
    "held reschedule tasks --to 2027-01-01T08:00",
)
def reschedule(target: Target, *, queue: str, to: str, **choice: Any) -> None:
    """Change the time of held messages of QUEUE. A time that has passed releases them."""
    try:
        time = datetime.fromisoformat(to)
    except ValueError:
        raise click.BadParameter(f"'{to}' is not a time in ISO 8601", param_hint="--to") from None
    _act(target, queue, "reschedule", "rescheduled", choice, to=int(time.astimezone(UTC).timestamp() * 1000))


@held.command("move")
@click.argument("queue")
@click.argument("destination")
@click.option("--copy", "is_copy", is_flag=True, help="Copy them instead.")
@_chosen
@examples("""held move tasks tasks.new --where 'headers.id == "17"'""")
def move(target: Target, *, queue: str, destination: str, is_copy: bool, **choice: Any) -> None:
    """Have the queue DESTINATION hold messages of QUEUE until the same times."""
    action, done = ("copy", "copied") if is_copy else ("move", "moved")
    _act(target, queue, action, done, choice, destination=destination)


def _act(target: Target, queue: str, action: str, done: str, choice: dict[str, Any], **more: Any) -> None:
    chosen = {name: value for name, value in choice.items() if value}
    path = ("leveret", "queues", target.vhost, queue, "held")
    found = target.api.post(*path, body={"action": action, **more, **chosen})
    what = f"would be {done}" if choice["dry_run"] else f"were {done}"
    target.show(found, [f"{found['done']:,} of {found['examined']:,} held messages {what}"])

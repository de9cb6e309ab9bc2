"""The commands `leveret move`, `leveret copy` and `leveret discard` (driver: they wait for the broker)."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from leveret.broker.cli.ctl.escaping import printable
from leveret.broker.cli.messages.command import Target, with_target, with_where

POLL_SECONDS = (0.02, 0.5)
"""Time between two questions to the broker: at first, and at most."""
_DONE = {"move": "moved", "copy": "copied", "discard": "discarded", "retry": "retried", "replay": "replayed"}


def chosen(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that choose messages."""
    for option in (
        click.option("--dry-run", is_flag=True, help="Only count."),
        click.option("--rate", type=click.IntRange(1), metavar="N", help="At most N messages a second."),
        click.option("--limit", type=click.IntRange(1), metavar="N", help="At most N messages."),
        with_where,
    ):
        command = option(command)
    return command


@click.command("move")
@click.argument("queue")
@click.argument("destination")
@chosen
@with_target
def move(target: Target, *, queue: str, destination: str, **choice: Any) -> None:
    """Move messages of QUEUE to DESTINATION: a queue, or exchange:NAME, or exchange:NAME/KEY.

    A slash in NAME is written %2F. Batches are whole: whenever this command or the broker is killed, each message is
    in exactly one place. A message that the destination cannot take stays in its place, is counted, and the exit code
    is 1.

    \b
    Examples:
      leveret move failed orders --where 'headers.tenant == "acme"' --dry-run
      leveret move failed orders --where 'headers.tenant == "acme"'
      leveret move parked exchange:events/order.new --limit 100
    """  # noqa: D301 - \b keeps the lines of the examples
    transfer(target, "move", queue, {"destination": destination}, choice)


@click.command("copy")
@click.argument("queue")
@click.argument("destination")
@chosen
@with_target
def copy(target: Target, *, queue: str, destination: str, **choice: Any) -> None:
    """Copy messages of QUEUE to DESTINATION as `leveret move` does, and leave them where they are.

    \b
    Examples:
      leveret copy orders audit --where 'routing_key =~ "^order[.]"' --dry-run
      leveret copy orders audit --where 'routing_key =~ "^order[.]"'
    """  # noqa: D301
    transfer(target, "copy", queue, {"destination": destination}, choice)


@click.command("discard")
@click.argument("queue")
@chosen
@with_target
def discard(target: Target, *, queue: str, **choice: Any) -> None:
    """Discard messages of QUEUE. They are gone, and are not dead-lettered.

    \b
    Examples:
      leveret discard failed --where 'death.reason == "expired"' --dry-run
      leveret discard failed --where 'death.reason == "expired"'
    """  # noqa: D301
    transfer(target, "discard", queue, {}, choice)


def transfer(
    target: Target, action: str, queue: str, body: Mapping[str, Any], choice: Mapping[str, Any]
) -> None:
    """Have the broker transfer messages, and wait; interrupted, it ends after a whole batch.

    The process ends with 1 if messages stay because of their destination, or if the transfer does not come to its end.

    Args:
        target: the broker.
        action: move, copy, discard, retry or replay.
        queue: the queue.
        body: the request but for the messages.
        choice: the messages: the options of `chosen`.

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
    """Return the result of a transfer when it is over; show its progress on a terminal."""
    pause = POLL_SECONDS[0]
    with click.progressbar(
        length=max(1, found["messages"]),
        label=found["action"],
        file=sys.stderr,
        hidden=not sys.stderr.isatty(),
    ) as bar:
        while found["ended"] is None:
            time.sleep(pause)
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

"""The command `leveret explain`."""

import click
import msgspec

from leveret.broker.cli.ctl.escaping import printable
from leveret.broker.cli.messages.command import Target, with_target
from leveret.broker.cli.messages.group import Group


@click.group("explain", cls=Group)
def command() -> None:
    """Explain why a queue is as it is, where a message would go, or why it is where it is.

    \b
    Examples:
      leveret explain queue orders
      leveret explain publish events order.new
      leveret explain message failed 1
    """  # noqa: D301 - \b keeps the lines of the examples


@command.command("queue")
@click.argument("queue")
@with_target
def explain_queue(target: Target, *, queue: str) -> None:
    """Show which policy or argument gives each setting of QUEUE, and what looks wrong.

    \b
    Example:
      leveret explain queue orders
    """  # noqa: D301
    _show(target, target.api.get("leveret", "explain", "queue", target.vhost, queue))


@command.command("publish")
@click.argument("exchange")
@click.argument("routing_key", default="")
@click.option(
    "--header",
    "headers",
    metavar="NAME=VALUE",
    multiple=True,
    help="Header of the message, its value as JSON or text; may be repeated.",
)
@with_target
def explain_publish(target: Target, *, exchange: str, routing_key: str, headers: tuple[str, ...]) -> None:
    """Show where a message to EXCHANGE with ROUTING_KEY would go, and why. Nothing is published.

    The default exchange is amq.default.

    \b
    Examples:
      leveret explain publish events order.new
      leveret explain publish files '' --header type=pdf --header size=3
    """  # noqa: D301
    body = {"routing_key": routing_key, "headers": dict(map(_header, headers))}
    path = ("leveret", "explain", "publish", target.vhost, exchange or "amq.default")
    _show(target, target.api.post(*path, body=body))


@command.command("message")
@click.argument("queue")
@click.argument("number", type=click.IntRange(min=1))
@click.option(
    "--state",
    type=click.Choice(["ready", "unacked", "delayed"]),
    default="ready",
    show_default=True,
    help="State of the message.",
)
@with_target
def explain_message(target: Target, *, queue: str, number: int, state: str) -> None:
    """Show why message NUMBER of QUEUE is there: how it came, what it waits for, what will happen to it.

    The number is that of `leveret peek`; unacked and delayed messages are counted in its order.

    \b
    Example:
      leveret explain message failed 1
    """  # noqa: D301
    path = ("leveret", "explain", "message", target.vhost, queue, str(number))
    _show(target, target.api.get(*path, state=state))


def _header(text: str) -> tuple[str, object]:
    name, sign, value = text.partition("=")
    if not sign:
        raise click.BadParameter(f"{text}: expected NAME=VALUE", param_hint="--header")
    try:
        return name, msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return name, value


def _show(target: Target, found: dict[str, list[str]]) -> None:
    target.show(
        {name: value for name, value in found.items() if name != "lines"},
        list(map(printable, found["lines"])),
    )

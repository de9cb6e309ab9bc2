"""The commands `leveret explain`, `leveret pause`, `leveret resume` and `leveret dedup` (driver: it waits)."""

from collections.abc import Mapping
from typing import Any, Final

import click
import msgspec

from leveret.broker.cli.ctl.output import duration, printable, writable
from leveret.broker.cli.entry import Group, examples
from leveret.broker.cli.target import Target, table, with_target
from leveret.broker.time_text import moment


@click.group("explain", cls=Group)
@examples("explain queue orders", "explain publish events order.new", "explain message failed 1")
def explain() -> None:
    """Explain why a queue is as it is, where a message would go, or why it is where it is."""


@explain.command("queue")
@click.argument("queue")
@with_target
@examples("explain queue orders")
def explain_queue(target: Target, *, queue: str) -> None:
    """Show which policy or argument gives each setting of QUEUE, and what looks wrong."""
    _show(target, target.api.get("leveret", "explain", "queue", target.vhost, queue))


@explain.command("publish")
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
@examples("explain publish events order.new", "explain publish files '' --header type=pdf --header size=3")
def explain_publish(target: Target, *, exchange: str, routing_key: str, headers: tuple[str, ...]) -> None:
    """Show where a message to EXCHANGE with ROUTING_KEY would go, and why. Nothing is published.

    The default exchange is amq.default.
    """
    body = {"routing_key": routing_key, "headers": dict(map(_header, headers))}
    path = ("leveret", "explain", "publish", target.vhost, exchange or "amq.default")
    _show(target, target.api.post(*path, body=body))


@explain.command("message")
@click.argument("queue")
@click.argument("number", type=click.IntRange(min=1))
@click.option(
    "--state",
    type=click.Choice(["ready", "unacked", "held", "delayed"]),
    default="ready",
    show_default=True,
    help="State of the message.",
)
@with_target
@examples("explain message failed 1")
def explain_message(target: Target, *, queue: str, number: int, state: str) -> None:
    """Show why message NUMBER of QUEUE is there: how it came, what it waits for, what will happen to it.

    The number is that of `leveret peek`; unacked, held and delayed messages are counted in its order.
    """
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
    lines = found.pop("lines")
    target.show(found, list(map(printable, lines)))


@click.command("pause")
@click.argument("queue")
@with_target
@examples("pause orders", "peek orders", "resume orders")
def pause(target: Target, *, queue: str) -> None:
    """Pause the deliveries of QUEUE to its consumers, until `leveret resume`.

    Consumers stay connected and keep what they have; a basic.get finds nothing. Publishes, acks, expiry, limits and
    dead letters go on. A durable queue stays paused when the broker restarts. Lists show the state `paused`.
    """
    _put(target, "pause", queue)


@click.command("resume")
@click.argument("queue")
@with_target
@examples("resume orders")
def resume(target: Target, *, queue: str) -> None:
    """Resume the deliveries of QUEUE after `leveret pause`."""
    _put(target, "resume", queue)


def _put(target: Target, action: str, queue: str) -> None:
    target.api.put("leveret", "queues", target.vhost, queue, action)
    is_paused = action == "pause"
    found = {"queue": writable(queue), "vhost": writable(target.vhost), "paused": is_paused}
    target.show(found, [f"queue '{printable(queue)}' is {'paused' if is_paused else 'resumed'}"])


ID_COLUMNS: Final = {
    "vhost": "vhost", "exchange": "exchange", "queue": "queue", "deduplicate": "id", "mode": "mode", "for": "for",
    "ids": "known", "repeated": "repeated",
}  # fmt: skip


@click.group("dedup", cls=Group)
@examples("dedup list", "dedup forget tasks 17")
def dedup() -> None:
    """Look at the ids that queues and exchanges know, and forget them (x-deduplicate)."""


_OF_EXCHANGE: Final = click.option("--exchange", "is_exchange", is_flag=True, help="NAME is an exchange.")


@dedup.command("list")
@click.argument("name", required=False)
@click.argument("text", metavar="[ID]", required=False)
@_OF_EXCHANGE
@click.option("--all", "everywhere", is_flag=True, help="In all virtual hosts.")
@with_target
@examples("dedup list", "dedup list tasks 17", "dedup list --exchange orders 17")
def list_ids(
    target: Target, *, name: str | None, text: str | None, is_exchange: bool, everywhere: bool
) -> None:
    """List the exchanges and queues that take each message once, or tell whether NAME, a queue, knows ID.

    `known` counts ids, of which some may have expired; `repeated` counts publishes that were dropped. If the body is
    the id, ID is its SHA-256.
    """
    if name is not None and text is not None:
        found = target.api.get("leveret", *_path(target, name, is_exchange=is_exchange), id=text)
        target.show(found, [_known(found)])
        return
    rows = target.api.get("leveret", "ids", *(() if everywhere else (target.vhost,)))
    rows = [row for row in rows if name in {None, row["exchange" if is_exchange else "queue"]}]
    shown = {"vhost": everywhere, "exchange": any(row["exchange"] for row in rows)}
    columns = {key: title for key, title in ID_COLUMNS.items() if shown.get(key, True)}
    cells = [{**row, "for": duration(row["for"] / 1000) if row["for"] else ""} for row in rows]
    lines = table(cells, columns) if rows else ["no exchange or queue takes each message once"]
    target.show(rows, lines)


def _path(target: Target, name: str, *, is_exchange: bool) -> tuple[str, ...]:
    return "exchanges" if is_exchange else "queues", target.vhost, name, "ids"


def _known(found: Mapping[str, Any]) -> str:
    if not found["known"]:
        return "not known: such a message is taken"
    return f"known until {moment(found['until'])}" if found["until"] else "known: its message is in the queue"


@dedup.command("forget")
@click.argument("name")
@click.argument("text", metavar="[ID]", required=False)
@_OF_EXCHANGE
@click.option("--all", "everything", is_flag=True, help="All ids.")
@with_target
@examples("dedup forget tasks 17", "dedup forget tasks --all", "dedup forget --exchange orders 17")
def forget(target: Target, *, name: str, text: str | None, is_exchange: bool, everything: bool) -> None:
    """Have NAME, a queue, forget ID, or all ids, so that it takes such messages again. Messages stay."""
    if everything is (text is not None):
        raise click.UsageError("give the ID, or --all")
    more = {} if text is None else {"id": text}
    found = target.api.delete("leveret", *_path(target, name, is_exchange=is_exchange), query=more)
    target.show(found, [f"{found['forgotten']:,} ids forgotten"])

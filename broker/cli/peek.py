"""The commands `leveret peek` and `leveret tail` (driver: it waits for messages)."""

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from leveret.broker.cli.ctl.output import duration, printable
from leveret.broker.cli.entry import examples
from leveret.broker.cli.target import BODY, Target, body_of, narrowed, table, with_target, with_where
from leveret.broker.errors import moment

KEY = 24  # width of the columns of routing keys and queues
COLUMNS = {
    "number": "#",
    "state": "state",
    "age": "age",
    "redelivered": "redelivered",
    "exchange": "exchange",
    "routing_key": "routing key",
    "task": "task",
    "death": "died",
    "consumer": "consumer",
    "unacked_for": "unacked for",
    "due": "due",
    "expires": "expires",
    "payload_bytes": "bytes",
    "body": "body",
}


@click.command("peek")
@click.argument("queue")
@click.option(
    "-n",
    "--count",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Number of messages of each state.",
)
@click.option(
    "--from",
    "end",
    type=click.Choice(["head", "tail"]),
    default="head",
    show_default=True,
    help="Begin with the next message to be delivered, or with the newest.",
)
@with_where
@with_target
@examples(
    "peek orders",
    """peek failed -n 100 --where 'death.reason == "rejected"'""",
    "peek orders --from tail --format json",
)
def peek(target: Target, *, queue: str, count: int, end: str, where: str) -> None:
    """Look at messages of QUEUE without consuming them.

    Ready messages in the order of delivery, then the unacked ones with their consumers, then held and delayed ones.
    Nothing changes: not their order, their marks of redelivery or their expiry.
    """
    found = search(target, queue, {"count": str(count), "from": end, **narrowed(target, where)})
    target.show(found, table([cells(each) for each in found], COLUMNS) if found else ["no messages"])


def search(target: Target, queue: str, query: dict[str, str]) -> list[dict[str, Any]]:
    """Return the messages of a queue; a long one is searched in several requests."""
    found: dict[str, list[dict[str, Any]]] = {"ready": [], "unacked": [], "held": [], "delayed": []}
    searched = 0
    path = ("leveret", "queues", target.vhost, queue, "messages")
    while True:
        part = target.api.get(*path, **query)
        for message in part["messages"]:
            found[message["state"]].append(message)
        searched += part["searched"]
        if part["next"] is None:
            break
        query["after"] = part["next"]
        if sys.stderr.isatty():
            click.echo(f"\r{searched:,} messages searched", err=True, nl=False)
    if "after" in query and sys.stderr.isatty():
        click.echo("", err=True)
    if not part["complete"]:
        click.echo("there are more held or delayed messages than were searched", err=True)
    return [message for state in found.values() for message in state[: int(query["count"])]]


def cells(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message as `COLUMNS` show it."""
    body = body_of(message)
    return {
        **message,
        "number": message["number"] or "",
        "age": duration(message["age"]),
        "redelivered": "yes" if message["redelivered"] else "",
        "exchange": message["exchange"] or "(default)",
        "task": message["properties"].get("headers", {}).get("task") or "",  # of Celery
        "death": _death(message["properties"]),
        "consumer": message["consumer_tag"] or message["channel"] or "",
        "unacked_for": duration(message["unacked_for"]),
        "due": moment(message["due"]),
        "expires": moment(message["expires"]),
        "payload_bytes": str(message["payload_bytes"]),
        "body": body if len(body) <= BODY else f"{body[:BODY]}...",
    }


def _death(properties: Mapping[str, Any]) -> str:
    """Return why and where a message died last; '' if it never did."""
    deaths = properties.get("headers", {}).get("x-death")
    if not isinstance(deaths, list) or not deaths or not isinstance(deaths[0], dict):
        return ""
    return f"{deaths[0].get('reason')} in {deaths[0].get('queue')}"


@click.command("tail")
@click.argument("exchange")
@click.argument("pattern", default="#")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="End after N messages.")
@with_where
@with_target
@examples(
    "tail events 'order.#'",
    """tail amq.default orders --where 'headers.tenant == "acme"' -n 10""",
    "tail events --format json | jq .payload",
)
def tail(target: Target, *, exchange: str, pattern: str, count: int | None, where: str) -> None:
    """Show messages as they are published to EXCHANGE, until Ctrl-C.

    PATTERN is what their routing keys match, as in a binding to a topic exchange (# by default), whatever the type of
    the exchange. The default exchange is amq.default. Nothing is bound, publishers do not wait, and messages that no
    queue gets are shown, too. A reader that is too slow misses messages, and gets their number. If the broker ends it
    earlier, the exit code is 1.
    """
    query = {
        "pattern": pattern,
        **({} if count is None else {"count": str(count)}),
        **narrowed(target, where),
    }
    path = ("leveret", "exchanges", target.vhost, exchange or "amq.default", "tail")
    try:
        end = _follow(target, exchange, target.api.lines(*path, **query), count)
    except KeyboardInterrupt:
        return
    if end:
        click.echo(f"ended: {printable(end)}", err=True)
        sys.exit(1)


def _follow(target: Target, exchange: str, lines: Iterable[bytes], count: int | None) -> str:
    """Show what comes; returns why there is no more, '' if that were as many messages as wanted."""
    is_begun = False
    end = "by the broker, which gave no reason"
    left = count
    for line in lines:
        if not is_begun:
            is_begun = True
            _say(target, f"messages of exchange '{printable(exchange)}' from now on:")
        if not line:
            continue
        found = msgspec.json.decode(line)
        if target.is_json:
            click.echo(line)
        if "lost" in found:
            _say(target, f"{found['lost']} messages are missing here: they came too fast")
        elif "end" in found:
            end = found["end"]
        else:
            left = None if left is None else left - 1
            if not target.is_json:
                click.echo(_line(found))
    return "" if left == 0 else end


def _say(target: Target, text: str) -> None:
    if not target.is_json:
        click.echo(text, err=True)


def _line(message: Mapping[str, Any]) -> str:
    time = datetime.fromtimestamp(message["time"] / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    queues = ", ".join(message["routed_queues"]) or "(no queue)"
    if message.get("due"):
        queues += f", held until {moment(message['due'])}"
    body = body_of(message)
    shown = printable(body[: BODY + 1])
    if len(body) > BODY or message["truncated"]:
        shown = f"{shown[:BODY]}..."
    key = printable(message["routing_key"])
    return f"{time}Z  {key:<{KEY}}  {printable(queues):<{KEY}}  {message['payload_bytes']:>8}  {shown}"

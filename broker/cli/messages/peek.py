"""The command `leveret peek`."""

import sys
from collections.abc import Mapping
from typing import Any

import click

from leveret.broker.cli.messages.command import Target, duration, moment, table, with_target, with_where

BODY = 60
"""Characters of a body in a table."""
COLUMNS = {
    "number": "#",
    "state": "state",
    "age": "age",
    "redelivered": "redelivered",
    "exchange": "exchange",
    "routing_key": "routing key",
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
def command(target: Target, *, queue: str, count: int, end: str, where: str) -> None:
    """Look at messages of QUEUE without consuming them.

    Ready messages in the order of delivery, then the unacked ones with their consumers, then the delayed ones.
    Nothing changes: not their order, their marks of redelivery or their expiry.

    \b
    Examples:
      leveret peek orders
      leveret peek failed -n 100 --where 'death.reason == "rejected"'
      leveret peek orders --from tail --format json
    """  # noqa: D301 - \b keeps the lines of the examples
    found = _search(target, queue, _query(target, count, end, where))
    target.show(found, table([_row(each) for each in found], COLUMNS) if found else ["no messages"])


def _search(target: Target, queue: str, query: dict[str, str]) -> list[dict[str, Any]]:
    """Return the messages of a queue; a long one is searched in several requests."""
    found: dict[str, list[dict[str, Any]]] = {"ready": [], "unacked": [], "delayed": []}
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
        click.echo("there are more delayed messages than were searched", err=True)
    return [message for state in found.values() for message in state[: int(query["count"])]]


def _query(target: Target, count: int, end: str, where: str) -> dict[str, str]:
    query = {"count": str(count), "from": end}
    if where:
        query["where"] = where
    if not target.is_json:
        query["truncate"] = str(4 * BODY)
    return query


def _row(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cells of a message."""
    body = message["payload"]
    if message["payload_encoding"] == "base64":
        body = f"base64: {body}"
    return {
        **message,
        "number": message["number"] or "",
        "age": duration(message["age"]),
        "redelivered": "yes" if message["redelivered"] else "",
        "exchange": message["exchange"] or "(default)",
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

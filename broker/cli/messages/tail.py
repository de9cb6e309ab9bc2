"""The command `leveret tail` (driver: it waits for messages)."""

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from leveret.broker.cli.ctl.escaping import printable
from leveret.broker.cli.messages.command import Target, with_target, with_where

BODY = 60
"""Characters of a body in a table."""
KEY = 24
"""Width of the columns of routing keys and queues."""


@click.command("tail")
@click.argument("exchange")
@click.argument("pattern", default="#")
@click.option("-n", "--count", type=click.IntRange(1), metavar="N", help="End after N messages.")
@with_where
@with_target
def command(target: Target, *, exchange: str, pattern: str, count: int | None, where: str) -> None:
    """Show messages as they are published to EXCHANGE, until Ctrl-C.

    PATTERN is what their routing keys match, as in a binding to a topic exchange (# by default), whatever the type of
    the exchange. The default exchange is amq.default. Nothing is bound, publishers do not wait, and messages that no
    queue gets are shown, too. A reader that is too slow misses messages, and is told how many. If the broker ends it
    earlier, the exit code is 1.

    \b
    Examples:
      leveret tail events 'order.#'
      leveret tail amq.default orders --where 'headers.tenant == "acme"' -n 10
      leveret tail events --format json | jq .payload
    """  # noqa: D301 - \b keeps the lines of the examples
    query = {"pattern": pattern}
    if count is not None:
        query["count"] = str(count)
    if where:
        query["where"] = where
    if not target.is_json:
        query["truncate"] = str(4 * BODY)
    path = ("leveret", "exchanges", target.vhost, exchange or "amq.default", "tail")
    try:
        end = _shown(target, exchange, target.api.lines(*path, **query), count)
    except KeyboardInterrupt:
        return
    if end:
        click.echo(f"ended: {printable(end)}", err=True)
        sys.exit(1)


def _shown(target: Target, exchange: str, lines: Iterable[bytes], count: int | None) -> str:
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
                click.echo(_row(found))
    return "" if left == 0 else end


def _say(target: Target, text: str) -> None:
    """Tell a person something that is no message."""
    if not target.is_json:
        click.echo(text, err=True)


def _row(message: Mapping[str, Any]) -> str:
    """Return a message in a line."""
    time = datetime.fromtimestamp(message["time"] / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    queues = ", ".join(message["routed_queues"]) or "(no queue)"
    body = message["payload"]
    if message["payload_encoding"] == "base64":
        body = f"base64: {body}"
    shown = printable(body[: BODY + 1])
    if len(body) > BODY or message["truncated"]:
        shown = f"{shown[:BODY]}..."
    key = printable(message["routing_key"])
    return f"{time}Z  {key:<{KEY}}  {printable(queues):<{KEY}}  {message['payload_bytes']:>8}  {shown}"

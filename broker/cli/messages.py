"""The commands `leveret peek`, `leveret tail` and `leveret held` (driver: it waits for the broker)."""

import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from leveret.broker.cli.ctl.output import duration, printable
from leveret.broker.cli.entry import Group, examples, with_options
from leveret.broker.cli.target import BODY, Target, body_of, narrowed, table, with_target, with_where
from leveret.broker.time_text import moment

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

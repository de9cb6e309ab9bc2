"""The command `leveret dedup` (driver: it waits for the broker)."""

from collections.abc import Mapping
from typing import Any, Final

import click

from leveret.broker.cli.ctl.output import duration
from leveret.broker.cli.entry import Group, examples
from leveret.broker.cli.target import Target, table, with_target
from leveret.broker.errors import moment

COLUMNS: Final = {
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
    columns = {key: title for key, title in COLUMNS.items() if shown.get(key, True)}
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

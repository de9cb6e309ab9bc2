"""The command `leveret dedup` (driver: it waits for the broker)."""

from collections.abc import Mapping
from typing import Any, Final

import click

from leveret.broker.cli.entry import Group, examples
from leveret.broker.cli.target import Target, duration, moment, table, with_target

COLUMNS: Final = {
    "vhost": "vhost", "queue": "queue", "deduplicate": "id", "mode": "mode", "for": "for", "ids": "known",
    "repeated": "repeated",
}  # fmt: skip


@click.group("dedup", cls=Group)
@examples("dedup list", "dedup forget tasks 17")
def dedup() -> None:
    """Look at the ids that queues know, and forget them (x-deduplicate)."""


@dedup.command("list")
@click.argument("queue", required=False)
@click.argument("text", metavar="[ID]", required=False)
@click.option("--all", "everywhere", is_flag=True, help="In all virtual hosts.")
@with_target
@examples("dedup list", "dedup list tasks 17")
def list_ids(target: Target, *, queue: str | None, text: str | None, everywhere: bool) -> None:
    """List the queues that take each message once, or tell whether QUEUE knows ID.

    `known` counts ids, of which some may have expired; `repeated` counts publishes that were dropped. If the body is
    the id, ID is its SHA-256.
    """
    if queue is not None and text is not None:
        found = target.api.get("leveret", "queues", target.vhost, queue, "ids", id=text)
        target.show(found, [_known(found)])
        return
    rows = target.api.get("leveret", "ids", *(() if everywhere else (target.vhost,)))
    rows = [row for row in rows if queue in {None, row["queue"]}]
    columns = {name: text for name, text in COLUMNS.items() if everywhere or name != "vhost"}
    target.show(
        rows, table(list(map(_cells, rows)), columns) if rows else ["no queue takes each message once"]
    )


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "for": duration(row["for"] / 1000) if row["for"] else ""}


def _known(found: Mapping[str, Any]) -> str:
    if not found["known"]:
        return "not known: such a message is taken"
    return f"known until {moment(found['until'])}" if found["until"] else "known: its message is in the queue"


@dedup.command("forget")
@click.argument("queue")
@click.argument("text", metavar="[ID]", required=False)
@click.option("--all", "everything", is_flag=True, help="All ids of the queue.")
@with_target
@examples("dedup forget tasks 17", "dedup forget tasks --all")
def forget(target: Target, *, queue: str, text: str | None, everything: bool) -> None:
    """Have QUEUE forget ID, or all ids, so that it takes such messages again. Messages stay."""
    if everything is (text is not None):
        raise click.UsageError("give the ID, or --all")
    more = {} if text is None else {"id": text}
    found = target.api.delete("leveret", "queues", target.vhost, queue, "ids", query=more)
    target.show(found, [f"{found['forgotten']:,} ids forgotten"])

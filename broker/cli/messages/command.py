"""Options that all commands on messages have, their errors, and their tables."""

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec

import click
import msgspec

from leveret.broker.cli.ctl.client import SECONDS, ApiClient, ApiError, explained
from leveret.broker.cli.ctl.command import default_data_dir, timeout_option
from leveret.broker.cli.ctl.errors import CtlError
from leveret.broker.cli.ctl.escaping import printable

P = ParamSpec("P")

WHERE = "Condition, such as 'headers.kind == \"retry\" and age > 1h' (docs/filters.md)."


def _not_empty(_context: click.Context, _parameter: click.Parameter, where: str | None) -> str:
    """Return a condition; '' if none is given. An empty one is a mistake: often a variable that is not set."""
    if where is not None and not where.strip():
        raise click.BadParameter("the condition is empty; leave the option out for all messages")
    return where or ""


with_where = click.option("--where", callback=_not_empty, metavar="CONDITION", help=WHERE)
"""The option of a condition: '' if it is not given."""


class Target(NamedTuple):
    """The broker that a command is for.

    Attributes:
        api: its API.
        vhost: the virtual host.
        is_json: True if the output is JSON.

    """

    api: ApiClient
    vhost: str
    is_json: bool

    def show(self, value: Any, lines: Sequence[str]) -> None:
        """Print a value as JSON, or the lines that say it to people."""
        if self.is_json:
            click.echo(msgspec.json.format(msgspec.json.encode(value)))
        else:
            for line in lines:
                click.echo(line)


def with_target(run: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options, and its function the target as first argument; errors end the process."""

    @functools.wraps(run)
    def command(
        *,
        data_dir: Path | None,
        uri: str | None,
        vhost: str,
        output: str,
        timeout: float | None,
        **params: Any,
    ) -> None:
        if uri and data_dir:
            raise click.UsageError("--data-dir and --uri exclude each other")
        try:
            with contextlib.closing(
                ApiClient(uri or data_dir or default_data_dir(), timeout or SECONDS)
            ) as api:
                run(Target(api, vhost, output == "json"), **params)
        except (ApiError, CtlError) as error:
            shown = explained(error) if isinstance(error, ApiError) else error
            click.echo(str(shown).replace("Error:\n", "Error: "), err=True)
            sys.exit(shown.code)

    for option in (
        timeout_option(click.option),
        click.option(
            "--format",
            "output",
            type=click.Choice(["table", "json"]),
            default="table",
            show_default=True,
            help="Format of the output.",
        ),
        click.option("-p", "--vhost", default="/", show_default=True, help="Virtual host."),
        click.option(
            "--uri", metavar="URI", help="http://USER:PASSWORD@HOST:15672 of the management API instead."
        ),
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path, file_okay=False),
            metavar="DIR",
            help="Data directory of the broker (default: that of `leveret serve`).",
        ),
    ):
        command = option(command)
    return command


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[str]:
    """Return rows as aligned lines; columns that are empty in all of them are left out.

    Args:
        rows: cells by column.
        columns: heading of each column.

    """
    shown = {name: heading for name, heading in columns.items() if any(row.get(name) for row in rows)}
    lines = [list(shown.values()), *[[printable(row.get(name, "")) for name in shown] for row in rows]]
    widths = [max(len(line[at]) for line in lines) for at in range(len(shown))]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def duration(seconds: float | None) -> str:
    """Return a duration in the largest units that tell it; '' for None."""
    if seconds is None:
        return ""
    whole = int(seconds)
    if whole < 60:  # noqa: PLR2004 - seconds
        return f"{whole}s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if not hours:
        return f"{minutes}m{whole % 60:02}s"
    return f"{hours}h{minutes % 60:02}m" if not days else f"{days}d{hours % 24:02}h"


def moment(milliseconds: int | None) -> str:
    """Return a time in milliseconds since the epoch, in UTC; '' for None."""
    if milliseconds is None:
        return ""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

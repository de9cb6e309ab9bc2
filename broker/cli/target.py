"""Options, errors and tables that commands on the messages of a running broker have in common."""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click
import msgspec

from leveret.broker.cli.ctl.client import ApiClient
from leveret.broker.cli.ctl.command import broker_options, client_of
from leveret.broker.cli.ctl.output import CtlError, aligned, printable
from leveret.broker.cli.entry import with_options

BODY = 60  # characters of a body in a table


def _not_empty(_context: click.Context, _parameter: click.Parameter, where: str | None) -> str:
    """Return a condition; '' if none is given. An empty one is a mistake: often a variable that is not set."""
    if where is not None and not where.strip():
        raise click.BadParameter("the condition is empty; leave the option out for all messages")
    return where or ""


with_where = click.option(  # the option of a condition: '' if it is not given
    "--where",
    callback=_not_empty,
    metavar="CONDITION",
    help="Condition, such as 'headers.kind == \"retry\" and age > 1h' (docs/filters.md).",
)


class Target(NamedTuple):
    """The broker that a command is for, the virtual host, and whether the output is JSON."""

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
    def command(*, vhost: str, output: str, **params: Any) -> None:
        broker = {name: params.pop(name) for name in ("data_dir", "uri", "timeout")}
        try:
            with client_of(broker) as api:
                run(Target(api, vhost, output == "json"), **params)
        except CtlError as error:
            click.echo(error.shown.replace("Error:\n", "Error: "), err=True)
            sys.exit(error.code)

    data_dir, uri, timeout = broker_options(click.option)
    text = "Format of the output."
    formats = click.Choice(["table", "json"])
    return with_options(
        data_dir,
        uri,
        click.option("-p", "--vhost", default="/", show_default=True, help="Virtual host."),
        click.option("--format", "output", type=formats, default="table", show_default=True, help=text),
        timeout,
    )(command)


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str]) -> list[str]:
    """Return rows as aligned lines below the headings of the columns; those that are empty in all rows are left out."""
    shown = {name: heading for name, heading in columns.items() if any(row.get(name) for row in rows)}
    return aligned([[*shown.values()], *[[printable(row.get(name, "")) for name in shown] for row in rows]])


def body_of(message: Mapping[str, Any]) -> str:
    """Return the body of a message that the API has returned, in one line."""
    body = message["payload"]
    return f"base64: {body}" if message["payload_encoding"] == "base64" else str(body)


def narrowed(target: Target, where: str) -> dict[str, str]:
    """Return the parameters of a request for messages: a condition, and the bytes of each body that are shown."""
    query = {"where": where} if where else {}
    return query if target.is_json else {**query, "truncate": str(4 * BODY)}

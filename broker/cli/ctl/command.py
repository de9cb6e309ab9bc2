"""Registration of commands, their common options, and their errors."""

import contextlib
import difflib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import click

from leveret.broker import exit_codes
from leveret.broker.cli.ctl import absent
from leveret.broker.cli.ctl.client import SECONDS, ApiClient, ApiError, explained
from leveret.broker.cli.ctl.errors import CtlError, UsageError
from leveret.broker.cli.ctl.examples import EXAMPLES
from leveret.broker.cli.ctl.output import FORMATTERS
from leveret.broker.cli.ctl.session import Session

DATA_DIR = "var"
"""The data directory that `leveret serve` uses by default."""
DATA_DIR_VARIABLES = (
    "LEVERET_CTL_DATA_DIR",
    "LEVERET_DATA_DIR",
    "RABBITMQ_MNESIA_DIR",
    "RABBITMQ_MNESIA_BASE",
)
"""Variables that name another; all but the first are those of `leveret serve`, in its order."""


class Registered(NamedTuple):
    """A command.

    Attributes:
        run: called with the session and the arguments by name.
        params: arguments and options beside the common ones.
        group: heading in the list of commands.
        columns: names of the columns of a list.

    """

    run: Callable[..., None]
    params: Sequence[click.Parameter]
    group: str
    columns: Sequence[str] = ()


COMMANDS: dict[str, Registered] = {}
MOST_SECONDS = 1_000_000
"""Longest time for an answer that can be given."""


def timeout_option(option: Callable[..., Any]) -> Any:
    """Return the option `--timeout` of commands that ask the broker, made by click's class or decorator."""
    return option(
        "-t",
        "--timeout",
        type=float,
        callback=given_seconds,
        metavar="SECONDS",
        help="Time for the answer (default: 60).",
    )


def given_seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """Return a time in seconds; 0 stands for the default, as None does."""
    if value is not None and not 0 <= value <= MOST_SECONDS:  # not a number, too
        raise click.BadParameter(f"{value} is not a number of seconds from 0 to {MOST_SECONDS}")
    return value or None


def default_data_dir() -> Path:
    """Return the data directory of commands that name none."""
    named = (value for name in DATA_DIR_VARIABLES if (value := os.environ.get(name)))
    return Path(next(named, DATA_DIR))


def command(
    name: str, *params: click.Parameter, group: str, columns: Iterable[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command.

    Args:
        name: RabbitMQ's name.
        params: arguments and options beside the common ones.
        group: heading in the list of commands.
        columns: names of the columns of a list, for its help.

    """

    def register(run: Callable[..., None]) -> Callable[..., None]:
        COMMANDS[name] = Registered(run, params, group, tuple(columns))
        return run

    return register


def argument(name: str, *, optional: bool = False, many: bool = False) -> click.Argument:
    """Return an argument.

    Args:
        name: its name.
        optional: whether it may be left out.
        many: whether there may be any number of it.

    """
    return click.Argument([name], required=not (optional or many), nargs=-1 if many else 1)


def option(*names: str, **attributes: Any) -> click.Option:
    """Return an option (`click.Option`)."""
    return click.Option(list(names), **attributes)


def common_options() -> list[click.Parameter]:
    """Return the options of every command, which may stand before it, too."""
    path = click.Path(path_type=Path, file_okay=False)
    return [
        option(
            "--data-dir",
            type=path,
            metavar="DIR",
            help="Data directory of the broker (default: that of `leveret serve`).",
        ),
        option("--uri", metavar="URI", help="http://USER:PASSWORD@HOST:15672 of the management API instead."),
        option("-p", "--vhost", metavar="VHOST", help="Virtual host (default: /)."),
        option("-q", "--quiet", is_flag=True, default=None, help="Print results only."),
        option("-s", "--silent", is_flag=True, default=None, help="Print results only, without headers."),
        option("--formatter", type=click.Choice(list(FORMATTERS)), help="Format of lists (default: table)."),
        option("--no-table-headers", is_flag=True, default=None, help="Print tables without headers."),
        timeout_option(option),
        option("-n", "--node", metavar="NODE", help="Ignored: --data-dir or --uri names the broker."),
        option("-l", "--longnames", is_flag=True, default=None, help="Ignored.", hidden=True),
    ]


COMMON = [each.name for each in common_options()]


class CtlCommand(click.Command):
    """A command with the common options; its errors are printed, and end the process with their exit code."""

    def __init__(self, name: str, registered: Registered) -> None:
        doc = (registered.run.__doc__ or "").strip()
        super().__init__(name, params=[*registered.params, *common_options()], help=doc)
        self._run = registered.run
        self._columns = registered.columns

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write an example, the options of this command, the common ones, and the columns of a list."""
        if (example := EXAMPLES.get(self.name or "")) is not None:
            with formatter.section("Example"):
                # As it is: words that are wrapped cannot be copied.
                formatter.write(f"{' ' * formatter.current_indent}leveret ctl {example}\n")
        for title, is_common in (("Options", False), ("Common options", True)):
            options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
            params = [each for each in options if (each.name in COMMON) is is_common]
            if records := [record for each in params if (record := each.get_help_record(ctx))]:
                with formatter.section(title):
                    formatter.write_dl(records)
        if self._columns:
            with formatter.section("Columns"):
                formatter.write_text(", ".join(self._columns))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; a wrong one ends the process with RabbitMQ's exit code."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            fail(ctx, _wrong_arguments(error))

    def invoke(self, ctx: click.Context) -> None:
        """Run the command."""
        before = ctx.parent.params if ctx.parent is not None else {}
        common = {
            name: value if (value := ctx.params.pop(name, None)) is not None else before.get(name)
            for name in COMMON
            if name
        }
        where = common["uri"] or common["data_dir"] or default_data_dir()
        if common["uri"] and common["data_dir"]:
            fail(ctx, UsageError("--data-dir and --uri exclude each other", exit_codes.USAGE))
        try:
            with contextlib.closing(ApiClient(where, common["timeout"] or SECONDS)) as api:
                self._run(Session(api, common), **ctx.params)
        except ApiError as error:
            fail(ctx, explained(error))
        except CtlError as error:
            fail(ctx, error)


def _wrong_arguments(error: click.UsageError) -> UsageError:
    """Return the error for arguments that do not fit a command, in the words of RabbitMQ's tools."""
    text = error.format_message()
    if isinstance(error, click.MissingParameter):
        return UsageError("not enough arguments.", exit_codes.USAGE, text)
    if "unexpected extra argument" in text:
        return UsageError("too many arguments.", exit_codes.USAGE, text)
    return UsageError("Invalid options for this command:", exit_codes.USAGE, text)


def fail(ctx: click.Context, error: CtlError) -> NoReturn:
    """Print an error, and end the process with its exit code."""
    if isinstance(error, UsageError):
        click.echo(f"Error (argument validation): {error}", err=True)
        if error.hint:
            click.echo(error.hint, err=True)
        click.echo(f"\n{ctx.get_usage()}", err=True)
    else:
        click.echo(str(error), err=True)
    sys.exit(error.code)


class CtlGroup(click.Group):
    """The commands, by groups; names that do not exist end the process with RabbitMQ's exit code."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; without any, help is printed, which is no error."""
        if not args:
            click.echo(ctx.get_help())
            ctx.exit()
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            fail(ctx, _wrong_arguments(error))

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        del ctx
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; None if there is none of that name."""
        del ctx
        registered = COMMANDS.get(cmd_name)
        return None if registered is None else CtlCommand(cmd_name, registered)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command of the arguments."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            click.echo(f"\nCommand '{args[0]}' not found.", err=True)
            if lines := list(absent.explained(args)):
                click.echo("\n".join(lines), err=True)
            elif close := difflib.get_close_matches(args[0], COMMANDS, 1):
                click.echo(f"Did you mean '{close[0]}'?", err=True)
            sys.exit(exit_codes.USAGE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by groups."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            doc = CtlCommand(name, COMMANDS[name]).get_short_help_str(200)
            groups.setdefault(COMMANDS[name].group, []).append((name, doc))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)

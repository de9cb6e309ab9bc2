"""Commands: how they are declared, their common options and errors, and the session that each of them is given."""

import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import click
import msgspec

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.client import SECONDS, ApiClient
from leveret.broker.cli.ctl.output import CHATTY, FORMATTERS, CtlError, UsageError, as_json, writable
from leveret.broker.http import running_brokers

T = TypeVar("T")
Run = Callable[..., None]

DATA_DIR = "var"  # the data directory that `leveret serve` uses by default
DATA_DIR_VARIABLES = (
    "LEVERET_CTL_DATA_DIR",
    "LEVERET_DATA_DIR",
    "RABBITMQ_MNESIA_DIR",
    "RABBITMQ_MNESIA_BASE",
)
"""Variables that name another; all but the first are those of `leveret serve`, in its order."""
MOST_SECONDS = 1_000_000  # longest time for an answer that can be given

# Headings of the list of commands, RabbitMQ's, that commands of several modules are below.
CHECKS = "Monitoring, observability and health checks"
NODES = "Nodes"
VHOSTS = "Virtual hosts"


class Session:
    """One command: the API of the broker, what the common options say, and the output."""

    def __init__(self, api: ApiClient, options: Mapping[str, Any]) -> None:
        self.api = api
        self.vhost: str = options.get("vhost") or "/"
        self.formatter: str = options.get("formatter") or "table"
        self._is_silent = bool(options.get("silent"))
        self._is_quiet = self._is_silent or bool(options.get("quiet"))
        self._has_headers = not (self._is_silent or options.get("no_table_headers"))
        self.given_seconds: float | None = options.get("timeout")  # the time of `--timeout`

    @property
    def seconds(self) -> float:
        """Time for each answer."""
        return self.given_seconds or SECONDS

    @functools.cached_property
    def node(self) -> str:
        """Name of the broker."""
        return str(self.api.get("leveret", "resources")["node"])

    @property
    def is_json(self) -> bool:
        """True if the output is JSON."""
        return self.formatter == "json"

    def announce(self, text: str) -> None:
        """Print what is being done, unless the output is for programs."""
        if not self._is_quiet and self.formatter in CHATTY:
            click.echo(writable(text))

    def say(self, text: str, found: Mapping[str, Any] | None = None) -> None:
        """Print a result that is a text; as JSON it is `found`, or an object with the text."""
        text = writable(text)
        if self.is_json:
            click.echo(msgspec.json.encode({"result": "ok", "message": text} if found is None else found))
        elif not self._is_silent:
            click.echo(text)

    def show(self, text: str) -> None:
        """Print a text that was asked for."""
        click.echo(text)

    def show_object(self, value: Any, lines: Iterable[str]) -> None:
        """Print an object as JSON, or its lines."""
        if self.is_json:
            click.echo(msgspec.json.encode(as_json(value)))
            return
        for line in lines:
            click.echo(line)

    def show_rows(
        self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, blank: bool = False
    ) -> None:
        """Print a list; if it is empty and RabbitMQ prints a `blank` line instead of the table, that."""
        if blank and not rows and self.formatter == "table":
            click.echo()
        for line in FORMATTERS[self.formatter](rows, columns, headers=self._has_headers):
            click.echo(line)


class Declaration(NamedTuple):
    """A command."""

    run: Run  # called with the session and the arguments and options by name
    group: str  # heading in the list of commands
    example: str  # words after `leveret ctl`, for the help and the reference
    options: Sequence[click.Option]  # those beside the common ones
    columns: Sequence[str]  # names of the columns of a list

    def arguments(self) -> Iterator[click.Argument]:
        """Yield the arguments: the positional parameters of the function but the session, all of them texts."""
        for each in list(inspect.signature(self.run).parameters.values())[1:]:
            if each.kind is each.POSITIONAL_OR_KEYWORD:
                is_many = each.annotation == tuple[str, ...]
                is_required = not is_many and each.default is each.empty
                yield click.Argument([each.name], required=is_required, nargs=-1 if is_many else 1)


COMMANDS: dict[str, Declaration] = {}


def command(
    group: str,
    example: str = "",
    *options: click.Option,
    name: str = "",
    columns: Iterable[str] = (),
    says: str = "",
) -> Callable[[Run], Run]:
    """Declare a function as a command: its positional parameters are the arguments, the keyword ones the options.

    `example` has the words after the name of the command in its example, `name` is for one that no function may have.
    `says`: what is announced before it runs, with its parameters in braces. With the names of `columns` the function
    gets those that are chosen.
    """

    def declare(run: Run) -> Run:
        @functools.wraps(run)
        def announced(*arguments: Any, **given: Any) -> None:
            bound = inspect.signature(run).bind(*arguments, **given)
            values = bound.arguments
            if columns:
                values["columns"] = _chosen(values["columns"], columns)
            if says:
                values["session"].announce(says.format_map(values))
            run(*bound.args, **bound.kwargs)

        named = name or run.__name__
        COMMANDS[named] = Declaration(
            announced, group, f"{named} {example}".rstrip(), options, tuple(columns)
        )
        return announced

    return declare


def option(*names: str, **attributes: Any) -> click.Option:
    """Return an option (`click.Option`)."""
    return click.Option(list(names), **attributes)


def flag(*names: str, text: str, **attributes: Any) -> click.Option:
    """Return an option without a value."""
    return option(*names, is_flag=True, help=text, **attributes)


def broker_options(make: Callable[..., T]) -> tuple[T, T, T]:
    """Return the options that name the broker and the time for its answers, made by click's class or decorator."""
    path = click.Path(path_type=Path, file_okay=False)
    text = "Data directory of the broker (default: ./var, that of the service, or of the only broker of this user)."
    return (
        make("--data-dir", type=path, metavar="DIR", help=text),
        make("--uri", metavar="URI", help="http://USER:PASSWORD@HOST:15672 of the management API instead."),
        make(
            "-t",
            "--timeout",
            type=float,
            callback=_seconds,
            metavar="SECONDS",
            help="Time for the answer (default: 60).",
        ),
    )


def _seconds(_context: click.Context, _parameter: click.Parameter, value: float | None) -> float | None:
    """Return a time in seconds; 0 stands for the default, as None does."""
    if value is not None and not 0 <= value <= MOST_SECONDS:  # not a number, too
        raise click.BadParameter(f"{value} is not a number of seconds from 0 to {MOST_SECONDS}")
    return value or None


def client_of(options: Mapping[str, Any]) -> contextlib.closing[ApiClient]:
    """Return a client of the broker that these options name. Raises CtlError."""
    if options["uri"] and options["data_dir"]:
        raise UsageError("--data-dir and --uri exclude each other", exit_codes.USAGE)
    where = options["uri"] or options["data_dir"] or default_data_dir()
    return contextlib.closing(ApiClient(where, options.get("timeout") or SECONDS))


def default_data_dir() -> Path:
    """Return the data directory of commands that name none: that of a variable, or of the one broker that is found.

    A message names a broker that is elsewhere. Of several none is chosen: they are listed if the command needs one.
    """
    if named := next((value for name in DATA_DIR_VARIABLES if (value := os.environ.get(name))), ""):
        return Path(named)
    directories = running_brokers.found(os.environ)
    if len(directories) > 1:
        return running_brokers.Several(DATA_DIR)
    if directories and directories[0] not in running_brokers.USUAL:
        click.echo(f"the broker on {directories[0]}:", err=True)
    return next(iter(directories), Path(DATA_DIR))


def common_options() -> list[click.Option]:
    """Return the options of every command, which may stand before it, too."""
    data_dir, uri, timeout = broker_options(option)
    return [
        data_dir,
        uri,
        option("-p", "--vhost", metavar="VHOST", help="Virtual host (default: /)."),
        flag("-q", "--quiet", default=None, text="Print results only."),
        flag("-s", "--silent", default=None, text="Print results only, without headers."),
        option("--formatter", type=click.Choice(list(FORMATTERS)), help="Format of lists (default: table)."),
        flag("--no-table-headers", default=None, text="Print tables without headers."),
        timeout,
        option("-n", "--node", metavar="NODE", help="Ignored: --data-dir or --uri names the broker."),
        flag("-l", "--longnames", default=None, text="Ignored.", hidden=True),
    ]


COMMON = [each.name or "" for each in common_options()]


class CtlCommand(click.Command):
    """A command with the common options; its errors are printed, and end the process with their exit code."""

    def __init__(self, name: str) -> None:
        self.declaration = declaration = COMMANDS[name]
        params = [*declaration.arguments(), *declaration.options, *common_options()]
        super().__init__(name, params=params, help=inspect.getdoc(declaration.run))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write an example, the options of this command, the common ones, and the columns of a list."""
        with formatter.section("Example"):
            # As it is: words that are wrapped cannot be copied.
            formatter.write(f"{' ' * formatter.current_indent}leveret ctl {self.declaration.example}\n")
        for title, is_common in (("Options", False), ("Common options", True)):
            options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
            params = [each for each in options if (each.name in COMMON) is is_common]
            if records := [record for each in params if (record := each.get_help_record(ctx))]:
                with formatter.section(title):
                    formatter.write_dl(records)
        if self.declaration.columns:
            with formatter.section("Columns"):
                formatter.write_text(", ".join(self.declaration.columns))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; a wrong one ends the process with RabbitMQ's exit code."""
        with wrong_arguments(ctx):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> None:
        """Run the command."""
        before = ctx.parent.params if ctx.parent is not None else {}
        given = {name: ctx.params.pop(name, None) for name in COMMON}
        common = {name: before.get(name) if value is None else value for name, value in given.items()}
        try:
            with client_of(common) as api:
                self.declaration.run(Session(api, common), **ctx.params)
                if api.missing:
                    text = f"Warning: this is without the virtual hosts of process {api.missing}, which does not answer"
                    click.echo(text, err=True)
        except CtlError as error:
            fail(ctx, error)


@contextlib.contextmanager
def wrong_arguments(ctx: click.Context) -> Iterator[None]:
    """End the process for arguments that do not fit a command, in the words of RabbitMQ's tools."""
    try:
        yield
    except click.UsageError as error:
        text = error.format_message()
        what = "Invalid options for this command:"
        if isinstance(error, click.MissingParameter):
            what = "not enough arguments."
        elif "unexpected extra argument" in text:
            what = "too many arguments."
        fail(ctx, UsageError(what, exit_codes.USAGE, text))


def fail(ctx: click.Context, error: CtlError) -> NoReturn:
    """Print an error, and end the process with its exit code."""
    if isinstance(error, UsageError):
        click.echo(f"Error (argument validation): {error}", err=True)
        if error.hint:
            click.echo(error.hint, err=True)
        click.echo(f"\n{ctx.get_usage()}", err=True)
    else:
        click.echo(error.shown, err=True)
    sys.exit(error.code)


# -- values of arguments ------------------------------------------------------------------------------------------


def _chosen(columns: Sequence[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return the columns that were given, several in one argument, too; raises UsageError for an unknown one."""
    given = [each for text in columns for each in text.replace(",", " ").split()]
    if unknown := [each for each in given if each not in set(known)]:
        raise UsageError(f"Info key(s) {', '.join(unknown)} are not supported", exit_codes.USAGE)
    return tuple(given)


def counted(text: str) -> int:
    """Return a number that was given as an argument. Raises UsageError if it is none, or not positive."""
    if not text.isdecimal() or not int(text):
        raise UsageError("Bad argument: Argument must be a positive integer", exit_codes.DATA)
    return int(text)


def asked_secret(given: str | None, what: str) -> str:
    """Return a secret: the argument, or else a line of the standard input, without echo from a terminal."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        return str(click.prompt(what, hide_input=True))
    line = sys.stdin.readline().rstrip("\r\n")
    if not line:
        raise CtlError(f"Error: no {what.lower()} was given", exit_codes.DATA)
    return line


def parsed(text: str) -> Any:
    """Return a JSON value that was given as an argument. Raises CtlError."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise CtlError(f"Error:\nJSON decoding error. Reason: {error}") from None

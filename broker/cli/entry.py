"""The program `leveret`: its commands, and what each of them loads (driver: the arguments of the process).

`leveret ctl`, `leveret top` and the commands on messages are clients, and the first of them is called often by scripts;
`leveret analyze` becomes another program at once. They are run without loading the broker.
"""

import functools
import gc
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

LIGHT: Final[Mapping[str, str]] = {
    "analyze": "entry.analyze",
    "copy": "transfers.copy",
    "ctl": "ctl.main.ctl",
    "dedup": "queues.dedup",
    "discard": "transfers.discard",
    "dlq": "transfers.dlq",
    "explain": "queues.explain",
    "held": "messages.held",
    "move": "transfers.move",
    "pause": "queues.pause",
    "peek": "messages.peek",
    "replay": "transfers.replay",
    "resume": "queues.resume",
    "tail": "messages.tail",
    "top": "top.command.top",
}
"""Commands that load no broker, most of them clients of a running one: by the name of the command its place,
`MODULE.ATTRIBUTE` below this package."""
LATE: Final[Mapping[str, str]] = {  # commands loaded when they are used: no start of the broker needs them
    **LIGHT,
    "definitions": "definitions.definitions",
    "migrate": "migrate.migrate",
    "perf": "perf.perf",
    "store": "store.store",
}

_SENTENCE: Final = 200  # characters of the first sentence about a command; click cuts it at a line's end


def examples(*lines: str) -> Callable[[F], F]:
    """Return a decorator that adds examples, which begin with `leveret`, to the help of a command."""

    def described(run: F) -> F:
        title = "Examples:" if len(lines) > 1 else "Example:"
        # The mark has click leave the lines as they are.
        shown = "\n".join(["\b", title, *(f"  leveret {each}" for each in lines)])
        run.__doc__ = f"{inspect.getdoc(run)}\n\n{shown}"
        return run

    return described


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return a decorator that adds options to a command, in this order."""
    return lambda run: functools.reduce(lambda made, option: option(made), reversed(options), run)


class Group(click.Group):
    """A group whose list of commands has whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_SENTENCE)) for name, each in commands if each is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def load(name: str) -> click.Command:
    """Return the command of a name in `LATE`."""
    return _at(LATE[name])


def _at(place: str) -> click.Command:
    module, _, attribute = place.rpartition(".")
    command: click.Command = getattr(importlib.import_module(f"leveret.broker.cli.{module}"), attribute)
    return command


def main() -> None:
    """Run the command of the arguments."""
    name = "".join(sys.argv[1:2])
    if name in LIGHT:
        load(name)(sys.argv[2:], prog_name=f"leveret {name}", help_option_names=["-h", "--help"])
    else:
        gc.disable()  # a tenth of the time to load the broker was spent on looking for garbage, of which there is none
        try:
            command = _at("main.main")
        finally:
            gc.enable()
        command()


@click.command(
    "analyze",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    add_help_option=False,
    short_help="Create reports from the telemetry export of a broker, with Spark.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def analyze(arguments: Sequence[str]) -> None:
    """Run an analysis; `leveret analyze --help` says more."""
    # Another program: the broker never imports `analytics`, because a broker's process must not load PySpark.
    # -P: do not import the package from the current directory.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "leveret.analytics", *arguments])  # noqa: S606 - ourselves

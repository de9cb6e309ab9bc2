"""The command `leveret top` (driver: the process and its terminal)."""

import sys
from pathlib import Path
from typing import Final, NoReturn

import click

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import broker_options, client_of
from leveret.broker.cli.ctl.output import CtlError

INTERVAL: Final = 2.0
LEAST_INTERVAL, MOST_INTERVAL = 0.2, 3600.0
_LIBRARIES: Final = frozenset({"textual", "rich"})


_data_dir_option, _uri_option, _ = broker_options(click.option)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@_data_dir_option
@_uri_option
@click.option("-p", "--vhost", metavar="VHOST", help="Show this virtual host only.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(LEAST_INTERVAL, MOST_INTERVAL),
    default=INTERVAL,
    show_default=True,
    help="Time between two pictures.",
)
def top(data_dir: Path | None, uri: str | None, vhost: str | None, interval: float) -> None:
    """Show the queues, connections and channels of a running broker, live.

    \b
    Examples:
      leveret top
      leveret top --uri http://monitor:secret@broker.example:15672 --interval 5
    """  # noqa: D301 - click's mark for lines that stay as they are
    try:
        from leveret.broker.cli.top.app import SECONDS, Source, Top  # noqa: PLC0415 - of an extra, and slow to import
        from leveret.broker.cli.top.model import Model  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _LIBRARIES:
            raise
        _fail(
            f"missing package {error.name}; install it with: pip install 'leveret[top]'",
            exit_codes.UNAVAILABLE,
        )
    try:
        with client_of({"uri": uri, "data_dir": data_dir, "timeout": SECONDS}) as api:
            source, model = Source(api, vhost), Model()
            if not (sys.stdin.isatty() and sys.stdout.isatty()):
                source.ask(model.question())  # what is wrong with the broker is told first
                _fail("needs a terminal; `leveret ctl list_queues` prints a list", exit_codes.USAGE)
            problem = Top(source, model, interval).run(mouse=False)
            if problem is not None:
                raise problem
    except CtlError as error:
        click.echo(error.shown, err=True)
        sys.exit(error.code)


def _fail(text: str, code: int) -> NoReturn:
    click.echo(f"leveret top: {text}", err=True)
    sys.exit(code)

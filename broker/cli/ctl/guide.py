"""The command that tells what the commands do."""

import click

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.command import COMMANDS, CtlCommand, argument, command, option
from leveret.broker.cli.ctl.errors import UsageError
from leveret.broker.cli.ctl.session import Session


@command(
    "help",
    argument("name", optional=True),
    option("--markdown", is_flag=True, hidden=True),
    group="Help",
)
def show_help(session: Session, name: str | None, *, markdown: bool) -> None:
    """Print the list of commands, or what a command does."""
    if markdown:
        from leveret.broker.cli.ctl.reference import rendered  # noqa: PLC0415 - only for whoever writes the page

        session.show(rendered().rstrip())
        return
    parent = click.get_current_context().parent
    if name is None:
        session.show(parent.get_help() if parent is not None else "")
        return
    if name not in COMMANDS:
        raise UsageError(f"there is no command {name}", exit_codes.USAGE)
    asked = CtlCommand(name, COMMANDS[name])
    session.show(asked.get_help(click.Context(asked, info_name=name, parent=parent)))

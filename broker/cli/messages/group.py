"""A group of commands whose help tells all of what each does."""

import click

_LIMIT = 200
"""Characters of the first sentence about a command; click cuts it at the end of one line."""


class Group(click.Group):
    """A group whose list of commands has whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(_LIMIT)) for name, each in commands if each is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

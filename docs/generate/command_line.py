"""The page of the commands of `leveret ctl`, from their declarations."""

from collections.abc import Iterable, Iterator, Sequence

import click

from leveret.broker.cli.ctl.command import CtlCommand, common_options
from leveret.broker.cli.ctl.main import ABSENT, INSTEAD, groups

_HEAD = """# leveret ctl

`leveret ctl [OPTIONS] COMMAND ...` looks at and changes a running broker. The commands have the names, output and
exit codes of `rabbitmqctl` and `rabbitmq-diagnostics`. They reach the broker through the socket `ctl.sock` in its data
directory, which only its user and root can open, or with `--uri` through the [management API](management.md).

Exit codes: 0 done, 64 wrong usage, 65 wrong data, 67 no such user, 69 refused or not running, 70 exists already or
internal error, 75 no answer in time or too many at once, 77 not allowed.

## Options

They stand before or behind the command. The data directory is that of `--data-dir`, else of the first of the variables
`LEVERET_CTL_DATA_DIR`, `LEVERET_DATA_DIR`, `RABBITMQ_MNESIA_DIR` and `RABBITMQ_MNESIA_BASE` that is set, else `var` or
`/var/lib/leveret` if a broker runs there, else that of the only broker of this user, which is then named.
"""


def render() -> str:
    """Return the whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield from _table(("Option", "Meaning"), _options(common_options()))
    for group, names in sorted(groups().items()):
        yield f"\n## {group}\n"
        yield from _table(("Command", "Meaning", "Example"), map(_row, names))
    yield "\n## Missing commands of RabbitMQ\n"
    yield "| About | Commands |"
    yield "|---|---|"
    for subject, absent in ABSENT.items():
        yield f"| {subject} | {', '.join(f'`{name}`' for name in absent.split())} |"
    yield "\nThey end with exit code 64, and change nothing. Instead of those that scripts use:\n"
    for name, text in INSTEAD.items():
        yield f"- `{name}`: {text}."


def _row(name: str) -> tuple[str, ...]:
    asked = CtlCommand(name)
    declaration = asked.declaration
    context = click.Context(asked)
    words = " ".join([name, *(each.make_metavar(context) for each in declaration.arguments())])
    more = "".join(f" {option}: {text}" for option, text in _options(declaration.options))
    columns = f" Columns: {', '.join(declaration.columns)}." if declaration.columns else ""
    return f"`{words}`", (asked.help or "") + more + columns, f"`{declaration.example}`"


def _options(options: Iterable[click.Option]) -> list[tuple[str, str]]:
    return [(f"`{', '.join(each.opts)}`", each.help or "") for each in options if not each.hidden]


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heading)} |"
    yield "|---" * len(heading) + "|"
    for cells in rows:
        yield f"| {' | '.join([' '.join(text.split()).replace('|', chr(92) + '|') for text in cells])} |"

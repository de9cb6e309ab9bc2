"""The command `leveret config` (driver: the process)."""

import os
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from leveret.broker import exit_codes
from leveret.broker.cli.entry import examples
from leveret.broker.cli.options import config_options, fail, load_or_exit
from leveret.broker.config.config import judge_settings, written_settings
from leveret.broker.config.values import Setting

_fail = partial(fail, code=exit_codes.USAGE, command="leveret config")


@click.command("config")
@config_options
@click.option(
    "--ignored", is_flag=True, help="Print only the keys of RabbitMQ that have no effect, with the reason."
)
@click.option("--all", "is_whole", is_flag=True, help="With files, too, list the keys that are not set.")
@click.argument("key", required=False)
@examples(
    "config",
    "config --config /etc/rabbitmq/rabbitmq.conf",
    "config heartbeat",
    "config encrypt < password",
)
def show_config(
    config_paths: Sequence[Path],
    data_dir: Path | None,
    settings: Sequence[str],
    key: str | None,
    *,
    ignored: bool,
    is_whole: bool,
) -> None:
    """Show the configuration keys, their values and meanings; explain one KEY; or `encrypt` a value.

    First come the keys that are set by files, variables and options, with their origin (passwords are masked), and
    what of them has no effect; with files nothing else, unless `--all` is given. Then come the keys that are used
    most, all others by topic, and the keys of RabbitMQ that have no effect. An invalid configuration is reported as at
    the start of the broker.
    """
    from leveret.broker.config.reference import Overview  # noqa: PLC0415 - only for this command

    if key == "encrypt":
        _encrypt(written_settings(config_paths, data_dir, settings, os.environ, [], []))
        return
    config = load_or_exit(config_paths, data_dir, settings)
    obeyed = judge_settings(config_paths, data_dir, settings, os.environ).obeyed
    is_terminal = sys.stdout.isatty()
    size = shutil.get_terminal_size()
    overview = Overview(obeyed, config.warnings, size.columns if is_terminal else None)
    if key is None:
        if config_paths and not (is_whole or ignored):
            lines = [*overview.given(), overview.verdict()]
        else:
            lines = list(overview.ignored() if ignored else overview.lines())
    elif (explained := overview.explained(key)) is not None:
        lines = list(explained)
    else:
        near = overview.near(key)
        _fail(f"there is no key {key}" + (f"; did you mean {', '.join(near)}?" if near else ""))
    if is_terminal and len(lines) >= size.lines:
        click.echo_via_pager("\n".join(lines) + "\n")
    else:
        click.echo("\n".join(lines))


def _encrypt(written: Sequence[Setting]) -> None:
    from leveret.broker.config.encrypted import PASSPHRASE, encrypt, passphrase_of  # noqa: PLC0415 - only for this

    problems: list[str] = []
    passphrase = passphrase_of({setting.key: setting for setting in written}, problems)
    if problems:
        _fail(problems[0])
    is_terminal = sys.stdin.isatty()
    if not passphrase and is_terminal:
        passphrase = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    if not passphrase:
        _fail(f"{PASSPHRASE} is not set; set it as the broker will have it")
    if is_terminal:
        value = click.prompt("Value", hide_input=True, confirmation_prompt=True, err=True)
    else:
        value = sys.stdin.readline().rstrip("\r\n")
    if not value:
        _fail("there is no value: it is read from the standard input")
    click.echo(encrypt(value, passphrase))

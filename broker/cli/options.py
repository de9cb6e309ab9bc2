"""Options of commands on data and settings, and the end of one that fails (driver)."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NoReturn

import click

from leveret.broker import exit_codes
from leveret.broker.config.config import Config, ConfigError, load
from leveret.broker.persistence.data_lock import DataDirError, InUseError
from leveret.storage.errors import StorageError

PROGRAM: Final = "leveret"
_PATH: Final = click.Path(path_type=Path)

data_dir_option = click.option("--data-dir", metavar="DIR", type=_PATH, help="Data directory (default: var).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as a JSON object.")


def config_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name files and set keys to a command."""
    text = "Configuration file, directory of *.conf files, or pattern; may be repeated, later files override earlier."
    files = click.option("--config", "config_paths", metavar="FILE", multiple=True, type=_PATH, help=text)
    text = "Set a configuration key; may be repeated."
    settings = click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help=text)
    return files(data_dir_option(settings(command)))


def load_or_exit(
    config_paths: Sequence[Path] = (),
    data_dir: Path | None = None,
    settings: Sequence[str] = (),
    *,
    amqp_port: int | None = None,
) -> Config:
    """Return the configuration; prints all problems and ends the process if it is invalid."""
    try:
        return load(config_paths, data_dir, settings, os.environ, amqp_port=amqp_port)
    except ConfigError as error:
        fail(f"\n{PROGRAM}: ".join(error.problems), exit_codes.CONFIG)


@contextlib.contextmanager
def data_errors(before: str = "", advice: str = "") -> Iterator[None]:
    """End the process for data that cannot be used.

    `before` begins the text if that is because of what is stored, `advice` ends it if another process uses the data.
    """
    try:
        yield
    except InUseError as error:
        fail(f"{error}{advice}", exit_codes.CANNOT_CREATE)
    except DataDirError as error:
        fail(str(error), exit_codes.CANNOT_CREATE)
    except StorageError as error:
        fail(f"{before}{error}", exit_codes.of_storage(error))


def fail(text: str, code: int, command: str = PROGRAM) -> NoReturn:
    """Print why a command has failed, and end the process."""
    click.echo(f"{command}: {text}", err=True)
    sys.exit(code)

"""The command `leveret migrate check`: what becomes of RabbitMQ's files here (driver: files, the process)."""

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from leveret.broker import exit_codes
from leveret.broker.administration import BadRequestError
from leveret.broker.administration.definitions_outcome import ADVICE, Outcome
from leveret.broker.cli.entry import Group, examples
from leveret.broker.cli.options import fail
from leveret.broker.config.config import Config, Judged, judge_settings
from leveret.broker.config.rabbitmq import ENABLED_PLUGINS_FILE, ENV_FILE
from leveret.broker.config.reference import Overview
from leveret.broker.config.values import line_of
from leveret.broker.process.named_files import MOST_DEFINITIONS, read_named, write_private
from leveret.broker.server.server import Server

_OURS: Final = ("LEVERET_", "RABBITMQ_")
_NAMED: Final = {"rabbitmq-env.conf": ENV_FILE, "enabled_plugins": ENABLED_PLUGINS_FILE}
"""Files of RabbitMQ that its environment names, and the variables."""
_FILES: Final = frozenset({"cacertfile", "certfile", "keyfile", "dhfile", "load_definitions", "path"})
"""The last parts of keys that name files which a start reads."""
_FOR: Final = {"leveret.conf": "leveret serve --config", "definitions.json": "leveret ctl import_definitions"}
"""Files that are written, and the commands that take them."""


@click.group(cls=Group)
def migrate() -> None:
    """Look at the files of a RabbitMQ that is to be replaced."""


@migrate.command()
@click.option(
    "--write",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write leveret.conf and definitions.json to DIR, with what can be used.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@examples(
    "migrate check /etc/rabbitmq/rabbitmq.conf definitions.json",
    "migrate check rabbitmq.conf advanced.config definitions.json --write new",
)
def check(files: Sequence[Path], folder: Path | None) -> None:
    """Tell whether a broker starts with FILES of RabbitMQ, and what becomes of each setting and definition.

    FILES are rabbitmq.conf or a directory of such files, advanced.config, rabbitmq.config, rabbitmq-env.conf,
    enabled_plugins and definitions (*.json), in any number and order. The command ends with 0 if a broker starts,
    with 78 if the configuration has to be changed, and with 65 if only definitions have to be.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    environ |= {_NAMED[each.name]: str(each) for each in files if each.name in _NAMED}
    imported = [each for each in files if each.suffix == ".json"]
    judged = judge_settings(
        (each for each in files if each not in imported and each.name not in _NAMED), environ=environ
    )
    definitions = _Definitions(judged.config)
    lines = [*_configuration(judged)]
    for file in imported:
        lines += definitions.add(file)
    if folder is not None:
        lines += _write(folder, judged, definitions)
    for line in [*lines, _verdict(judged, definitions)]:
        click.echo(line)
    sys.exit(exit_codes.CONFIG if judged.problems else exit_codes.DATA if definitions.refused else 0)


def _configuration(judged: Judged) -> Iterator[str]:
    """Yield what is obeyed, what has no effect by the reason, and what is refused."""
    yield from Overview(judged.obeyed, judged.config.warnings).given()
    yield from _section("Not on this machine, but needed", _missing(judged))
    yield from _section("Refused", judged.problems)


def _missing(judged: Judged) -> Iterator[str]:
    for setting in judged.obeyed:
        if setting.key.rpartition(".")[2] in _FILES and not Path(setting.value).exists():
            yield line_of(setting)


def _waits(judged: Judged) -> str:
    return " once the files that are needed are there" if any(_missing(judged)) else ""


def _section(title: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        if not number:
            yield title
        yield f"  {line}"


class _Definitions:
    """Definitions that are imported, one file after the other, into a broker in memory with this configuration.

    `count` files were imported; `refused` counts entries that a start would not import, `invalid` those that no import
    would.
    """

    def __init__(self, config: Config) -> None:
        names = ("compatibility", "default_queue_type", "limits", "on_unsupported")
        used = {name: getattr(config, name) for name in names}
        self._server = Server(Config(listeners=(), definitions=Path(), **used), None)
        self.count = self.refused = self.invalid = 0

    def add(self, file: Path) -> Iterator[str]:
        """Import a file, without what cannot exist here, and yield lines about it."""
        administration = self._server.administration.definitions
        logging.disable()  # its warnings are among the lines
        try:
            octets = read_named(file, MOST_DEFINITIONS)
            self.refused += administration.import_file(None, octets, dry_run=True).refused
            outcome: Outcome = administration.import_file(None, octets, dry_run=True, on_unsupported="skip")
            if not outcome.refused:
                administration.import_file(None, octets, on_unsupported="skip")
        except OSError as error:
            fail(f"cannot read {file}: {error.strerror}", exit_codes.NO_INPUT)
        except BadRequestError as error:
            fail(f"{file}: {error}", exit_codes.DATA)
        finally:
            logging.disable(logging.NOTSET)
        self.count += 1
        self.invalid += outcome.refused
        yield f"{file}: {outcome.summary()}"
        yield from _section("Cannot exist here, or belong to what cannot", outcome.skipped)
        yield from _section("Invalid", map(str, outcome.problems))

    def octets(self) -> bytes:
        exported: bytes = self._server.administration.definitions.export_file(None)
        return exported


def _write(folder: Path, judged: Judged, definitions: _Definitions) -> Iterator[str]:
    """Write files that a broker starts with, as far as single entries decide about that; yields lines about them."""
    texts = {}
    if judged.written:
        texts["leveret.conf"] = "".join(f"{line_of(each)}\n" for each in judged.obeyed).encode()
    if definitions.invalid:
        yield "definitions.json is not written: the invalid entries have to be changed first"
    elif definitions.count:
        texts["definitions.json"] = definitions.octets()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, octets in texts.items():
            write_private(folder / name, octets)  # with passwords
            yield f"Written: {folder / name}, for `{_FOR[name]} {folder / name}`"
    except OSError as error:
        fail(f"cannot write to {folder}: {error.strerror}", exit_codes.CANNOT_CREATE)
    refused = judge_settings((folder / "leveret.conf",), environ={}).problems if judged.written else ()
    yield from _section("Still refused", refused)
    if not refused and not definitions.invalid:
        yield f"With the written files: starts{_waits(judged)}"


def _verdict(judged: Judged, definitions: _Definitions) -> str:
    reasons = []
    if count := len(judged.problems):
        reasons.append(f"problems of the configuration: {count}")
    if count := definitions.refused:
        reasons.append(f"definitions that are refused: {count}")
        if not definitions.invalid:
            reasons.append(ADVICE)
    return f"Verdict: does not start; {'; '.join(reasons)}" if reasons else f"Verdict: starts{_waits(judged)}"

"""Commands for definitions, and the report on an import or its dry run: as text, as JSON, and as an exit code."""

import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.client import IMPORT_SECONDS
from leveret.broker.cli.ctl.command import Session, command, flag, option
from leveret.broker.cli.ctl.output import ApiError, CtlError, UsageError, aligned, cell
from leveret.broker.process.named_files import MOST_DEFINITIONS, read_named, write_private

DEFINITIONS = "Definitions"
DRY_RUN: Final = "Change nothing, and list what would be added, changed and refused."
UNSUPPORTED: Final = (
    "What to do with definitions that cannot exist here (default: definitions.on_unsupported)."
)
ON_UNSUPPORTED: Final = ("refuse", "skip")
WOULD_CHANGE: Final = 1  # of a dry run of what can be imported, if it would change something

_FORMAT = option("--format", "kind", default="json", help="json")
_COLUMNS = ("kind", "vhost", "added", "changed", "unchanged", "kept", "refused", "unchecked", "skipped")


def _check_format(kind: str) -> None:
    if kind.lower() != "json":
        raise UsageError("only JSON is supported", exit_codes.USAGE)


@command(DEFINITIONS, "definitions.json", _FORMAT)
def export_definitions(session: Session, file: str, *, kind: str) -> None:
    """Write the definitions as JSON to a file, or with - to the standard output."""
    _check_format(kind)
    path = Path(file)
    if file != "-":
        if not path.parent.is_dir():
            raise UsageError(f"Bad argument: Directory {path.parent} does not exist", exit_codes.DATA)
        session.announce(f'Exporting definitions in JSON to a file at "{file}" ...')
    found = session.api.get("definitions")
    text = msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
    if file == "-":
        session.show(text)
        return
    try:
        write_private(path, f"{text}\n".encode())  # contains password hashes
    except OSError as error:
        raise CtlError(f"Error: cannot write {file}: {error.strerror}", exit_codes.CANNOT_CREATE) from None


@command(
    DEFINITIONS,
    "definitions.json",
    _FORMAT,
    flag("--skip-if-unchanged", text="Ignored: unchanged definitions change nothing."),
    flag("--dry-run", text=DRY_RUN),
    option("--on-unsupported", type=click.Choice(ON_UNSUPPORTED), help=UNSUPPORTED),
)
def import_definitions(
    session: Session, file: str, *, kind: str, dry_run: bool, on_unsupported: str | None, **_ignored: Any
) -> None:
    """Import definitions from a JSON file, or with - from the standard input; all of them or, if one is bad, none.

    A dry run ends with 0 if nothing would change, with 1 if something would, and with 65 if it cannot be imported.
    """
    _check_format(kind)
    content = _content(session, file)
    if session.given_seconds is None:
        session.api.allow(IMPORT_SECONDS)
    query = import_query(on_unsupported, dry_run=dry_run)
    try:
        answer = session.api.request("POST", ("leveret", "definitions"), content, query=query)
    except ApiError as error:
        if error.reason == "failed_to_parse_json":
            text = "Error:\nFailed to deserialise input (format: JSON)"
            raise CtlError(text, exit_codes.DATA) from None
        raise
    end_import(answer, session.formatter, session.show if dry_run or session.is_json else session.announce)


def _content(session: Session, file: str) -> bytes:
    if file == "-":
        session.announce("Importing definitions in JSON from standard input ...")
        return sys.stdin.buffer.read()
    if not Path(file).exists():
        raise UsageError(f"Bad argument: File {file} does not exist", exit_codes.DATA)
    session.announce(f'Importing definitions in JSON from a file at "{file}" ...')
    try:
        return read_named(file, MOST_DEFINITIONS, is_typed=True)
    except OSError as error:
        raise CtlError(f"Error: cannot read {file}: {error.strerror}", exit_codes.NO_INPUT) from None


def import_query(on_unsupported: str | None, *, dry_run: bool) -> dict[str, str]:
    """Return the query of an import by a running broker."""
    asked = {"dry_run": "true" if dry_run else None, "on_unsupported": on_unsupported}
    return {key: value for key, value in asked.items() if value}


def end_import(answer: Mapping[str, Any], formatter: str, show: Callable[[str], None]) -> None:
    """Show the broker's answer to an import, and end the process with the exit code of a dry run.

    That is 0 if nothing would change, 1 if something would, 65 if it cannot be imported.
    """
    for line in _report(answer, formatter):
        show(line)
    if answer["dry_run"]:
        code = WOULD_CHANGE if _would_change(answer) else 0
        sys.exit(code if answer["valid"] else exit_codes.DATA)


def _report(answer: Mapping[str, Any], formatter: str) -> Iterator[str]:
    if formatter == "json":
        yield msgspec.json.encode(answer).decode()
        return
    if not answer["dry_run"]:
        yield f"Imported: {answer['summary']}"
        yield from _skipped(answer)
        return
    yield from aligned([_COLUMNS, *[[cell(row[name]) for name in _COLUMNS] for row in answer["counts"]]])
    for change in answer["changes"]:
        yield f"{change['action']}: {change['entry']}"
        for each in change["differences"]:
            yield f"    {each['key']}: {_text(each['before'])} -> {_text(each['after'])}"
    yield from _left_off(answer["changes_left_off"])
    for problem in answer["problems"]:
        yield f"refused: {problem}"
    yield from _left_off(answer["problems_left_off"])
    yield from _skipped(answer)
    if not answer["valid"]:
        yield "Dry run: nothing of this can be imported."
    else:
        yield "Dry run: nothing was changed." if _would_change(answer) else "Dry run: nothing would change."


def _skipped(answer: Mapping[str, Any]) -> Iterator[str]:
    for each in answer["skipped"]:
        yield f"left out: {each}"
    yield from _left_off(answer["skipped_left_off"])


def _would_change(answer: Mapping[str, Any]) -> bool:
    return any(row["added"] or row["changed"] for row in answer["counts"])


def _text(value: Any) -> str:
    return "nothing" if value is None else msgspec.json.encode(value).decode()


def _left_off(count: int) -> Iterator[str]:
    if count:
        yield f"and {count} more"

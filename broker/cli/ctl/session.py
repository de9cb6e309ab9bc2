"""The session of one command: the broker, the options, and the output."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click
import msgspec

from leveret.broker import exit_codes
from leveret.broker.cli.ctl.client import SECONDS, ApiClient
from leveret.broker.cli.ctl.errors import CtlError, UsageError
from leveret.broker.cli.ctl.escaping import writable
from leveret.broker.cli.ctl.output import CHATTY, FORMATTERS, as_json


class Session:
    """One command.

    Args:
        api: the API of the broker.
        options: the common options (`command.COMMON`).

    Attributes:
        vhost: the vhost of the command.
        node: name of the broker, for messages.

    """

    def __init__(self, api: ApiClient, options: Mapping[str, Any]) -> None:
        self.api = api
        self.vhost: str = options.get("vhost") or "/"
        self.formatter: str = options.get("formatter") or "table"
        self._is_silent = bool(options.get("silent"))
        self._is_quiet = self._is_silent or bool(options.get("quiet"))
        self._has_headers = not (self._is_silent or options.get("no_table_headers"))
        self._node = ""
        self.given_seconds: float | None = options.get("timeout")
        """The time of `--timeout`."""

    @property
    def seconds(self) -> float:
        """Time for each answer."""
        return self.given_seconds or SECONDS

    @property
    def node(self) -> str:
        """Name of the broker."""
        if not self._node:
            self._node = self.api.get("leveret", "resources")["node"]
        return self._node

    @property
    def is_json(self) -> bool:
        """True if the output is JSON."""
        return self.formatter == "json"

    def announce(self, text: str) -> None:
        """Print what is being done, unless the output is for programs."""
        if not self._is_quiet and self.formatter in CHATTY:
            click.echo(writable(text))

    def say(self, text: str, found: Mapping[str, Any] | None = None) -> None:
        """Print a result that is a text.

        Args:
            text: the text.
            found: printed instead if the output is JSON; None for an object with the text.

        """
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


def chosen(columns: Sequence[str], known: Iterable[str], default: Sequence[str]) -> list[str]:
    """Return the columns of a list.

    Args:
        columns: as they were given; several may stand in one argument.
        known: those that exist.
        default: if none were given.

    Raises:
        UsageError: one does not exist.

    """
    given = [each for text in columns for each in text.replace(",", " ").split()]
    if unknown := [each for each in given if each not in set(known)]:
        raise UsageError(f"Info key(s) {', '.join(unknown)} are not supported", exit_codes.USAGE)
    return given or list(default)


def counted(text: str) -> int:
    """Return a number that was given as an argument.

    Raises:
        UsageError: it is none, or not positive.

    """
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
    """Return a JSON value that was given as an argument."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise CtlError(f"Error:\nJSON decoding error. Reason: {error}", exit_codes.UNAVAILABLE) from None

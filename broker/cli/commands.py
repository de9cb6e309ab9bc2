"""The commands that are loaded when they are used: no start of the broker needs them."""

import importlib
from collections.abc import Mapping

import click

LIGHT: Mapping[str, str] = {
    "analyze": "analyze.analyze",
    "copy": "messages.transfers.copy",
    "ctl": "ctl.main.ctl",
    "discard": "messages.transfers.discard",
    "dlq": "messages.dead_letters.command",
    "explain": "messages.explain.command",
    "move": "messages.transfers.move",
    "pause": "messages.pausing.pause",
    "peek": "messages.peek.command",
    "replay": "messages.replay.replay",
    "resume": "messages.pausing.resume",
    "tail": "messages.tail.command",
    "top": "top.command.top",
}
"""Commands that load no broker, most of them clients of a running one: by the name of the command its place,
`MODULE.ATTRIBUTE` below this package."""
LATE: Mapping[str, str] = {
    **LIGHT,
    "definitions": "definitions.definitions",
    "perf": "perf.perf",
    "store": "store.store",
}
"""All of them."""


def load(name: str) -> click.Command:
    """Return the command of a name in `LATE`."""
    module, _, attribute = LATE[name].rpartition(".")
    command: click.Command = getattr(importlib.import_module(f"leveret.broker.cli.{module}"), attribute)
    return command

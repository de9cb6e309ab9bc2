"""The commands that are loaded when they are used: most are clients, and no start of the broker needs them."""

import importlib
from collections.abc import Mapping

import click

CLIENTS: Mapping[str, str] = {
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
"""Clients of a running broker: by the name of the command its place, `MODULE.ATTRIBUTE` below this package."""
LATE: Mapping[str, str] = {
    **CLIENTS,
    "analyze": "analyze.analyze",
    "definitions": "definitions.definitions",
    "perf": "perf.perf",
    "store": "store.store",
}
"""All of them, with those that work without a broker."""


def load(name: str) -> click.Command:
    """Return the command of a name in `LATE`."""
    module, _, attribute = LATE[name].rpartition(".")
    command: click.Command = getattr(importlib.import_module(f"leveret.broker.cli.{module}"), attribute)
    return command

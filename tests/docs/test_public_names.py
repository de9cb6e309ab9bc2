"""Names that scripts use: commands, options, configuration keys, metrics and columns of the export."""

import json
import re
from pathlib import Path
from typing import Any

import click

from docs.generate.metrics import render
from leveret.broker.cli.main import main
from leveret.broker.config.keys import KEYS
from leveret.broker.config.rabbitmq import foreign_key

ROOT = Path(__file__).resolve().parents[2]
OF_0_1_0: dict[str, Any] = json.loads(Path(__file__).with_name("public_names_0.1.0.json").read_text())
"""The names of version 0.1.0, as its reference pages and its command line list them."""


def options(command: click.Command, words: tuple[str, ...] = ()) -> dict[str, set[str]]:
    own = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    found = {" ".join(words): own}
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (below := command.get_command(context, name)) is not None:
                found |= options(below, (*words, name))
    return found


def test_commands_and_options_of_0_1_0_are_there():
    """Each command of version 0.1.0 and each of its options still exists."""
    now = options(main)

    missing = {
        words: sorted(set(had) - now.get(words, set()))
        for words, had in OF_0_1_0["commands"].items()
        if words not in now or not now[words] >= set(had)
    }
    assert missing == {}


def test_configuration_keys_of_0_1_0_are_there():
    """Each documented key of version 0.1.0 is still a key, or one of RabbitMQ's that only gets a warning."""
    missing = set(OF_0_1_0["keys"]) - {key.name for key in KEYS}
    assert [] == [name for name in sorted(missing) if (row := foreign_key(name)) is None or row.refused]


def test_metrics_of_0_1_0_are_there():
    """Each documented metric of version 0.1.0 is still documented, which implies that it is exported."""
    assert [] == sorted(
        set(OF_0_1_0["metrics"]) - set(re.findall(r"^\| `([a-z_0-9]+)` \|", render(), re.MULTILINE))
    )


def test_exported_columns_of_0_1_0_are_there():
    """Each column of the exported tables of version 0.1.0 still has its name and type."""
    tables = json.loads((ROOT / "analytics" / "tables.json").read_text())
    now = {name: {f"{each['name']}: {each['type']}" for each in columns} for name, columns in tables.items()}

    missing = {
        name: sorted(set(had) - now.get(name, set()))
        for name, had in OF_0_1_0["columns"].items()
        if not now.get(name, set()) >= set(had)
    }
    assert missing == {}

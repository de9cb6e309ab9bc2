"""Writes docs/configuration.md from the table of keys."""

from collections.abc import Iterator

from broker.config_foreign import FOREIGN
from broker.config_keys import KEYS, Key
from broker.config_sources import RABBITMQ_VARIABLES

_KINDS = {
    "bool": "`true` or `false`",
    "int": "whole number",
    "limit": "whole number or `infinity`",
    "duration": "duration",
    "seconds": "duration, whole seconds",
    "size": "size",
    "amount": "amount",
    "string": "text",
    "path": "path",
    "listener": "address",
    "moment": "time",
}

_HEAD = """\
# Configuration

This page is generated from the table of keys (`make docs`); edit `broker/config_keys.py`, not this file.

Settings come from four places; an earlier one wins:

1. flags: `leveret serve --set KEY=VALUE` (any number of them), `--data-dir DIR`, `--pid-file FILE`,
   `--log-file FILE`;
2. the environment: `LEVERET_` and the key in capitals, dots as underscores (`confirm.mode` is
   `LEVERET_CONFIRM_MODE`), and RabbitMQ's variables below;
3. files: `--config FILE`, any number of them, later ones win; a directory stands for its `*.conf`, and a
   pattern (`'/etc/rabbitmq/conf.d/*.conf'`; also `?`, `[0-9]`, `{this,that}`) for what it matches, in
   lexical order;
4. the defaults.

A file has RabbitMQ's syntax: `key = value` lines; `#` starts a comment; a value in single quotes is taken
as it is; `$(NAME)` is replaced by that environment variable. In a key, `$name` below stands for a word of
your choice.

A **duration** is a number with a unit: `200ms`, `5s`, `1m`, `1h`, `1d`; a bare number is in the unit the
key names. A **size** is a number of bytes, or takes a unit: `64KiB`, `64kB`, `128MB`, `1GiB`; all units
are powers of 1024, as RabbitMQ reads them for these keys. An **amount** is the same for the limits of memory
and disk, where RabbitMQ reads `kB`, `MB` and `GB` as powers of 1000 and `K`, `KiB` and so on as powers of
1024. An **address** is `port` (all interfaces),
`host:port` or `[ipv6]:port`.

An unknown key stops the start with exit code 78 and the name of the closest known key, all problems at
once. `leveret config` prints what results.

RabbitMQ's keys that have no effect here are listed below. One that protects something (it encrypts, checks
who somebody is, or limits what they may use) stops the start with exit code 78, because whoever wrote it
counts on it; any other gets a warning, so that an existing `rabbitmq.conf` loads.
"""


def render() -> str:
    """The whole page, Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _HEAD
    yield "## Keys"
    yield ""
    yield "Keys marked * are Leveret's own; the others are RabbitMQ's, with its meaning."
    yield ""
    yield "| Key | Value | Default | What it does |"
    yield "|---|---|---|---|"
    for key in KEYS:
        mark = " *" if key.origin == "Leveret" else ""
        default = f"`{key.default}`" if key.default else ""
        yield f"| `{key.name}`{mark} | {_value(key)} | {default} | {key.doc} |"
    yield ""
    yield "## Environment variables of RabbitMQ's"
    yield ""
    yield "| Variable | Key |"
    yield "|---|---|"
    yield "| `LEVERET_CONFIG_FILE` | a file, read where there is no `--config` |"
    yield "| `RABBITMQ_CONFIG_FILE` | a file, read where there is neither; the ending may be left out |"
    yield "| `RABBITMQ_CONFIG_FILES` | a directory or a pattern, read after that file |"
    yield "| `RABBITMQ_NODE_PORT`, `RABBITMQ_NODE_IP_ADDRESS` | `listeners.tcp.default` |"
    for variable, name in RABBITMQ_VARIABLES.items():
        yield f"| `{variable}` | `{name}` |"
    yield "| `RABBITMQ_LOGS` | `-`: `log.console = true`; otherwise `log.file` |"
    yield ""
    yield "## Keys of RabbitMQ's without effect"
    yield ""
    yield "`*` stands for anything. The values of the third column ask for nothing, and are taken without a word."
    yield ""
    yield "| Keys | Set, this is | Unless | Because |"
    yield "|---|---|---|---|"
    for row in FOREIGN:
        keys, nothing = (", ".join(f"`{each}`" for each in names) for names in (row.keys, row.nothing))
        yield f"| {keys} | {'an error' if row.refused else 'a warning'} | {nothing} | {row.why} |"


def _value(key: Key) -> str:
    if key.kind == "fraction":
        return f"number from 0 to {key.high or 1}"
    kind = ", ".join(f"`{choice}`" for choice in key.choices) if key.kind == "choice" else _KINDS[key.kind]
    bounds = "" if key.high is None and not key.low else _bounds(key)
    unit = f", bare number: {key.unit}" if key.unit and key.unit != "bytes" else ""
    return kind + bounds + unit


def _bounds(key: Key) -> str:
    if key.high is None:
        return f" >= {key.low}"
    return f" {key.low or 0} to {key.high}"

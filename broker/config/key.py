"""A key of the configuration, and a topic of keys (`broker.config.keys`)."""

from typing import Literal

import msgspec

Kind = Literal[
    "backend",
    "user",
    "address",
    "bool",
    "int",
    "limit",
    "duration",
    "seconds",
    "size",
    "amount",
    "string",
    "choice",
    "listener",
    "path",
    "file",
    "fraction",
    "moment",
]


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the configuration.

    ``kind`` names the parser in ``broker.config.values``. ``attribute`` is the path of the value inside ``Config``;
    empty for keys that ``broker.config.config`` combines itself. ``unit`` is the unit of a bare number. ``low`` and
    ``high`` are inclusive. ``origin`` is ``RabbitMQ`` for keys that RabbitMQ has too (name, meaning and, unless the
    text says otherwise, default are the same) and ``Leveret`` for our own.
    """

    name: str
    kind: Kind
    default: str
    doc: str
    attribute: str = ""
    unit: str = ""
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()
    secret: bool = False
    origin: Literal["RabbitMQ", "Leveret"] = "RabbitMQ"


class Topic(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one section of docs/configuration.md; ``intro`` is Markdown, or empty."""

    title: str
    intro: str = ""
    keys: tuple[Key, ...]

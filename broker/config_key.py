"""A key of the configuration, as the field with its value states it: ``Annotated[int, Key("backlog", low=1)] = 128``.

`broker.config.keys` reads these statements: they are the source of parsing, checks, `leveret config` and
docs/configuration.md. A key belongs to the class of settings whose user needs the value.
"""

from typing import Literal

import msgspec

Kind = Literal[
    "", "address", "amount", "backend", "bool", "brokers", "choice", "duration", "file", "fraction", "int", "limit",
    "listener", "moment", "path", "seconds", "size", "string", "user",
]  # fmt: skip


class Key(msgspec.Struct, frozen=True):
    """One key of the configuration.

    A field with one key has the key's value, and its default is the key's. A field with several keys, or with those of
    a name that the administrator chooses (``$name``: a listener, a user, a virtual host), is combined from their values
    in `broker.config`.
    """

    name: str  # name in a file. Below a `Prefix` a name that begins with a dot is the end of it
    # parser in `broker.config.values`; by default that of the field's type (its choices, too)
    kind: Kind = ""
    default: str | None = None  # the default as it is written; by default that of the field
    doc: str = ""  # what the key does, Markdown
    unit: Literal["", "ms", "s"] = ""  # unit of a bare number, of a duration
    # low, high: bounds, inclusive
    low: int | None = None
    high: int | None = None
    choices: tuple[str, ...] = ()  # the values of a choice
    secret: bool = False  # whether its values are never shown
    # whether only Leveret has it. Otherwise name, meaning and, unless the text says otherwise, default are RabbitMQ's
    own: bool = False
    also: tuple[str, ...] = ()  # other names of it
    in_4: str = ""  # its value, as it is written, that follows from the profile 4.3; '' for the default
    # path of the value inside of `Config`, which `broker.config.keys` adds; '' if it is combined
    attribute: str = ""


class Prefix(msgspec.Struct, frozen=True):
    """Beginning of the names of keys where a class of settings is used in several places."""

    name: str  # the beginning, without the dot
    words: tuple[tuple[str, str], ...] = ()  # words that texts of these keys share, and what they are here


class Topic(msgspec.Struct, frozen=True):
    """A section of docs/configuration.md: the keys of the fields below it."""

    title: str
    keys: tuple[Key, ...] = ()

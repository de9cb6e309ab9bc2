"""Texts about the keys: the pages of `leveret config`."""

import difflib
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from leveret.broker.config.config import environment_name
from leveret.broker.config.keys import KEYS, TOPICS, Key, KeyTable
from leveret.broker.config.rabbitmq import FOREIGN, foreign_key
from leveret.broker.config.values import Setting

MOST_USED: Final[Mapping[str, str]] = {
    "listeners.tcp.$name": "address and port for AMQP clients",
    "default_user": "name of the first user",
    "default_pass": "password of the first user",
    "loopback_users.$name": "true: logs in from this host only",
    "load_definitions": "users, queues, policies to import",
    "data_dir": "directory of all data",
    "node_name": "name of this broker",
    "heartbeat": "heartbeat interval; 0 for none",
    "channel_max": "most channels of a connection",
    "connection_max": "most connections",
    "consumer_timeout": "time limit of an ack; 0 for none",
    "max_message_size": "largest message body",
    "vm_memory_high_watermark.relative": "memory at which publishers wait",
    "disk_free_limit.absolute": "free disk at which publishers wait",
    "confirm.mode": "when a publish is confirmed",
    "management.tcp.port": "port of the management API",
    "management.tcp.ip": "address of the management API",
    "prometheus.tcp.port": "port for metrics, health checks",
    "prometheus.tcp.ip": "address for metrics, health checks",
    "log.console.level": "lowest severity on the console",
    "log.file": "log file; false for none",
}
"""Keys that most configurations set, the first of them first, each with its meaning in a few words."""

MASK: Final = "***"
NEAR: Final = 3  # names that are suggested for a key that does not exist
_SIMILAR: Final = 0.5
_VERY_SIMILAR: Final = 0.8
_SETTING_CELLS: Final = 43
_LEAST_MEANING: Final = 24
_INDENT: Final = "  "
_LABEL_CELLS: Final = 12
_LINK_IN_PARENTHESES: Final = re.compile(r" \(\[[^]]*\]\([^)]*\)\)")
_LINK: Final = re.compile(r"\[([^]]*)\]\([^)]*\)")
_SENTENCE_END: Final = re.compile(r"(?<=[\w)`])\. ")


def plain(text: str) -> str:
    """Return a text of the reference without its links."""
    return _LINK.sub(r"\1", _LINK_IN_PARENTHESES.sub("", text))


def meaning(key: Key) -> str:
    """Return the first sentence about a key."""
    return _SENTENCE_END.split(plain(key.doc), maxsplit=1)[0].rstrip(".")


_WITHOUT = re.compile(r"(?P<name>.+?) is not supported(?:: (?P<why>.*))?; ignored", re.DOTALL)
"""A warning about a key without effect."""


class Overview:
    """The pages of `leveret config`: the keys with their values, RabbitMQ's keys without effect, and one key at length.

    `obeyed` are settings with a meaning here, each key once; `warnings` are about those that have no effect. `width`:
    characters of a line; None for any number.
    """

    def __init__(
        self, obeyed: Sequence[Setting] = (), warnings: Sequence[str] = (), width: int | None = None
    ) -> None:
        self._table = KeyTable()
        self._warnings = warnings
        self._width = width
        self._obeyed = obeyed

    # -- all keys -------------------------------------------------------------------------------------------------

    def given(self) -> Iterator[str]:
        """Yield the settings that are obeyed, those without effect by the reason, and other warnings."""
        yield from self.obeyed()
        without: dict[str, list[str]] = {}
        for text in self._warnings:
            found = _WITHOUT.fullmatch(text)
            why = (found["why"] or "it is not known") if found else ""
            without.setdefault(why, []).append(found["name"] if found else text)
        if warnings := without.pop("", None):
            yield "Warnings"
            for text in warnings:
                yield from self._wrapped(text, _INDENT)
        if without:
            yield "Without effect"
        for why, names in without.items():
            yield from self._wrapped(f"{plain(why)}:", _INDENT)
            yield from (f"{2 * _INDENT}{each}" for each in names)

    def verdict(self) -> str:
        """Return the line below a configuration without problems."""
        return f"{len(self._obeyed)} set, {len(self._warnings)} without effect or with a warning: a broker starts"

    def lines(self) -> Iterator[str]:
        """Yield the whole page: what is set, the keys that are used most, the others by topic, the ignored ones."""
        yield from self.given()
        if self._warnings:
            yield ""
        yield "Most used (key = default); leveret config KEY explains one"
        rows = {key.name: key for key in KEYS}
        for name, words in MOST_USED.items():
            yield self._row(rows[name], words)
        for topic in TOPICS:
            keys = [key for key in topic.keys if key.name not in MOST_USED]
            if keys:
                yield ""
                yield topic.title
                yield from (self._row(key, meaning(key)) for key in keys)
        yield ""
        yield from self.ignored()
        yield ""
        yield from self._wrapped("* stands beside a key that is set; $name is a name of your choice.", "")
        yield from self._wrapped("A file has one `key = value` per line; --set KEY=VALUE does the same.", "")

    def ignored(self) -> Iterator[str]:
        """Yield the keys of RabbitMQ that have no effect, by the reason."""
        for is_refused, title in (
            (False, "Keys of RabbitMQ that are accepted and have no effect (a warning in the log)"),
            (True, "Keys of RabbitMQ that stop the start: they protect something, and have no effect"),
        ):
            if is_refused:
                yield ""
            yield from self._wrapped(title, "")
            keys: dict[str, list[str]] = {}
            for row in FOREIGN:
                if row.refused is is_refused:
                    keys.setdefault(row.why, []).extend(row.keys)
            for why, names in keys.items():
                yield from self._wrapped(f"{plain(why)}:", _INDENT)
                yield from self._wrapped(", ".join(names), 3 * _INDENT)

    def obeyed(self) -> Iterator[str]:
        """Yield the settings that are obeyed, with their origin; none, if there are none."""
        if not self._obeyed:
            return
        yield "Set (key = value)"
        cells = max(len(self._setting(each)) for each in self._obeyed)
        for each in self._obeyed:
            yield f"{_INDENT}{self._setting(each):<{cells}}  {each.origin}"
        yield ""

    def _setting(self, setting: Setting) -> str:
        found = self._table.find(setting.key)
        value = MASK if found is not None and found[0].secret else setting.value
        return f"{setting.key} = {value}"

    def _row(self, key: Key, words: str) -> str:
        """Return the line of a key; its meaning is cut where the line ends."""
        mark = "* " if self._settings_of(key) else _INDENT
        left = f"{mark}{key.name} = {key.default}".rstrip()
        line = f"{left:<{_SETTING_CELLS}}  "
        if self._width is None:
            return line + words
        space = self._width - len(line)
        if space < _LEAST_MEANING:
            return left
        return line + (words if len(words) <= space else f"{words[: space - 1]}…")

    def _settings_of(self, key: Key) -> list[Setting]:
        return [each for each in self._obeyed if (found := self._table.find(each.key)) and found[0] is key]

    def _wrapped(self, text: str, indent: str) -> list[str]:
        return textwrap.wrap(
            text,
            self._width or 100,
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )

    # -- one key --------------------------------------------------------------------------------------------------

    def explained(self, written: str) -> Iterator[str] | None:
        """Return the lines about one key, or about one that has no effect; None if there is no such key."""
        if (found := self._table.find(written)) is not None:
            return self._explained(found[0])
        row = foreign_key(written)
        if row is None:
            return None
        effect = "stops the start (exit code 78)" if row.refused else "is a warning in the log"
        text = f"{written} is a key of RabbitMQ without effect: {plain(row.why)}. Setting it {effect}"
        but = f"; {' or '.join(row.nothing)} is accepted silently" if row.nothing else ""
        lines = self._wrapped(f"{text}{but}.", "")
        if similar := difflib.get_close_matches(written, [key.name for key in KEYS], NEAR, _VERY_SIMILAR):
            lines += ["", f"Similar keys: {', '.join(similar)}"]
        return iter(lines)

    def near(self, written: str) -> list[str]:
        """Return the keys that may be meant by one that does not exist, the most likely first."""
        names = [key.name for key in KEYS]
        parts = [name for name in names if written.lower() in name]
        closest = self._table.closest(written)
        similar = difflib.get_close_matches(written, names, NEAR, _SIMILAR)
        return list(dict.fromkeys([*([closest] if closest else []), *similar, *parts]))[:NEAR]

    def _explained(self, key: Key) -> Iterator[str]:
        yield f"{key.name} = {key.default}".rstrip()
        yield ""
        yield from self._wrapped(plain(key.doc), _INDENT)
        yield ""
        topic = next(each for each in TOPICS if key in each.keys)
        yield self._field("Value", plain(value_text(key)))
        yield self._field("Default", key.default or "none")
        for setting in self._settings_of(key):
            yield self._field("Set", f"{self._setting(setting)}  ({setting.origin})")
        if "$name" not in key.name:
            yield self._field("Variable", environment_name(key.name))
        yield self._field("Known to", "Leveret only" if key.own else "RabbitMQ and Leveret")
        yield self._field("Topic", topic.title)

    @staticmethod
    def _field(label: str, text: str) -> str:
        return f"{_INDENT}{label:<{_LABEL_CELLS}}{text}"


# -- the values that a key takes --------------------------------------------------------------------------------------

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
    "file": "path or `false`",
    "listener": "address",
    "brokers": "addresses",
    "moment": "time",
    "backend": "backend",
    "user": "name or `none`",
    "address": "URL",
}


def value_text(key: Key) -> str:
    """Return the values that a key takes."""
    if key.kind == "fraction":
        return f"number from 0 to {key.high or 1}"
    kind = ", ".join(f"`{choice}`" for choice in key.choices) if key.kind == "choice" else _KINDS[key.kind]
    bounds = f" >= {key.low}" if key.low else ""
    if key.high is not None:
        bounds = f" {key.low or 0} to {key.high}"
    unit = f", bare number: {key.unit}" if key.unit else ""
    return kind + bounds + unit

"""The keys of the configuration, by topic, as the fields of `broker.config.sections.Config` state them.

A name may contain one ``$name``, a placeholder for a name that the administrator chooses (a listener, a user, a
virtual
host). RabbitMQ's keys that are not here are in `broker.config.rabbitmq`. A `Draft` has the values of the keys that
are set: settings are parsed one by one, by the rows of their keys.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from leveret.broker.auth.name_patterns import InvalidPatternError, Matcher, Patterns
from leveret.broker.config.rabbitmq import PROTECTS, foreign_key, judge
from leveret.broker.config.sections import Config
from leveret.broker.config.values import PARSERS, Setting
from leveret.broker.config_key import Key, Kind, Prefix, Topic

__all__ = ["KEYS", "TOPICS", "Key", "KeyTable", "Topic"]

_KINDS: Final[dict[Any, Kind]] = {bool: "bool", int: "int", str: "string"}
_NOTHING: Final = {"limit": "infinity", "file": "false", "user": "none"}
"""Words for no value in a file, by the kind of a key."""
_SIZES: Final = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"), (1, ""))
_TIMES: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s"), (1, "ms"))
_LEAST_SIZE: Final = 65536  # smaller sizes are shown in bytes


def _topics() -> Iterator[Topic]:
    found: list[tuple[Topic, list[Key]]] = []
    for each in _stated(Config, "", Prefix("")):
        if isinstance(each, Topic):
            found.append((each, []))
        else:
            found[-1][1].append(each)
    for topic, keys in found:
        yield msgspec.structs.replace(topic, keys=tuple(keys))


def _stated(section: type[msgspec.Struct], path: str, prefix: Prefix) -> Iterator[Topic | Key]:
    """Yield the topics and keys that a class of settings states; `path` is its place in `Config`, with a dot."""
    defaults = dict(zip(section.__struct_fields__[::-1], section.__struct_defaults__[::-1], strict=False))
    for field, annotation in section.__annotations__.items():
        if field not in section.__struct_fields__:
            yield getattr(section, field)
            continue
        form, *notes = get_args(annotation) if hasattr(annotation, "__metadata__") else (annotation,)
        keys = [each for each in notes if isinstance(each, Key)]
        inner = next((each for each in (form, *get_args(form)) if hasattr(each, "__struct_fields__")), None)
        if inner is not None and not keys:
            below = next((each for each in notes if isinstance(each, Prefix)), prefix)
            yield from _stated(inner, f"{path}{field}.", below)
        for key in keys:
            name = prefix.name + key.name if key.name.startswith(".") else key.name
            if not name.startswith(prefix.name):
                continue
            doc = key.doc
            for word, text in prefix.words:
                doc = doc.replace(word, text)
            is_whole = len(keys) == 1 and "$" not in name
            of_field = (path + field, form, defaults.get(field)) if is_whole else ("", str, None)
            made = _filled(key, name, doc, *of_field)
            yield made
            for other in key.also:
                text = f"Another name of `{name}`."
                yield msgspec.structs.replace(made, name=other, default="", doc=text, own=False)


def _filled(key: Key, name: str, doc: str, attribute: str, form: Any, value: Any) -> Key:
    options = tuple(each for each in get_args(form) if each is not type(None))
    is_choice = get_origin(form) is Literal
    base = options[0] if options and not is_choice else form
    kind = key.kind or ("choice" if is_choice else _KINDS.get(base, "path"))
    return msgspec.structs.replace(
        key,
        name=name,
        doc=doc,
        attribute=attribute,
        kind=kind,
        choices=key.choices or (options if kind == "choice" else ()),
        default=default_text(kind, value) if key.default is None else key.default,
        unit="s" if kind == "seconds" else key.unit,
    )


def default_text(kind: str, value: Any) -> str:
    """Return a value with a unit that is easy to read, as it may be written; '' if there is none."""
    if value is None or (kind == "user" and not value):
        return _NOTHING.get(kind, "")
    if isinstance(value, bool):
        return str(value).lower()
    if kind in {"duration", "seconds"}:
        return _with_unit(round(value * 1000), _TIMES)
    if kind == "size" and value >= _LEAST_SIZE:
        return _with_unit(value, _SIZES)
    return str(value)


def _with_unit(number: int, units: tuple[tuple[int, str], ...]) -> str:
    """Return a number in the largest unit of which it is a multiple, at least the double."""
    return next(
        (f"{number // size}{unit}" for size, unit in units if not number % size and number > size), "0"
    )


TOPICS: Final[tuple[Topic, ...]] = tuple(_topics())
KEYS: Final[tuple[Key, ...]] = tuple(key for topic in TOPICS for key in topic.keys)


class KeyTable:
    """Finds the row of the table that a written key refers to.

    Rows without ``$name`` take precedence over rows with it, so ``tcp_listen_options.backlog`` is itself; among the
    latter the first match wins.
    """

    def __init__(self, keys: tuple[Key, ...] = KEYS) -> None:
        self._exact = {key.name: key for key in keys if "$" not in key.name}
        self._families = [(key.name.split("$name"), key) for key in keys if "$" in key.name]

    def find(self, written: str) -> tuple[Key, str] | None:
        """Return the row for a written key and the value of its ``$name`` (empty without one), or None."""
        if (key := self._exact.get(written)) is not None:
            return key, ""
        for (before, after), key in self._families:
            name = written[len(before) : len(written) - len(after)]
            if name and written.startswith(before) and written.endswith(after):
                return key, name
        return None

    def closest(self, written: str) -> str | None:
        """Return the known key most similar to a written one, or None if none is similar."""
        import difflib  # noqa: PLC0415 - only needed to word an error

        words = written.split(".")
        names = list(self._exact)
        for _, key in self._families:
            parts = key.name.split(".")
            if len(parts) == len(words):  # the administrator's own part of the name is not the typo
                parts = [word if part == "$name" else part for part, word in zip(parts, words, strict=True)]
            names.append(".".join(parts))
        near = difflib.get_close_matches(written, names, n=1, cutoff=0.5)
        return near[0] if near else None


_KEY: Final = re.compile(r"[^\w.$-].*", re.ASCII | re.DOTALL)
_CLEARED: Final = frozenset({"listeners.tcp", "listeners.ssl", "loopback_users"})
"""Keys that clear the names below them that were set before."""


class Draft:
    """The values of the settings that are added."""

    def __init__(self, problems: list[str], warnings: list[str]) -> None:
        self._table = KeyTable()
        self.problems = problems  # a sentence for each thing that is wrong
        self.warnings = warnings  # a sentence for each thing that an operator should know
        self.values: dict[str, Any] = {}  # parsed values by their key's attribute, or by its name
        self.obeyed: set[str] = set()  # the keys whose last value is valid, as written
        self._families: dict[str, dict[str, Any]] = {}  # row with $name → name → parsed value

    def add(self, setting: Setting) -> None:
        """Add one setting; a later one for the same key wins."""
        found = self._table.find(setting.key)
        if found is None:
            self._not_found(setting)
            return
        key, name = found
        try:
            value = PARSERS[key.kind](setting.value, key)
        except ValueError as error:
            shown = "***" if key.secret else repr(setting.value)
            self.problems.append(f"{setting.origin}: {setting.key} = {shown} {error}")
            self.obeyed.discard(setting.key)
            return
        self.obeyed.add(setting.key)
        if name:
            self._families.setdefault(key.name, {})[name] = value
            return
        if key.name in _CLEARED:
            self._families.pop(f"{key.name}.$name", None)
        self.values[key.attribute or key.name] = value

    def _not_found(self, setting: Setting) -> None:
        foreign = foreign_key(setting.key)
        if foreign is not None:
            judge(foreign, f"{setting.origin}: {setting.key}", setting.value, self.problems, self.warnings)
            return
        if setting.erlang:
            text = f"{setting.origin}: {setting.erlang} is not supported"
            if PROTECTS.search(setting.key):
                self.problems.append(f"{text}. Remove it to run without it")
            else:
                self.warnings.append(f"{text}; ignored")
            return
        closest = self._table.closest(setting.key)
        hint = f"; did you mean {closest}?" if closest else ""
        # the rest of an unknown key may contain a password after a wrong separator
        self.problems.append(f"{setting.origin}: unknown key {_KEY.sub('...', setting.key)}{hint}")

    def section(self, path: str) -> dict[str, Any]:
        """Return the values that are set in a section, by attribute; those of `Config` itself for ''."""
        split = [(name.rpartition("."), value) for name, value in self.values.items() if name in _ATTRIBUTES]
        return {name: value for (outer, _, name), value in split if outer == path}

    def family(self, row: str) -> dict[str, Any]:
        """Return the values of a key with `$name` by that name."""
        return self._families.get(row, {})

    def listed(self, row: str) -> tuple[Any, ...]:
        """Return the values of a key with `$name` in the order of the names, which are numbers, each once."""
        family = self.family(row)
        return tuple(dict.fromkeys(family[name] for name in sorted(family, key=in_order)))

    def rows(self, prefix: str) -> dict[str, dict[str, Any]]:
        """Return the values of the keys `prefix.$name.field`, by the name and the field."""
        found: dict[str, dict[str, Any]] = {}
        beginning = f"{prefix}.$name."
        for key in KEYS:
            if key.name.startswith(beginning):
                for name, value in self.family(key.name).items():
                    found.setdefault(name, {})[key.name.removeprefix(beginning)] = value
        return found

    def compiled(self, key: str, pattern: str) -> Matcher | None:
        """Return the matcher of a key's pattern; an invalid one is a problem, and None is returned."""
        try:
            return Patterns(python=self.values.get("compatibility.python_patterns", False)).compile(pattern)
        except InvalidPatternError as error:
            self.problems.append(f"{key}: {error}")
            return None


_ATTRIBUTES: Final = frozenset(key.attribute for key in KEYS)


def in_order(name: str) -> tuple[int, str]:
    """Return the sort key for the names of a key: their numbers, or else their names."""
    return (int(name) if name.isdecimal() else 0, name)

"""A configuration in the making: settings are parsed one by one, by the rows of their keys."""

import re
from typing import Any, Final

from leveret.broker.auth.name_patterns import InvalidPatternError, Matcher, Patterns
from leveret.broker.config.foreign_keys import foreign_key
from leveret.broker.config.keys import KEYS, KeyTable
from leveret.broker.config.values import PARSERS, Setting

_KEY: Final = re.compile(r"[^\w.$-].*", re.ASCII | re.DOTALL)
_CLEARED: Final = frozenset({"listeners.tcp", "listeners.ssl", "loopback_users"})
"""Keys that clear the names below them that were set before."""


class Draft:
    """The values of the settings that are added.

    Attributes:
        values: parsed values by the attribute of their key, or by its name if it has none.
        problems: a sentence for each thing that is wrong.
        warnings: a sentence for each thing that an operator should know.

    """

    __slots__ = ("_families", "_table", "problems", "values", "warnings")

    def __init__(self, problems: list[str], warnings: list[str]) -> None:
        self._table = KeyTable()
        self.problems = problems
        self.warnings = warnings
        self.values: dict[str, Any] = {}
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
            return
        if name:
            self._families.setdefault(key.name, {})[name] = value
            return
        if key.name in _CLEARED:
            self._families.pop(f"{key.name}.$name", None)
        self.values[key.attribute or key.name] = value

    def _not_found(self, setting: Setting) -> None:
        foreign = foreign_key(setting.key)
        if foreign is not None:
            if setting.value not in foreign.nothing:
                text = f"{setting.origin}: {setting.key} is not supported: {foreign.why}"
                if foreign.refused:
                    self.problems.append(f"{text}. Remove the line to run without it")
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

"""Lookup of written keys in the table of keys."""

import re

from leveret.broker.config.keys import KEYS, Key


class KeyTable:
    """Finds the row of the table that a written key refers to.

    Rows without ``$name`` take precedence over rows with it, so ``tcp_listen_options.backlog`` is itself; among the
    latter the first match wins.
    """

    __slots__ = ("_exact", "_families")

    def __init__(self, keys: tuple[Key, ...] = KEYS) -> None:
        self._exact = {key.name: key for key in keys if "$" not in key.name}
        self._families = [
            (re.compile("(.+)".join(map(re.escape, key.name.split("$name")))), key)
            for key in keys
            if "$" in key.name
        ]

    def find(self, written: str) -> tuple[Key, str] | None:
        """Return the row for ``written`` and the value of its ``$name`` (empty without one), or None."""
        if (key := self._exact.get(written)) is not None:
            return key, ""
        for pattern, key in self._families:
            if (match := pattern.fullmatch(written)) is not None:
                return key, match[1]
        return None

    def closest(self, written: str) -> str | None:
        """Return the known key most similar to ``written``, or None if none is similar."""
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

"""Escapes in texts for a terminal, on which no character of a name or a message may have an effect."""

from typing import Any


def printable(value: Any) -> str:
    """Return a value as one line for a terminal."""
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in str(value)
    )


def printable_lines(text: str) -> str:
    """Return a text of several lines for a terminal."""
    return "\n".join(map(printable, text.split("\n")))


def writable(text: str) -> str:
    """Return a text that can be written as UTF-8, with an escape for each byte of an argument that is not."""
    return text.encode("utf-8", "backslashreplace").decode()

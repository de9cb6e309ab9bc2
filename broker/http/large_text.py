"""Bodies of messages as texts of JSON, made in pieces: nobody waits for a large one, and it is in memory once. Pure."""

import binascii
import codecs
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

import msgspec

STEP: Final = 48 * 1024
"""Octets that are encoded at once."""
Parts = Callable[[], Iterable[bytes | memoryview]]
"""Returns the octets of a body in parts, each time from the beginning."""


class LargeText:
    """A body as a text of JSON.

    Args:
        parts: the octets; UTF-8 if it is a text.
        is_base64: True to encode it as base64.

    """

    __slots__ = ("_is_base64", "_parts")

    def __init__(self, parts: Parts, *, is_base64: bool) -> None:
        self._parts = parts
        self._is_base64 = is_base64

    def pieces(self) -> Iterator[bytes]:
        """Yield the text as JSON has it, without quotes around it."""
        if not self._is_base64:
            decode = codecs.getincrementaldecoder("utf-8")().decode
            for piece in _divided(self._parts):
                yield msgspec.json.encode(decode(piece))[1:-1]
            return
        rest = b""
        for piece in _divided(self._parts):
            octets = rest + piece
            whole = len(octets) - len(octets) % 3
            rest = octets[whole:]
            yield binascii.b2a_base64(octets[:whole], newline=False)
        if rest:
            yield binascii.b2a_base64(rest, newline=False)


def text_of(
    parts: Parts, size: int, *, is_base64: bool
) -> Generator[None, None, tuple[str | LargeText, str]]:
    """Return a body as text and the name of its encoding, in steps.

    Args:
        parts: the octets.
        size: their number.
        is_base64: True for base64 in any case; otherwise only for what is not UTF-8.

    """
    if not is_base64 and not (yield from _is_utf8(parts)):
        is_base64 = True
    name = "base64" if is_base64 else "string"
    text = LargeText(parts, is_base64=is_base64)
    if size > STEP:
        return text, name
    octets = b"".join(parts())
    return (binascii.b2a_base64(octets, newline=False) if is_base64 else octets).decode(), name


def _is_utf8(parts: Parts) -> Generator[None, None, bool]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for piece in _divided(parts):
            decode(piece)
            yield None
        decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _divided(parts: Parts) -> Iterator[bytes]:
    for part in parts():
        for at in range(0, len(part), STEP):
            yield bytes(part[at : at + STEP])

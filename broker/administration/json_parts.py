"""Division of large JSON documents in steps, because a decoder does a document at once, which takes long.

A document is only divided here: its parts are decoded by msgspec, which finds what is wrong within them.
"""

import re
from collections.abc import Generator, Iterator
from typing import Any, Final, NamedTuple

import msgspec

WINDOW: Final = 64 * 1024  # octets that are looked at, or decoded, in one step
TOKENS: Final = 1000  # brackets and commas in one step

# up to the next bracket, or also comma, outside of strings; a string that does not end in the window is not entered
_TO_BRACKET = re.compile(rb'(?:[^"\[\]{}]+|"(?:[^"\\]+|\\.)*+")*+', re.DOTALL)
_TO_COMMA = re.compile(rb'(?:[^"\[\]{},]+|"(?:[^"\\]+|\\.)*+")*+', re.DOTALL)
# the inside of a string; an escape or a pair of surrogates is never divided
_INSIDE = re.compile(rb'(?:[^"\\]+|\\u[dD][89abAB]..\\u....|\\u(?![dD][89abAB])....|\\[^u])*+', re.DOTALL)
_KEY = re.compile(rb'\s*("(?:[^"\\]+|\\.)*+")\s*:', re.DOTALL)
_SPACE = b" \t\n\r"
_MARK = b"\xef\xbb\xbf"  # the byte order mark that some editors put before a text in UTF-8
_STARTS = frozenset(b"[{")
_QUOTE, _COMMA = b'",'
_CONTINUATION = 0x80, 0xC0  # octets that continue a character in UTF-8: from the first to before the second


class NotDivisibleError(ValueError):
    """A document is not JSON, or has a part that is too large to be decoded in one step."""


class Part(NamedTuple):
    """A part of a document: its first octet, and the one behind it."""

    start: int
    stop: int


def whole(octets: bytes, part: Part | None = None) -> Part:
    """Return a part, or the document, without space around it; of more space than a window some is left.

    A byte order mark before the document is left out, too.
    """
    start, stop = part or Part(len(_MARK) if octets.startswith(_MARK) else 0, len(octets))
    before = octets[start : min(start + WINDOW, stop)]
    start += len(before) - len(before.lstrip(_SPACE))
    after = octets[max(start, stop - WINDOW) : stop]
    return Part(start, stop - len(after) + len(after.rstrip(_SPACE)))


def members(octets: bytes, part: Part) -> Iterator[Part | None]:
    """Yield the members of an object or array, which is between its commas; and None between two steps.

    Raises NotDivisibleError if its brackets and strings do not match.
    """
    start, stop = part
    at = first = start + 1
    last = stop - 1
    depth = tokens = count = 0
    pause = at + WINDOW
    while at < last:
        tokens += 1
        window = min(at + WINDOW, last)
        match = (_TO_BRACKET if depth else _TO_COMMA).match(octets, at, window)
        end = match.end() if match else at
        if end >= pause or tokens % TOKENS == 0:
            yield None
            pause = end + WINDOW
        at = end
        if at >= window:
            continue
        octet = octets[at]
        if octet == _QUOTE:
            at = yield from _end_of_string(octets, at, last)
            continue
        at += 1
        if octet == _COMMA:
            yield Part(first, at - 1)
            first = at
            count += 1
            continue
        depth += 1 if octet in _STARTS else -1
        if depth < 0:
            break
    if depth:
        raise NotDivisibleError("the brackets do not match")
    if count or last - first > WINDOW or octets[first:last].strip(_SPACE):
        yield Part(first, last)


def _end_of_string(octets: bytes, at: int, last: int) -> Generator[None, None, int]:
    """Return the place behind a string, in steps."""
    at += 1
    while True:
        match = _INSIDE.match(octets, at, min(at + WINDOW, last))
        end = match.end() if match else at
        if end < last and octets[end] == _QUOTE:
            return end + 1
        if end == at:
            raise NotDivisibleError("a string does not end")
        at = end
        yield


def key_of(octets: bytes, part: Part) -> tuple[str, Part]:
    """Return the key of a member of an object, and its value; raises NotDivisibleError for none, or one too long."""
    match = _KEY.match(octets, part.start, min(part.start + WINDOW, part.stop))
    if match is None:
        raise NotDivisibleError("a member of an object without a key")
    return _decoded(match[1]), Part(match.end(), part.stop)


def value_of(octets: bytes, part: Part) -> Generator[None, None, Any]:
    """Decode a value, a long text in steps; raises NotDivisibleError for what is not JSON, or large and no text."""
    start, stop = part
    if stop - start <= WINDOW:
        return _decoded(octets[start:stop])
    start, stop = whole(octets, part)
    if octets[start : start + 1] != b'"':
        raise NotDivisibleError(f"a value of {stop - start} bytes that is no text")
    texts: list[str] = []
    at, last = start + 1, stop - 1
    while at < last:
        match = _INSIDE.match(octets, at, min(at + WINDOW, last))
        end = match.end() if match else at
        while at < end < last and _CONTINUATION[0] <= octets[end] < _CONTINUATION[1]:
            end -= 1
        if end == at:
            raise NotDivisibleError("an invalid text")
        text = _decoded(b'"%s"' % octets[at:end])
        texts.append(text)
        at = end
        yield
    if octets[last] != _QUOTE:
        raise NotDivisibleError("a text does not end")
    return "".join(texts)


def object_of(octets: bytes) -> Generator[None, None, Any]:
    """Decode a document, one that is large in steps: then it must be an object whose large values are texts.

    Raises NotDivisibleError: it is not JSON, or another large document.
    """
    if len(octets) <= WINDOW:
        return _decoded(octets)
    outer = whole(octets)
    if octets[outer.start : outer.start + 1] != b"{" or octets[outer.stop - 1 : outer.stop] != b"}":
        raise NotDivisibleError("a large document that is no object")
    found: dict[str, Any] = {}
    for part in members(octets, outer):
        if part is not None:
            key, value = key_of(octets, part)
            found[key] = yield from value_of(octets, value)
        yield
    return found


def unmarked(octets: bytes) -> bytes:
    """Return a document without a byte order mark before it."""
    return octets.removeprefix(_MARK)


def _decoded(octets: bytes) -> Any:
    try:
        return msgspec.json.decode(unmarked(octets))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NotDivisibleError(str(error)) from None

"""Erlang's portable hash of a term (`erlang:phash2`), by which RabbitMQ names bindings that have arguments.

The hash is the same in all versions of Erlang: the words of a term are mixed, one after the other, by Bob Jenkins's
function of 1996, each kind of term with a multiple of the golden ratio of its own. Only the terms that arguments have
are known here.
"""

import struct
from typing import Any

_WORD = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_SMALL, _LIST_END, _ATOM, _STRING, _TUPLE, _NEGATIVE, _BIG, _FLOAT, _BINARY = (
    _GOLDEN * factor & _WORD for factor in (1, 2, 3, 4, 9, 10, 11, 12, 13)
)
_EMPTY_LIST = 3468870702
_SHIFTS = ((13, 8, 13), (12, 16, 5), (3, 10, 15))
_SMALL_LIMIT = 1 << 27
_BLOCK = 12
_OCTET = 256


class Atom(str):
    """An atom of Erlang; a plain text is no term."""

    __slots__ = ()


def term_hash(term: Any) -> int:
    """Return the hash of a term, 0 to 2**32 - 1.

    Args:
        term: lists, tuples, bytes, whole numbers, floats and atoms.

    """
    total = 0
    waiting = [term]
    while waiting:
        term = waiting.pop()
        match term:
            case Atom():
                value = _atom_hash(term.encode("latin-1", "replace"))
                total = _mixed(total, value, 0, _ATOM) if total else value
            case bool():
                waiting.append(Atom("true" if term else "false"))
            case int():
                total = _number(total, term)
            case float():
                low, high = struct.unpack("<II", struct.pack("<d", term or 0.0))
                total = _mixed(total, high, low, _FLOAT)
            case bytes():
                start = _BINARY + total & _WORD
                total = _block(term, start) if term else start
            case tuple():
                total = _mixed(total, len(term), 0, _TUPLE)
                waiting.extend(reversed(term))
            case []:
                total = _mixed(total, 2, 0, _LIST_END) if total else _EMPTY_LIST
            case list():
                total = _list(total, term, waiting)
            case _:
                raise TypeError(term)
    return total


def _list(total: int, items: list[Any], waiting: list[Any]) -> int:
    """Mix the octets that a list begins with; its next item and the rest of it wait."""
    at = 0
    word = 0
    while at < len(items) and type(items[at]) is int and 0 <= items[at] < _OCTET:
        word = (word << 8 | items[at]) & _WORD
        at += 1
        if not at % 4:
            total = _mixed(total, word, 0, _STRING)
            word = 0
    if at % 4:
        total = _mixed(total, word, 0, _STRING)
    if at == len(items):
        waiting.append([])
    else:
        waiting.append(items[at + 1 :])
        waiting.append(items[at])
    return total


def _number(total: int, number: int) -> int:
    if -_SMALL_LIMIT <= number < _SMALL_LIMIT:
        if number < 0:
            total = _mixed(total, -number, 0, _SMALL)
        return _mixed(total, number, 0, _SMALL)
    kind = _NEGATIVE if number < 0 else _BIG
    rest = abs(number)
    while rest:
        total = _mixed(total, rest & _WORD, rest >> 32 & _WORD, kind)
        rest >>= 64
    return total


def _mixed(total: int, one: int, other: int, kind: int) -> int:
    return _mix(kind + one & _WORD, kind + other & _WORD, total)[2]


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for first, second, third in _SHIFTS:
        a = ((a - b - c) & _WORD) ^ c >> first
        b = ((b - c - a) ^ a << second) & _WORD
        c = ((c - a - b) & _WORD) ^ b >> third
    return a, b, c


def _block(octets: bytes, start: int) -> int:
    """Hash octets: blocks of three words, the last one with the length in its first octet."""
    a = b = _GOLDEN
    c = start
    whole = len(octets) // _BLOCK * _BLOCK
    for at in range(0, whole, _BLOCK):
        x, y, z = struct.unpack_from("<III", octets, at)
        a, b, c = _mix(a + x & _WORD, b + y & _WORD, c + z & _WORD)
    rest = octets[whole:].ljust(_BLOCK, b"\0")
    x, y, z = struct.unpack("<III", rest[:8] + b"\0" + rest[8:11])
    c = c + len(octets) & _WORD
    return _mix(a + x & _WORD, b + y & _WORD, c + z & _WORD)[2]


def _atom_hash(octets: bytes) -> int:
    value = 0
    for octet in octets:
        value = (value << 4) + octet
        high = value & 0xF0000000
        value = (value ^ high >> 24 ^ high) & _WORD
    return value

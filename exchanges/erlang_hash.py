"""Erlang's `erlang:phash2` and `rand` (exs1024), by which RabbitMQ names bindings, and exchange types choose a queue.

The values must be Erlang's: a key that RabbitMQ sends to a queue goes to the same one here, and back. Both are defined
by published algorithms: the words of a term are mixed, one after the other, by Bob Jenkins's function of 1996
(lookup2), each kind of term with a multiple of the golden ratio of its own; xorshift1024* has a seed of xorshift64*.
"""

import struct
from collections.abc import Iterator, Sequence
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
_64 = 0xFFFFFFFFFFFFFFFF
_RANGE = (1 << 27) - 1


class Atom(str):
    """An atom of Erlang, equal to the string with the same text; a plain string is no term."""

    __slots__ = ()


def phash2(term: str | float | Sequence[str] | None) -> int:
    """Return the hash of a binary (as text), a float, a list of binaries, or an atom: true, false, undefined (None)."""
    if isinstance(term, str):
        return _block(octets(term), _BINARY) & _RANGE
    if term is None:
        term = Atom("undefined")
    elif isinstance(term, Sequence):
        return term_hash(list(map(octets, term))) & _RANGE
    elif not isinstance(term, bool | float):
        raise TypeError(term)
    return term_hash(term) & _RANGE


def octets(text: str) -> bytes:
    """Return the binary that a text of AMQP is."""
    return text.encode("utf-8", "surrogateescape")


def jump(key: int, buckets: int) -> int:
    """Return the bucket of a key among `buckets`, at least one: jump consistent hash (Lamping and Veach).

    Of the keys only those move, when a bucket is added at the end, that go to the new one.
    """
    bucket, following = 0, 0
    for fraction in _fractions(key):
        bucket = following
        if not fraction:
            break
        following = int((bucket + 1) / fraction)
        if following >= buckets:
            break
    return bucket


def term_hash(term: Any) -> int:
    """Return the hash (0 to 2**32 - 1) of a term of lists, tuples, bytes, whole numbers, floats and atoms."""
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
                total = _block(term, _BINARY + total & _WORD)
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


def _block(binary: bytes, start: int) -> int:
    """Hash a binary: blocks of three words, the last one with the length in its first octet."""
    if not binary:
        return start
    a, b, c = _GOLDEN, _GOLDEN, start
    whole = len(binary) // _BLOCK * _BLOCK
    for at in range(0, whole, _BLOCK):
        x, y, z = struct.unpack_from("<III", binary, at)
        a, b, c = _mix(a + x & _WORD, b + y & _WORD, c + z & _WORD)
    rest = binary[whole:].ljust(_BLOCK, b"\0")
    x, y, z = struct.unpack("<III", rest[:8] + b"\0" + rest[8:11])
    c = c + len(binary) & _WORD
    return _mix(a + x & _WORD, b + y & _WORD, c + z & _WORD)[2]


def _atom_hash(binary: bytes) -> int:
    value = 0
    for octet in binary:
        value = (value << 4) + octet
        high = value & 0xF0000000
        value = (value ^ high >> 24 ^ high) & _WORD
    return value


def _fractions(key: int) -> Iterator[float]:
    """Yield Erlang's random numbers from 0 to 1 after `rand:seed_s(exs1024, {Key, Key, Key})`."""
    low, middle, high = (((key & 0x1FFFFF) + 1) * prime & 0x1FFFFF for prime in (2097143, 2097133, 2097131))
    seed = high << 43 | middle << 22 | low << 1 | 1
    state: list[int] = []
    for _ in range(16):
        seed ^= seed >> 12
        seed ^= seed << 25 & _64
        seed ^= seed >> 27
        state.append(seed * 2685821657736338717 & _64)
    state.reverse()
    at = 0
    while True:
        first = state[at]
        at = (at + 1) % 16
        second = state[at]
        second ^= second << 31 & _64
        state[at] = second = second ^ (second >> 11) ^ first ^ (first >> 30)
        yield (second * 1181783497276652981 & _64) / (1 << 64)

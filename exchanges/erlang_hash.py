"""Erlang's `erlang:phash2/1` and `rand` (exs1024), with which RabbitMQ's exchange types choose a queue by a hash.

The values must be Erlang's: a key that RabbitMQ sends to a queue goes to the same one here, and back. Both are defined
by published algorithms: the block hash of Bob Jenkins (lookup2), and xorshift1024* with a seed of xorshift64*.
"""

import struct
from collections.abc import Iterator, Sequence

_32 = 0xFFFFFFFF
_64 = 0xFFFFFFFFFFFFFFFF
_RANGE = (1 << 27) - 1
_GOLDEN = 0x9E3779B9
_LIST, _FLOAT, _BINARY = ((_GOLDEN * factor) & _32 for factor in (2, 12, 13))
"""Constants that are mixed into the hash of a term of this type."""
_NIL = 2
_ATOMS = {True: 506293, False: 7111573, None: 45914356}
_WORDS = struct.Struct("<III")


def phash2(term: str | float | Sequence[str] | None) -> int:
    """Return the hash of a binary (as text), a float, a list of binaries, or an atom: true, false, undefined (None)."""
    if isinstance(term, str):
        return _binary(term, 0) & _RANGE
    if term is None or isinstance(term, bool):
        return _ATOMS[term]
    if isinstance(term, float):
        low, high = struct.unpack("<II", struct.pack("<d", term + 0.0))  # no negative zero
        return _mixed(_FLOAT + high, _FLOAT + low, 0)[2] & _RANGE
    if isinstance(term, Sequence):
        return _list(term) & _RANGE
    raise TypeError(term)


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


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    for first, second, third in ((13, 8, 13), (12, 16, 5), (3, 10, 15)):
        a = ((a - b - c) & _32) ^ (c >> first)
        b = ((b - c - a) & _32) ^ ((a << second) & _32)
        c = ((c - a - b) & _32) ^ (b >> third)
    return a, b, c


def _binary(text: str, before: int) -> int:
    """Return the hash of a binary after the hash of what precedes it in a list."""
    octets = text.encode("utf-8", "surrogateescape")
    a = b = _GOLDEN
    c = (_BINARY + before) & _32
    if not octets:
        return c
    size = len(octets)
    tail = octets[size - size % 12 :]
    rest = (
        tail[:8].ljust(8, b"\0") + b"\0" + tail[8:].ljust(3, b"\0")
    )  # the size has an octet of the last word
    for x, y, z in _WORDS.iter_unpack(octets[: size - size % 12]):
        a, b, c = _mixed((a + x) & _32, (b + y) & _32, (c + z) & _32)
    x, y, z = _WORDS.unpack(rest)
    return _mixed((a + x) & _32, (b + y) & _32, (c + z + size) & _32)[2]


def _list(binaries: Sequence[str]) -> int:
    found = 0
    for each in binaries:
        found = _binary(each, found)
    return _mixed((_LIST + _NIL) & _32, _LIST, found)[2]


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

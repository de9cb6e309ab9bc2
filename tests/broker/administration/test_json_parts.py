"""Division of JSON: in steps as at once, whatever the document."""

import contextlib
import json
import time
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

import msgspec
import pytest
from hypothesis import example, given, settings, strategies as st

from leveret.broker.administration import json_parts
from leveret.broker.administration.json_parts import (
    WINDOW,
    NotDivisibleError,
    Part,
    key_of,
    members,
    object_of,
    value_of,
    whole,
)
from leveret.broker.scheduling.time_slices import at_once

TEXTS = st.text(max_size=30) | st.text('"\\/{}[],: \n\u0080\u20ac\U0001f600', max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=15,
)


@pytest.fixture(params=[7, 16, WINDOW])
def window(request, monkeypatch) -> int:
    """Steps of several sizes."""
    monkeypatch.setattr(json_parts, "WINDOW", request.param)
    return request.param


@pytest.mark.parametrize("is_ascii", [True, False])
def test_members_are_what_a_decoder_finds(window, is_ascii):
    """Each member of an array, and each key and value of an object."""

    @settings(max_examples=150, deadline=None)
    @given(VALUES, st.sampled_from([None, 1]))
    def check(value, indent) -> None:
        octets = b" " + json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode() + b"\n"
        part = whole(octets)
        if not isinstance(value, list | dict):
            return
        try:
            found = [each for each in members(octets, part) if each is not None]
        except NotDivisibleError:
            assert window < 16  # an escape of two surrogates is longer
            return
        if isinstance(value, list):
            assert value == [msgspec.json.decode(octets[start:stop]) for start, stop in found]
            return
        assert len(value) == len(found)

    check()


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=80) | TEXTS, st.booleans(), st.integers(12, 40))
def test_a_long_text_is_decoded_in_pieces(text, is_ascii, size):
    """No character and no escape is cut, whatever the size of the steps."""
    octets = json.dumps(text, ensure_ascii=is_ascii).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_parts, "WINDOW", size)
        assert text == at_once(value_of(octets, Part(0, len(octets))))


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, min_size=1, max_size=4), st.data())
@example({"a": "b"}, None)
def test_what_is_no_json_is_refused(value, data):
    """A document with octets removed or inserted is decoded as at once, or refused as at once."""
    octets = bytearray(json.dumps(value, ensure_ascii=False).encode())
    if data is not None:
        at = data.draw(st.integers(0, len(octets)))
        octets[at : at + data.draw(st.integers(0, 2))] = data.draw(
            st.sampled_from([b"", b'"', b"\\", b",", b"]", b"{", b"\xff", b"\\ud800", b"1"])
        )
    try:
        expected = msgspec.json.decode(octets)
    except (msgspec.DecodeError, UnicodeDecodeError):
        expected = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_parts, "WINDOW", 24)
        try:
            found = at_once(object_of(bytes(octets)))
        except NotDivisibleError:
            found = None

    assert found in (None, expected)
    if expected is None:
        assert found is None


@pytest.mark.parametrize(
    "octets",
    [b'{"a": [}' + b" " * WINDOW, b'{"a": 1]}' + b" " * WINDOW + b"}", b'{"a": "' + b"x" * 2 * WINDOW,
     b"[" + b"1," * WINDOW + b"1]", b'{"a": [' + b"1," * WINDOW + b"1]}", b'{1: "' + b"x" * WINDOW + b'"}',
     b'{"a": "' + b"x" * WINDOW + b'\\ud800"}', b'{"a": "' + b"x" * WINDOW + b'",}',
     b"{" + b" " * WINDOW + b'"a": 1}', b'{"' + b"x" * WINDOW + b'": 1}', b'{"a": "' + b"\xff" * WINDOW + b'"}'],
)  # fmt: skip
def test_large_documents_that_are_refused(octets):
    """Those that are no JSON, and those with a large value that is no text."""
    with pytest.raises(NotDivisibleError):
        at_once(object_of(octets))


@pytest.mark.parametrize("size", [1, 2 * WINDOW])
def test_a_byte_order_mark_is_left_out(size):
    """The mark that some editors put before a text in UTF-8 is no part of the document."""
    document = {"a": "b" * size}

    assert document == at_once(object_of(b"\xef\xbb\xbf" + json.dumps(document).encode()))


def test_keys_and_values():
    """A key is separated from its value, with space around."""
    octets = b' "a\\n" : [1, 2]'

    assert ("a\n", Part(8, 15)) == key_of(octets, Part(0, len(octets)))


@pytest.mark.parametrize(
    "octets",
    [b'{"payload": "' + b"x" * 10_000_000 + b'", "a": 1}', b'{"payload": "' + b"\\n" * 5_000_000 + b'", "a": 1}',
     b'{"payload": "' + "\u20ac".encode() * 3_300_000 + b'", "a": 1}', b'{"a": 1, "b": [' + b"{}," * 500_000 + b"{}]}",
     b'{"a": 1, "payload": "' + b"\\ud83d\\ude00" * 800_000 + b'"}'],
    ids=["plain", "escapes", "characters", "objects", "surrogates"],
)  # fmt: skip
def test_no_step_is_long(octets):
    """Ten million octets are divided and decoded in steps of a millisecond or two; joining the text takes longer."""
    times = [time.thread_time()]

    def timed() -> Iterator[None]:
        for _ in object_of(octets):
            times.append(time.thread_time())
            yield

    with contextlib.suppress(NotDivisibleError):  # a large list is found and then refused
        deque(timed(), maxlen=0)
    steps = sorted(after - before for before, after in pairwise(times))

    assert len(steps) > 100
    assert steps[-1] < 0.06  # beside other work also processor time is longer
    assert sum(steps[: len(steps) * 99 // 100]) / len(steps) < 0.004

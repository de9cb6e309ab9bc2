"""Texts for the cells of a terminal."""

import pytest

from leveret.broker.cli.top.views import (
    count,
    fit,
    grouped,
    memory,
    octets,
    rate,
    safe,
    share,
    shown_width,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("évènement", "évènement"),
        ("a\x1b[31mb\n", "a�[31mb�"),
        ("a\u202eb\u200d", "a�b�"),
    ],
)
def test_names_cannot_steer_the_terminal(text, shown):
    """Control characters, and those that reorder text, are replaced."""
    assert shown == safe(text)


@pytest.mark.parametrize(
    ("text", "width", "shown"),
    [
        ("abc", 5, "abc  "),
        ("abcdef", 5, "abcd…"),
        ("用户通知", 6, "用户 …"),
        ("用户通知", 5, "用户…"),
        ("用户", 1, "…"),
        ("abc", 3, "abc"),
        ("e\u0301te", 2, "e\u0301…"),
    ],
)
def test_a_text_takes_exactly_its_cells(text, width, shown):
    """It is filled up or cut, also between wide characters."""
    assert shown == fit(text, width)
    assert width == shown_width([(fit(text, width, is_left=False), "")])


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (0, "0"),
        (99_999, "99999"),
        (100_000, "100k"),
        (1_234_567, "1.23M"),
        (999_999, "1.00M"),
        (10**21, "1000E"),
    ],
)
def test_counts_take_six_characters(value, shown):
    """Small numbers are exact, large ones have three digits."""
    assert shown == count(value)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "-"), (0.0, "0"), (0.4, "0.4"), (9.96, "10"), (25.2, "25"), (123_456.0, "123k")],
)
def test_rates_show_a_fraction_below_ten(value, shown):
    """A slow queue is not one that stands still."""
    assert shown == rate(value)


@pytest.mark.parametrize(
    ("value", "cell", "text"),
    [
        (None, "-", "-"),
        (640, "640", "640 B"),
        (1024, "1.00k", "1.00 KiB"),
        (12_595, "12.3k", "12.3 KiB"),
        (1024 * 1024 - 1, "1.00M", "1.00 MiB"),
        (3 << 40, "3.00T", "3.00 TiB"),
    ],
)
def test_octets_are_in_units_of_1024(value, cell, text):
    """In a cell without, in a sentence with the unit."""
    assert (cell, text) == (octets(value), memory(value))


def test_numbers_of_the_summary():
    """They have commas, and parts are in percent; what is not known is a dash."""
    assert ("1,234", "-") == (grouped(1234.4), grouped(None))
    assert ("50 %", "-") == (share(0.5), share(None))

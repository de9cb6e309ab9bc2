"""The text format: read back by Prometheus' own parser, and made in bounded pieces."""

from grafana.exposition import Scraped
from hypothesis import given, strategies as st

from leveret.broker.metrics.text import (
    COUNTER,
    GAUGE,
    HISTOGRAM,
    LINES,
    Column,
    buckets,
    columns,
    escape,
    family,
    labels_text,
    sums,
)

COLUMNS = (
    Column("one", GAUGE, "The first", lambda row: row[0]),
    Column("two_total", COUNTER, "The second", lambda row: row[1], adds_up=False),
)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20))
def test_any_text_may_be_the_value_of_a_label(text):
    """Quotes, backslashes and line ends in labels are parsed to the original text."""
    scraped = Scraped([family("m", GAUGE, "help", [("", labels_text(("name",), (text,)), 1)])])

    assert 1 == scraped.value("m", name=text)


def test_octets_that_are_no_text_are_shown():
    """A name that is not UTF-8 does not spoil the answer, and names that differ stay different."""
    names = [octets.decode("utf-8", "surrogateescape") for octets in (b"a\xff", b"a\xfe", "ä".encode())]

    assert [r"a\\xff", r"a\\xfe", "ä"] == [escape(name) for name in names]


def test_a_family_without_values_is_left_out():
    """A value that is not known is left out instead of being 0."""
    assert "" == family("m", GAUGE, "help", [("", "", None)])
    assert "# TYPE m gauge\n# HELP m a \\\\ b\nm 2\n" == family(
        "m", GAUGE, "a \\ b", [("", "", 2), ("", "", None)]
    )


@given(st.integers(0, 3 * LINES + 5))
def test_columns_come_in_pieces_and_each_family_once(count):
    """No piece exceeds its number of lines, however many rows there are, and all rows are included."""
    rows = [(f'n="{number}"', (number, 2 * number)) for number in range(count)]
    pieces = list(columns("p_", COLUMNS, rows))

    assert all(piece.count("\n") <= LINES + 2 for piece in pieces)
    scraped = Scraped(pieces)
    assert {((("n", str(n)),)): n for n in range(count)} == scraped.values("p_one")
    assert {((("n", str(n)),)): 2 * n for n in range(count)} == scraped.values("p_two_total")


def test_sums_show_what_adds_up():
    """Metrics that do not add up, such as a fraction, are not in the sums."""
    assert "# TYPE p_one gauge\n# HELP p_one The first\np_one 5\n" == sums("p_", COLUMNS, (5, 6))


def test_a_histogram_is_cumulative():
    """A histogram has cumulative buckets, the last with all values, then count and sum."""
    samples = buckets(("1.0", "2.0"), (3, 4), 'mode="m"', 6, 11.5)
    scraped = Scraped([family("h", HISTOGRAM, "help", samples)])

    assert [3, 4, 6] == [scraped.value("h_bucket", mode="m", le=le) for le in ("1.0", "2.0", "+Inf")]
    assert (6, 11.5) == (scraped.value("h_count", mode="m"), scraped.value("h_sum", mode="m"))

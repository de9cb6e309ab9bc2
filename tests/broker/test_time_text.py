"""Times in texts."""

import pytest

from leveret.broker.time_text import moment


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, ""),
        (0, "1970-01-01T00:00:00Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59Z"),
        (253_402_300_800_000, "year 10000"),
        (2**63 - 1, "year 292278994"),
    ],
)
def test_a_time_is_told_in_utc_and_beyond_the_calendar_as_a_year(milliseconds, text):
    """Every time that a message may be held until has a text."""
    assert text == moment(milliseconds)

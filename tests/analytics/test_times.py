from datetime import UTC, datetime, timedelta

import pytest

from leveret.analytics.times import TimeError, parse

NOW = datetime(2026, 11, 25, 16, 30, tzinfo=UTC)
"""A Wednesday."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("2h ago", NOW - timedelta(hours=2)),
        ("1h30m ago", NOW - timedelta(minutes=90)),
        ("1.5 days ago", NOW - timedelta(hours=36)),
        ("2 weeks ago", NOW - timedelta(days=14)),
        ("today", datetime(2026, 11, 25, tzinfo=UTC)),
        ("yesterday", datetime(2026, 11, 24, tzinfo=UTC)),
        ("14:00", datetime(2026, 11, 25, 14, tzinfo=UTC)),
        ("Yesterday at 9:05:07", datetime(2026, 11, 24, 9, 5, 7, tzinfo=UTC)),
        ("last tuesday 14:00", datetime(2026, 11, 24, 14, tzinfo=UTC)),
        ("tuesday 14:00", datetime(2026, 11, 24, 14, tzinfo=UTC)),
        ("last wednesday", datetime(2026, 11, 18, tzinfo=UTC)),
        ("thursday", datetime(2026, 11, 19, tzinfo=UTC)),
        ("20 nov 2026 14:00", datetime(2026, 11, 20, 14, tzinfo=UTC)),
        ("2026-11-20", datetime(2026, 11, 20, tzinfo=UTC)),
        (" 2026-11-20 14:00 ", datetime(2026, 11, 20, 14, tzinfo=UTC)),
        ("2026-11-20T14:00:00Z", datetime(2026, 11, 20, 14, tzinfo=UTC)),
        ("2026-11-20T14:00+02:00", datetime(2026, 11, 20, 12, tzinfo=UTC)),
    ],
)
def test_times_are_what_people_mean(text, expected):
    """ISO times, days by name, times of day and times ago are understood, in UTC unless they say otherwise."""
    assert expected == parse(text, NOW)


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "25:00", "2026-02-30", "monday 25:00", "ago", "9999999999999 weeks ago", "foo 2h ago"),
        *("november", "12", "1/2/2026", "1.2.2026"),
    ],
)
def test_what_is_no_time_is_refused(text):
    """The error repeats a text that is no time, or only half of one, and shows what can be written."""
    with pytest.raises(TimeError, match="is not a time; write for example 2026-11-24T14:00"):
        parse(text, NOW)

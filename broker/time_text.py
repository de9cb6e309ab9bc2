"""Times as the texts of commands, logs and explanations have them."""

from datetime import UTC, datetime

YEAR_10000 = 253_402_300_800_000
"""Time (epoch ms) at which the calendar ends."""
_YEAR = 31_556_952_000


def moment(milliseconds: int | None) -> str:
    """Return a time (epoch ms) in UTC as texts have it, of one beyond the calendar the year; '' for None."""
    if milliseconds is None:
        return ""
    if milliseconds >= YEAR_10000:
        return f"year {10_000 + (milliseconds - YEAR_10000) // _YEAR}"
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"

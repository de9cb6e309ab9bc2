"""Points in time as people write them: `2026-11-24 14:00`, `last tuesday 14:00`, `2h ago`. All in UTC."""

import re
from datetime import UTC, datetime
from typing import Final

EXAMPLES: Final = "2026-11-24T14:00, yesterday 9:30, last tuesday 14:00, 2h ago or now"
_MIDNIGHT: Final = frozenset({"today", "yesterday"})
"""Words that mean a whole day here, from its beginning; dateparser takes the same time of that day."""
_EXACT: Final = frozenset({"time", "day", "week"})
"""Precision that a text must have: with the name of a month, or a number, dateparser guesses the rest."""
_AMBIGUOUS: Final = re.compile(r"\d+[/.]\d+[/.]\d+")  # A date whose day and month look alike


class TimeError(ValueError):
    """Raised for a text that is no time; its own text is for people."""


def parse(text: str, now: datetime) -> datetime:
    """Return the time that a text means.

    A date or day alone is its midnight, a time alone is the latest such time. A day of the week is the latest one
    before today, with or without `last`.

    `text`: an ISO 8601 date or time, or words in English; `now`: the current time, with a zone.

    Raises TimeError: it is none of these, or ambiguous, or out of the calendar's range.
    """
    said = " ".join(text.split())
    try:
        found = datetime.fromisoformat(said)
    except ValueError:
        found = _in_words(said, now)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _in_words(text: str, now: datetime) -> datetime:
    from dateparser.date import DateDataParser  # noqa: PLC0415 - only words need it, and it is slow to load

    settings = {
        "PREFER_DATES_FROM": "past",
        "RELATIVE_BASE": now.astimezone(UTC).replace(tzinfo=None),
        "RETURN_AS_TIMEZONE_AWARE": True,
        "RETURN_TIME_AS_PERIOD": True,
        "TIMEZONE": "UTC",
    }
    found = None
    if _AMBIGUOUS.search(text) is None:
        found = DateDataParser(languages=["en"], settings=settings).get_date_data(text)
    if found is None or found.date_obj is None or found.period not in _EXACT:
        raise TimeError(f"{text!r} is not a time; write for example {EXAMPLES} (UTC)")
    time: datetime = found.date_obj
    return time.replace(hour=0, minute=0, second=0, microsecond=0) if text.lower() in _MIDNIGHT else time

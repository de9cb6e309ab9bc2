"""The last lines of the log, in memory."""

import logging
from collections.abc import Iterator

import pytest

from leveret.broker.process.logs import MOST_TEXT, RecentLog

NAME = "kept"


@pytest.fixture
def recent() -> Iterator[RecentLog]:
    """The last three lines of a logger."""
    log = RecentLog(NAME, 3)
    logger = logging.getLogger(NAME)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    log.begin()
    yield log
    log.end()
    logger.setLevel(before)


def say(text: str, *args: object, level: int = logging.INFO, category: str = "connection", **more: object):
    logging.getLogger(f"{NAME}.{category}").log(level, text, *args, **more)


def test_lines_have_number_level_and_category(recent):
    """Debug lines are not kept."""
    say("detail", level=logging.DEBUG)
    say("from %s", "here", level=logging.WARNING)
    (line,) = recent.find().lines

    assert (1, "warning", "connection", "from here") == (line.number, line.level, line.category, line.text)


def test_the_newest_lines_are_kept(recent):
    """Somebody who asks for what is gone is told how much that was."""
    for number in range(1, 6):
        say("%d", number)

    assert ["3", "4", "5"] == [line.text for line in recent.find().lines]
    assert (5, 0) == recent.find()[1:]
    assert (5, 1) == recent.find(after=1)[1:]
    assert ["5"] == [line.text for line in recent.find(after=4).lines]
    assert [] == recent.find(after=5).lines
    assert ["4", "5"] == [line.text for line in recent.find(count=2).lines]


def test_after_a_restart_all_lines_are_new(recent):
    """The number that somebody knows from before is higher than any."""
    say("first")

    assert ["first"] == [line.text for line in recent.find(after=700).lines]


def test_levels_are_filtered(recent):
    """A level and those above."""
    for level in (logging.INFO, logging.ERROR, 25):
        say("x", level=level)

    assert ["error"] == [line.level for line in recent.find(level="warning").lines]
    assert ["error", "notice"] == [line.level for line in recent.find(level="notice").lines]


def test_nobody_can_forge_a_line_or_fill_the_memory(recent):
    """Control characters are escaped, bytes that are no text are shown, and long lines are cut."""
    say("user '%s'", "a\n2026 [error] b\u202e\udcff")
    say("x" * 100_000)
    forged, long = recent.find().lines

    assert r"user 'a\n2026 [error] b\u202e\udcff'" == forged.text
    assert MOST_TEXT == len(long.text)


def test_passwords_in_addresses_are_masked(recent):
    """Other parts of them are shown."""
    say("cannot reach amqps://me:secret@there:5671/%2F, nor amqp://here")

    assert "cannot reach amqps://***@there:5671/%2F, nor amqp://here" == recent.find().lines[0].text


def test_a_traceback_follows_its_line(recent):
    """Its lines are lines of the text."""
    try:
        int("bad\x00")
    except ValueError:
        say("failed", exc_info=True)
    lines = recent.find().lines[0].text.split("\n")

    assert ("failed", "Traceback (most recent call last):") == (lines[0], lines[1])
    assert lines[-1].startswith("ValueError: invalid literal")


def test_arguments_that_do_not_fit_do_no_harm(recent):
    """The record is shown as it is."""
    recent.emit(logging.LogRecord(NAME, logging.INFO, "", 0, "%d", ("text",), None))

    assert "%d ('text',)" == recent.find().lines[0].text


def test_nothing_is_kept_after_the_last_end():
    """Of two users the first to end leaves it to the other."""
    log = RecentLog("kept-by-two")
    logger = logging.getLogger("kept-by-two")
    log.begin()
    log.begin()
    log.end()
    logger.error("1")
    log.end()
    logger.error("2")

    assert ["1"] == [line.text for line in log.find().lines]
    assert [] == logger.handlers

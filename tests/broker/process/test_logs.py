"""Log lines: their format, their safety, their files."""

import io
import json
import logging
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from leveret.broker.process import logs

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}\+00:00 \[(\w+)\] <\d+> (.*)")


@pytest.fixture
def name(request):
    """A logger that no other test uses, left as it was found."""
    return f"leveret-{request.node.name}"


def lines_of(name, act, *, levels=None, **output):
    """Return the lines that ``act`` writes to a configured logger."""
    stream = io.StringIO()
    configured = logs.configure([logs.Output(stream=stream, **output)], levels or {}, name)
    try:
        act(logging.getLogger(name))
    finally:
        configured.close()
    return stream.getvalue().splitlines()


def test_each_logger_below_the_brokers_is_a_category():
    """So that `set_log_level` knows it, and refuses all else."""
    package = Path(logs.__file__).parents[2]
    files = [
        path
        for part in ("broker", "storage", "confirm", "exchanges")
        for path in (package / part).rglob("*.py")
    ]
    found = {
        name for path in files for name in re.findall(r'getLogger\("leveret\.(\w+)"\)', path.read_text())
    }

    assert set(logs.CATEGORIES) == found


def test_a_line_has_rabbitmqs_shape(name):
    """A line has time with microseconds and offset, level, process, text."""
    (line,) = lines_of(name, lambda logger: logger.info("hello %s", "world"))
    match = LINE.fullmatch(line)

    assert match is not None
    assert ("info", "hello world") == match.groups()


def test_json_has_rabbitmqs_keys(name):
    """A JSON line is one object with time, level, msg, pid, domain, file, line and mfa."""
    (line,) = lines_of(name, lambda logger: logger.warning("a\nb \udcff"), formatter="json")
    entry = json.loads(line)

    assert {"time", "level", "msg", "pid", "domain", "file", "line", "mfa"} == set(entry)
    assert ("warning", "a\nb \\udcff", name) == (entry["level"], entry["msg"], entry["domain"])


@given(st.text())
def test_no_text_makes_a_second_line(text):
    """A message stays one line of printable characters, whatever a client puts into a name."""
    escaped = logs.escaped(text)

    assert len(escaped.splitlines()) <= 1
    assert not re.search(r"[\x00-\x1f\x7f-\x9f]", escaped)


def test_whatever_does_not_show_is_escaped(name):
    """Characters of Unicode's categories for controls, formats and line ends are escaped, in either format."""
    hidden = [
        chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in {"Cc", "Cf", "Zl", "Zp"}
    ]

    assert [] == [sign for sign in hidden if sign in logs.escaped(sign)]
    text = "".join(hidden)
    (line,) = lines_of(name, lambda logger: logger.info("%s", text), formatter="json")
    assert text == json.loads(line)["msg"]
    assert [] == [sign for sign in hidden if sign in line]


def test_a_traceback_is_written_line_by_line(name):
    """Each line of a traceback has the head of a log line, also when its message has line ends."""

    def fail(logger):
        try:
            int("two\nlines\x1b[0m")
        except ValueError:
            logger.exception("it broke")

    written = lines_of(name, fail)

    assert all(LINE.fullmatch(line) for line in written)
    assert any("ValueError: invalid literal" in line for line in written)
    assert "\x1b" not in "".join(written)


def test_a_message_that_does_not_format_is_still_logged(name):
    """A wrong argument in a log call results in a plain line."""
    (line,) = lines_of(name, lambda logger: logger.info("%d", "x"))

    assert line.endswith("%d ('x',)")


def test_levels_are_per_output_and_per_category(name):
    """An output drops records below its level; a category can have a higher level than the rest."""

    def act(logger):
        logger.info("one")
        logger.debug("two")
        logger.getChild("connection").info("three")
        logger.getChild("connection").error("four")
        logger.getChild("queue").info("five")
        logger.log(logs.LEVELS["notice"], "six")

    written = lines_of(name, act, levels={"connection": "error"})

    assert ["one", "four", "five", "six"] == [LINE.fullmatch(line)[2] for line in written]
    assert [] == lines_of(f"{name}-none", act, level="none")


def test_a_file_is_reopened_under_its_name(name, tmp_path):
    """Reopening a moved file continues in a new one; no line is lost."""
    path = tmp_path / "deep" / "a.log"
    configured = logs.configure([logs.Output(file=path)], {}, name)
    logger = logging.getLogger(name)
    logger.info("one")
    path.rename(tmp_path / "a.log.1")
    configured.reopen()
    logger.info("two")
    configured.close()

    assert (tmp_path / "a.log.1").read_text().endswith("one\n")
    assert path.read_text().endswith("two\n")


def test_a_file_that_cannot_be_reopened_is_kept(name, tmp_path):
    """Logging continues in the old file, with a line that says so, if the directory is gone."""
    path = tmp_path / "deep" / "a.log"
    configured = logs.configure([logs.Output(file=path)], {}, name)
    path.parent.rename(tmp_path / "moved")
    configured.reopen()
    configured.close()

    assert "cannot reopen log file" in (tmp_path / "moved" / "a.log").read_text()


def test_a_broken_stream_is_survived(name):
    """A closed console loses lines and raises no exception."""
    stream = io.StringIO()
    configured = logs.configure([logs.Output(stream=stream)], {}, name)
    stream.close()
    logging.getLogger(name).info("lost")
    configured.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_survived(name):
    """A file that cannot be written loses lines and raises no exception."""
    configured = logs.configure([logs.Output(file=Path("/dev/full"))], {}, name)
    logging.getLogger(name).info("lost")
    configured.close()

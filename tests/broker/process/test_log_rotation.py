"""Rotation of log files, and the rotated files."""

import gzip
import logging
from datetime import UTC, datetime
from pathlib import Path

import pytest

from leveret.broker.config.config import ConfigError, load
from leveret.broker.process import logs
from leveret.broker.process.logs import Rotation, When, compress, put_aside

NOW = datetime(2026, 11, 22, 10, 30, 15, tzinfo=UTC)  # a Sunday


@pytest.mark.parametrize(
    ("text", "following"),
    [
        ("$D0", datetime(2026, 11, 23, 0, 0, tzinfo=UTC)),
        ("$D10", datetime(2026, 11, 23, 10, 0, tzinfo=UTC)),
        ("$D11", datetime(2026, 11, 22, 11, 0, tzinfo=UTC)),
        ("$W0D23", datetime(2026, 11, 22, 23, 0, tzinfo=UTC)),
        ("$W0", datetime(2026, 11, 29, 0, 0, tzinfo=UTC)),
        ("$M1D5", datetime(2026, 12, 1, 5, 0, tzinfo=UTC)),
        ("$M31", datetime(2026, 12, 31, 0, 0, tzinfo=UTC)),
        ("$H30", datetime(2026, 11, 22, 11, 30, tzinfo=UTC)),
        ("$H45", datetime(2026, 11, 22, 10, 45, tzinfo=UTC)),
    ],
)
def test_times_are_those_of_rabbitmq(text, following):
    """A file is rotated at the next time that the pattern includes."""
    assert following == When.parsed(text).following(NOW)


@pytest.mark.parametrize("text", ["$", "D0", "$D24", "$W7", "$M0", "$M32", "$H60", "daily", "$D0x"])
def test_other_times_are_refused(text):
    """An invalid pattern is an error of the configuration."""
    with pytest.raises(ValueError, match=r"is not a time|out of range"):
        When.parsed(text)
    with pytest.raises(ConfigError):
        load(settings=[f"log.file.rotation.date = {text}"])


def test_old_files_move_up_and_the_oldest_goes(tmp_path: Path):
    """The file becomes `.0`, `.0` becomes `.1`, compressed or not, and no more than the configured number are kept."""
    file = tmp_path / "broker.log"
    for number in range(5):
        file.write_text(str(number))
        put_aside(file, 3)
        if number == 2:
            compress(file)

    assert {"broker.log.0", "broker.log.1", "broker.log.2.gz"} == {each.name for each in tmp_path.iterdir()}
    assert ["4", "3"] == [(tmp_path / f"broker.log.{number}").read_text() for number in range(2)]
    assert b"2" == gzip.decompress((tmp_path / "broker.log.2.gz").read_bytes())
    file.write_text("new")
    put_aside(file, 0)
    assert not file.exists()


@pytest.mark.parametrize("compressed", [False, True])
def test_a_log_is_put_aside_by_size(tmp_path, compressed):
    """A file exceeds the size by one line at most, and all lines are in it or in the rotated ones."""
    file = tmp_path / "broker.log"
    rotation = Rotation(size=2000, count=50, compress=compressed)
    name = f"rotated{compressed}"
    outputs = logs.configure([logs.Output(file=file, rotation=rotation)], {}, name)
    for number in range(100):
        logging.getLogger(name).info("line %d %s", number, "x" * 100)
    for handler in outputs._handlers:
        if handler._compressing is not None:
            handler._compressing.join(10)
    outputs.close()

    found = sorted(tmp_path.iterdir())
    texts = [
        gzip.decompress(each.read_bytes()) if each.suffix == ".gz" else each.read_bytes() for each in found
    ]
    assert len(found) > (1 if compressed else 5)
    assert compressed == any(each.suffix == ".gz" for each in found)
    lines = [line.split()[5] for text in texts for line in text.decode().splitlines()]
    assert sorted(map(str, range(100))) == sorted(lines)
    if not compressed:
        assert max(map(len, texts)) < 2300


def test_a_log_that_cannot_be_put_aside_grows(tmp_path, monkeypatch):
    """Lines go to the same file if renaming it fails."""
    file = tmp_path / "broker.log"

    def refuse(*_arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(logs, "put_aside", refuse)
    outputs = logs.configure([logs.Output(file=file, rotation=Rotation(size=10))], {}, "stuck")
    for number in range(3):
        logging.getLogger("stuck").info("line %d", number)
    outputs.close()

    assert [file] == list(tmp_path.iterdir())
    assert 3 == len(file.read_text().splitlines())


def test_a_log_is_put_aside_by_whichever_comes_first(tmp_path):
    """With a size and a date: by the size long before the date, and by the date however small the file is."""
    file = tmp_path / "broker.log"
    rotation = Rotation(size=500, when="$D0", count=9)
    outputs = logs.configure([logs.Output(file=file, rotation=rotation)], {}, "both")
    for _ in range(20):
        logging.getLogger("both").info("x" * 100)
    by_size = len(list(tmp_path.iterdir()))
    for handler in outputs._handlers:
        handler._due = 0.0
    logging.getLogger("both").info("small")
    outputs.close()

    assert 4 < by_size
    assert by_size + 1 == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize("size", [0, 10**6])
def test_a_log_is_put_aside_by_time(tmp_path, size):
    """The first line after the time goes into a new file."""
    file = tmp_path / "broker.log"
    outputs = logs.configure([logs.Output(file=file, rotation=Rotation(size=size, when="$D0"))], {}, "timed")
    logging.getLogger("timed").info("before")
    for handler in outputs._handlers:
        handler._due = 0.0
    logging.getLogger("timed").info("after")
    logging.getLogger("timed").info("later")
    outputs.close()

    assert ["before"] == [line.split()[4] for line in (tmp_path / "broker.log.0").read_text().splitlines()]
    assert ["after", "later"] == [line.split()[4] for line in file.read_text().splitlines()]

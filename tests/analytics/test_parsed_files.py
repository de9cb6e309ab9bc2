import json
import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_rows import row

from leveret.analytics import fast_lines, parsed_files
from leveret.analytics.schemas import tables
from leveret.analytics.scope import Scope

ROOT = Path(__file__).parents[2]
TABLE = tables()["queue_interval"]
WAITING = 30


def write(folder, name, *seconds, more=""):
    """Write a file of rows, one for each of these seconds; return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(row("queue_interval", each), separators=(",", ":")) for each in seconds]
    path.write_text("".join(f"{each}\n" for each in lines) + more)
    return path


def read(files):
    """Return the rows of files as (second, dt, hour)."""
    found = [each for file in files for each in pq.read_table(file).to_pylist()]
    return sorted((each["mono_us"] // 1_000_000, each.get("dt"), each.get("hour")) for each in found)


@pytest.fixture
def places(tmp_path):
    """The directory of a table, and the one in which its rows are kept."""
    return tmp_path / "in", tmp_path / "kept" / "queue_interval"


@pytest.fixture
def count(monkeypatch):
    """The number of files that were parsed."""
    parsed = []
    parse = fast_lines.parse

    def noted(data, table):
        parsed.append(len(data))
        return parse(data, table)

    monkeypatch.setattr(fast_lines, "parse", noted)
    return parsed


def kept(places, scope=None):
    """Return the rows of the table, and its partition columns."""
    files, columns, _ = parsed_files.kept(*places, TABLE, scope)
    return read(files), columns


BASE = row("queue_interval", 0)["mono_us"] // 1_000_000


def expected(*seconds, place=(None, None)):
    """Return rows as `read` does."""
    return [(BASE + each, *place) for each in seconds]


def test_files_are_parsed_once(places, count):
    """A second use of the same files parses none, and has the same rows."""
    write(places[0], "dt=2026-11-21/hour=07/node=here/a-1.jsonl", 0, 5)
    write(places[0], "dt=2026-11-21/hour=08/node=here/a-2.jsonl", 10)
    rows = expected(0, 5, place=("2026-11-21", "07")) + expected(10, place=("2026-11-21", "08"))

    assert (rows, ["dt", "hour"]) == kept(places)
    assert 2 == len(count)
    assert (rows, ["dt", "hour"]) == kept(places)
    assert 2 == len(count)


def test_only_the_hours_that_changed_are_parsed_again(places, count, monkeypatch):
    """A new file costs the parsing of its hour, if a day is too large to be kept as one, and other hours nothing."""
    monkeypatch.setattr(parsed_files, "MOST_BYTES", 1500)
    for hour in range(5):
        write(places[0], f"dt=2026-11-21/hour={hour:02}/a-1.jsonl", hour)
    kept(places)
    assert 5 == len(count)

    write(places[0], "dt=2026-11-21/hour=04/a-2.jsonl", 9)

    assert [0, 1, 2, 3, 4, 9] == [second - BASE for second, _, _ in kept(places)[0]]
    assert 5 < len(count) <= 7


def test_an_hour_with_many_lines_is_kept_in_parts(places, count, monkeypatch):
    """Files of an hour are kept in parts of a limited size; the first ones stay when more files come."""
    monkeypatch.setattr(parsed_files, "MOST_BYTES", 1500)
    for number in range(6):
        write(places[0], f"dt=2026-11-21/hour=07/a-{number}.jsonl", number)
    files, _, _ = parsed_files.kept(*places, TABLE)
    write(places[0], "dt=2026-11-21/hour=07/a-6.jsonl", 6)
    more, _, _ = parsed_files.kept(*places, TABLE)

    assert 3 <= len(files) <= len(more)
    assert len(set(files) - set(more)) <= 1
    assert list(range(7)) == [second - BASE for second, _, _ in read(more)]


def test_a_file_that_changed_is_parsed_again(places, count):
    """Another size, another time or another file of the same name, size and time: what was kept is not taken."""
    path = write(places[0], "a.jsonl", 0)
    status = path.stat()
    assert (expected(0), []) == kept(places)

    write(places[0], "a.jsonl", 0, 5)
    assert (expected(0, 5), []) == kept(places)

    path.unlink()
    write(places[0], "b.jsonl", 7).rename(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (expected(7), []) == kept(places)
    assert 3 == len(count)


def test_another_version_is_not_taken(places, count, monkeypatch):
    """Rows that another version kept are not read."""
    write(places[0], "a.jsonl", 0)
    kept(places)
    monkeypatch.setattr(parsed_files, "FORMAT", parsed_files.FORMAT + 1)

    assert (expected(0), []) == kept(places)
    assert 2 == len(count)


@pytest.mark.parametrize(
    "damage", [b"", b"PAR1", b"nothing of this kind, but long enough to have an end: PAR1"]
)
@pytest.mark.parametrize(("pattern", "parsed"), [("*[0-9a-f].parquet", 2), ("*.ends", 2), ("*-firsts*", 1)])
def test_a_damaged_file_is_made_again(places, count, damage, pattern, parsed):
    """A kept file that cannot be read is made again."""
    write(places[0], "a.jsonl", 0)
    parsed_files.kept(*places, TABLE)
    (file,) = places[1].glob(pattern)
    file.write_bytes(damage)

    assert (expected(0), []) == kept(places)
    assert parsed == len(count)


@pytest.mark.parametrize("more", ["half a li", "{\n", "\n", "null\n"])
def test_lines_of_another_form_are_not_kept(places, more):
    """A file with any other line is an error, each time, and nothing of it is kept."""
    write(places[0], "a.jsonl", 0, more=more)

    for _ in range(2):
        with pytest.raises(parsed_files.NotPlainError, match="another form"):
            parsed_files.kept(*places, TABLE)
    assert [] == list(places[1].iterdir())


def test_a_line_does_not_go_on_in_the_next_file(places):
    """Files of an hour are parsed as one, but half a line and the rest of it in the next file are no row."""
    path = write(places[0], "a.jsonl", 0, 5)
    text = path.read_text()
    for place in range(1, len(text), 97):
        path.write_text(text[:place])
        path.with_name("b.jsonl").write_text(text[place:])
        if text[place - 1] != "\n":
            with pytest.raises(parsed_files.NotPlainError, match="another form"):
                parsed_files.kept(*places, TABLE)


def test_a_file_that_the_parser_cannot_hold_is_not_read(places, count, monkeypatch):
    """A file of more bytes than the parser can count is left to an engine that reads it in parts."""
    path = write(places[0], "a.jsonl", 0)
    monkeypatch.setattr(fast_lines, "MOST_BYTES", path.stat().st_size - 1)

    with pytest.raises(parsed_files.NotPlainError, match="too large"):
        parsed_files.kept(*places, TABLE)
    assert not count


def test_a_file_that_is_written_to_meanwhile_is_not_kept(places, monkeypatch):
    """A file that grows or goes while it is read is an error."""
    path = write(places[0], "a.jsonl", 0)
    hashed = parsed_files._hash
    actions = {"written to": lambda: write(places[0], "a.jsonl", 0, 5), "removed": path.unlink}

    def change(*arguments):
        actions[told]()
        return hashed(*arguments)

    monkeypatch.setattr(parsed_files, "_hash", change)
    for told in actions:
        with pytest.raises(parsed_files.NotPlainError, match=told):
            parsed_files.kept(*places, TABLE)
    assert [] == list(places[1].iterdir())


def test_unfinished_and_hidden_files_are_not_read(places):
    """Files that the broker has not finished, and hidden directories, are not part of the table."""
    write(places[0], "a.jsonl", 0)
    for name in (".b.jsonl.tmp", ".c.jsonl", "_d.jsonl", "e.jsonl.gz", ".f/g.jsonl", "_h/i.jsonl"):
        write(places[0], name, 5, more="half a li")

    assert (expected(0), []) == kept(places)


def test_only_hours_of_the_range_are_parsed(places, count):
    """With a range, files of other days are not read, so a damaged line there is none of the range's."""
    write(places[0], "dt=2026-11-21/hour=07/a.jsonl", 0)
    write(places[0], "dt=2026-11-25/hour=07/a.jsonl", 5, more="half a li")
    until = Scope(until_ms=1_795_300_000_000)  # 2026-11-21 22:26

    assert (expected(0, place=("2026-11-21", "07")), ["dt", "hour"]) == kept(places, until)
    assert 1 == len(count)


@pytest.mark.parametrize(
    "names",
    [
        ("dt=1/hour=2/a.jsonl", "a.jsonl"),
        ("dt=1/hour=2/a.jsonl", "dt=1/hour=2/node=3/a.jsonl"),
        ("dt=%31/hour=2/a.jsonl",),
        ("hour=2/dt=1/a.jsonl",),
        ("dt=1/a.jsonl",),
        ("other/a.jsonl",),
    ],
)
def test_unusual_directories_are_not_read(places, names):
    """Directories that engines may understand in another way are an error."""
    for name in names:
        write(places[0], name, 0)

    with pytest.raises(parsed_files.NotPlainError):
        parsed_files.kept(*places, TABLE)


def test_what_is_kept_is_its_users_own(places):
    """Nobody but its user can read what is kept."""
    write(places[0], "a.jsonl", 0)
    parsed_files.kept(*places, TABLE)

    assert {0o600} == {file.stat().st_mode & 0o777 for file in places[1].iterdir()}
    assert 0o700 == places[1].stat().st_mode & 0o777


def test_what_is_unfinished_or_too_much_is_removed(places, monkeypatch):
    """Files that were not used for an hour are removed if they are unfinished, or if there is too much."""
    write(places[0], "a.jsonl", 0)
    file = parsed_files.kept(*places, TABLE).files[0]
    left = places[1] / "new-of-a-command-that-was-killed"
    left.write_bytes(b"PAR1")
    later = time.time() + parsed_files.UNUSED_SECONDS

    parsed_files.tidy(places[1].parent, later - 60)
    assert (True, True) == (file.exists(), left.exists())
    parsed_files.tidy(places[1].parent, later + 60)
    assert (True, False) == (file.exists(), left.exists())
    monkeypatch.setattr(parsed_files, "MOST_KEPT_BYTES", 100)
    parsed_files.tidy(places[1].parent, later - 60)
    assert file.exists()
    parsed_files.tidy(places[1].parent, later + 60)
    assert not file.exists()
    parsed_files.tidy(places[1] / "nothing")


def test_two_commands_at_the_same_time_have_the_same_rows(places):
    """Commands that keep the same files at the same time do not disturb each other, and leave one of each."""
    for number in range(20):
        write(places[0], f"dt=2026-11-{number + 1:02}/hour=07/a.jsonl", number)

    with ThreadPoolExecutor(4) as pool:
        found = [each.result() for each in [pool.submit(parsed_files.kept, *places, TABLE) for _ in range(4)]]

    assert all(found[0] == each for each in found)
    assert 20 == len(read(found[0].files))
    assert {".ends": 20, ".parquet": 21} == Counter(path.suffix for path in places[1].iterdir())


def test_a_kill_leaves_nothing_that_is_taken_for_rows(places):
    """A command that is killed while it writes leaves an unfinished file, which the next one does not read."""
    write(places[0], "a.jsonl", 0, 5)
    program = (
        "import os, pathlib, signal, sys\n"
        "from leveret.analytics import parsed_files\n"
        "from leveret.analytics.schemas import tables\n"
        "def end(descriptor):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.fsync = end\n"
        "parsed_files.kept(*map(pathlib.Path, sys.argv[1:]), tables()['queue_interval'])\n"
    )

    done = subprocess.run([sys.executable, "-c", program, *places], cwd=ROOT, timeout=WAITING, check=False)

    assert -9 == done.returncode
    assert ["new-"] == [path.name[:4] for path in places[1].iterdir()]
    assert (expected(0, 5), []) == kept(places)


def read_before(files):
    """Return the queue, the clock and the values before of rows."""
    found = [each for file in files for each in pq.read_table(file).to_pylist()]
    return sorted(
        (each["queue"], each["mono_us"], each["before_mono_us"], each["before_pub"]) for each in found
    )


def test_rows_have_the_values_of_the_row_before(places, monkeypatch):
    """Each row has those of its object's row before, also if that is in a file that was kept before, or has none."""
    monkeypatch.setattr(parsed_files, "MOST_BYTES", 1500)
    clock = row("queue_interval", 0)["mono_us"]
    expected = []
    for hour in range(4):
        lines = []
        for queue in ("a", "b") if hour != 1 else ("b",):
            for second in (hour * 3600, hour * 3600 + 5):
                lines.append(row("queue_interval", second, queue=queue, pub=second))
                before = [each for each in expected if each[0] == queue][-1:]
                last = (before[0][1], (before[0][1] - clock) // 1_000_000) if before else (None, None)
                expected.append((queue, lines[-1]["mono_us"], *last))
        path = places[0] / f"dt=2026-11-21/hour={hour:02}/a.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in lines[::-1]))
        found = parsed_files.kept(*places, TABLE)

        assert sorted(expected) == read_before(found.files)
        assert {"before_pub", "before_mono_us"} <= set(found.before)


def test_rows_that_are_not_one_after_another_have_none_of_the_row_before(places, monkeypatch):
    """If files that are kept apart have rows of the same time, only the rows are returned."""
    monkeypatch.setattr(parsed_files, "MOST_BYTES", 1500)
    for hour in (7, 8):
        write(places[0], f"dt=2026-11-21/hour={hour:02}/a.jsonl", 0, 5)

    for _ in range(2):
        found = parsed_files.kept(*places, TABLE)

        assert not found.before
        assert [BASE, BASE, BASE + 5, BASE + 5] == [second for second, _, _ in read(found.files)]

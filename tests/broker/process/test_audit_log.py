"""The audit log: entries, secrets, bounds; and the thread that writes it."""

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from processes.waiting import wait_until

from leveret.broker.process import audit_writer
from leveret.broker.process.audit_log import LOSS, REMEMBERED, REPEAT_SECONDS, AuditLog, masked
from leveret.broker.process.audit_writer import AuditWriter
from leveret.broker.process.logs import Rotation

NOON = 1_790_000_000_000


def entries(audit: AuditLog) -> list[dict]:
    return [json.loads(line) for line in audit.take()]


@pytest.fixture
def audit() -> AuditLog:
    return AuditLog(lambda: NOON)


def test_an_entry_is_one_line_of_json(audit):
    """It has the time in UTC, what happened, who did it, from where, to what, and how it ended."""
    audit.record("users.put", actor="ann", peer="192.0.2.1", name="bob", tags=["monitoring"])
    (line,) = audit.take()

    assert b"\n" not in line
    assert {
        "time": "2026-09-21T14:13:20.000+00:00",
        "event": "users.put",
        "outcome": "ok",
        "actor": "ann",
        "peer": "192.0.2.1",
        "object": "bob",
        "detail": {"tags": ["monitoring"]},
    } == json.loads(line)


def test_nothing_is_recorded_unless_it_is_on():
    """A broker without an audit log spends no memory on it."""
    audit = AuditLog(lambda: NOON, is_on=False)
    audit.record("login")
    audit.record_repeatable("login", 0.0)

    assert (0, 0) == (len(audit), audit.recorded)


def test_text_of_clients_forges_no_lines(audit):
    """Control characters, bidi marks and octets that are not UTF-8 are escaped, and long texts are cut."""
    audit.record("login", actor='a\n{"event":"x"}\u202e\udcff', name="n" * 10_000)
    (line,) = audit.take()

    assert line.isascii() or "\u202e" not in line.decode()
    assert b"\n" not in line
    assert len(line) < 1000
    assert 'a\n{"event":"x"}\u202e\\udcff' == json.loads(line)["actor"]


@pytest.mark.parametrize(
    "value",
    [
        {"password": "canary"},
        {"password_hash": "canary"},
        {"a": [{"default_pass": "canary"}]},
        {"src-uri": "amqp://canary"},
        {"token": "canary"},
        "amqp://user:canary@host",
    ],
)
def test_secrets_are_masked(value):
    """Values whose names may be those of secrets, and URIs with a login, are never recorded."""
    assert "canary" not in json.dumps(masked("value", value))


def test_a_large_detail_is_left_out(audit):
    """An entry stays small, whatever somebody has put into a policy."""
    audit.record("policies.put", definition={f"k{number}": "v" * 100 for number in range(100)})

    assert {"left_out": "too large"} == entries(audit)[0]["detail"]


def test_what_does_not_fit_is_counted():
    """Recording never waits: entries beyond the bound are dropped, and an entry tells how many."""
    audit = AuditLog(lambda: NOON, most=3)
    for number in range(10):
        audit.record("login", name=str(number))
    assert (3, 10, 7) == (len(audit), audit.recorded, audit.lost)

    *kept, loss = entries(audit)
    assert ["0", "1", "2"] == [entry["object"] for entry in kept]
    assert (LOSS, {"count": 7}) == (loss["event"], loss["detail"])
    assert [] == audit.take()


def test_entries_that_could_not_be_written_keep_their_order():
    """They are before those that were recorded since, as far as there is room."""
    audit = AuditLog(lambda: NOON, most=3)
    for number in range(3):
        audit.record("login", name=str(number))
    taken = audit.take()
    audit.record("login", name="3")
    audit.put_back(taken)

    assert (3, 1) == (len(audit), audit.lost)
    assert ["0", "1", "3"] == [entry.get("object") for entry in entries(audit)[:3]]


def test_repeated_events_are_recorded_once_a_minute(audit):
    """The first at once, and when the minute is over how many equal ones there were."""
    for _ in range(5):
        audit.record_repeatable("login", 10.0, actor="ann", peer="a")
    audit.record_repeatable("login", 10.0, actor="bob", peer="a")
    audit.report_repeated(10.0 + REPEAT_SECONDS - 1)
    assert ["ann", "bob"] == [entry["actor"] for entry in entries(audit)]

    audit.report_repeated(10.0 + REPEAT_SECONDS)
    assert [("ann", {"repeated": 4})] == [(entry["actor"], entry["detail"]) for entry in entries(audit)]
    audit.record_repeatable("login", 11.0 + REPEAT_SECONDS, actor="ann", peer="a")
    assert ["ann"] == [entry["actor"] for entry in entries(audit)]


def test_few_events_are_remembered_for_that(audit):
    """Clients choose names, so the number of remembered events is bounded; their counts are not lost."""
    audit.record_repeatable("access", 0.0, actor="first")
    audit.record_repeatable("access", 0.0, actor="first")
    for number in range(REMEMBERED):
        audit.record_repeatable("access", 0.0, actor=str(number))

    told = [entry for entry in entries(audit) if entry["actor"] == "first"]
    assert [None, {"repeated": 1}] == [entry.get("detail") for entry in told]


# -- the file ---------------------------------------------------------------------------------------------------------


def lines_of(file: Path) -> list[str]:
    return [json.loads(line)["object"] for line in file.read_text().splitlines()]


def test_the_file_has_every_entry(audit, tmp_path):
    """Entries are written by a thread, and those that are left when it is closed."""
    file = tmp_path / "log" / "audit.log"
    writer = AuditWriter(audit, file, Rotation())
    for number in range(1000):
        audit.record("login", name=str(number))
    wait_until(lambda: file.read_text().count("\n") == 1000)
    audit.record("login", name="last")
    writer.close()
    writer.close()

    assert [*map(str, range(1000)), "last"] == lines_of(file)


def test_the_file_is_rotated(audit, tmp_path):
    """By size, as the other log; no entry is lost between two files."""
    file = tmp_path / "audit.log"
    writer = AuditWriter(audit, file, Rotation(size=2000, count=100))
    for number in range(200):
        audit.record("login", name=f"{number:03}")
    writer.close()

    written = [name for each in tmp_path.iterdir() for name in lines_of(each)]
    assert len(list(tmp_path.iterdir())) > 5
    assert [f"{number:03}" for number in range(200)] == sorted(written)


def test_the_file_is_opened_anew(audit, tmp_path):
    """After another program has moved it."""
    file = tmp_path / "audit.log"
    writer = AuditWriter(audit, file, Rotation())
    audit.record("login", name="before")
    wait_until(lambda: file.read_text().count("\n") == 1)
    file.rename(tmp_path / "moved")
    writer.reopen()
    audit.record("login", name="after")
    writer.close()

    assert (["before"], ["after"]) == (lines_of(tmp_path / "moved"), lines_of(file))


def test_a_full_disk_keeps_the_loop_going(audit, tmp_path, monkeypatch, caplog):
    """Entries wait until there is space again, and are then written in their order, none twice."""
    monkeypatch.setattr(audit_writer, "RETRY_SECONDS", 0.01)
    file = tmp_path / "audit.log"
    writer = AuditWriter(audit, file, Rotation())
    write, is_full = os.write, threading.Event()
    is_full.set()

    def failing(number: int, octets: bytes) -> int:
        if is_full.is_set() and b'"login"' in octets:
            write(number, octets[:10])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(number, octets)

    monkeypatch.setattr(os, "write", failing)
    for number in range(3):
        audit.record("login", name=str(number))
    wait_until(lambda: audit.is_failing)
    is_full.clear()
    wait_until(lambda: file.read_text().count("\n") == 3)
    writer.close()

    assert ["0", "1", "2"] == lines_of(file)
    assert not audit.is_failing
    assert 1 == len([record for record in caplog.records if "cannot write audit log" in record.getMessage()])


def test_an_entry_has_a_bounded_size(audit):
    """Whatever the names, the reason, the states and the details are."""
    text = "\x01" * 100_000
    audit.record(
        text[:100], actor=text, peer=text, vhost=text, name=text, reason=text,
        before={"a": [text] * 3}, after={"b": {"c": text[:200]}}, body={"d": text[:200]},
    )  # fmt: skip
    (line,) = audit.take()

    assert len(line) < 32 << 10


@pytest.mark.parametrize("value", [list(range(2000)), {str(number): {} for number in range(2000)}])
def test_values_of_many_parts_are_left_out(audit, value):
    """They are not looked at as a whole."""
    audit.record("users.put", before=value, after={"kept": 1})

    (entry,) = entries(audit)
    assert ({"left_out": "too large"}, {"kept": 1}) == (entry["before"], entry["after"])


def test_values_of_many_levels_are_left_out(audit):
    """A value that was stored by an earlier version may have more levels than Python can descend."""
    value: list = []
    for _ in range(1000):
        value = [value]
    audit.record("users.put", before=value)

    assert len(audit.take()) == 1

"""Free memory and disk space, and the alarms."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from processes.commands import execute

from leveret.broker.process import resource_alarms
from leveret.broker.process.resource_alarms import (
    DiskAlarm,
    MemoryAlarm,
    anonymous_memory,
    raised,
    reason,
    total_memory,
)

SIZES = st.integers(0, 2**40)


@given(limit=SIZES, sizes=st.lists(SIZES))
def test_the_memory_alarm_is_raised_above_the_limit(limit, sizes):
    """The memory alarm is raised above the limit, cleared below 95 % of it, and reports each change once."""
    alarm = MemoryAlarm(limit)
    raised = False
    for used in sizes:
        changed = alarm.check(used)
        before, raised = raised, used > limit or (raised and used > 0.95 * limit)

        assert (raised, used) == (alarm.raised, alarm.used)
        assert (before != raised) == changed


def test_memory_at_the_limit_does_not_flutter():
    """Usage that varies a little around the limit changes the alarm once."""
    alarm = MemoryAlarm(1000)

    assert [True, *[False] * 9] == [alarm.check(used) for used in (1001, 999) * 5]
    assert (True, False) == (alarm.check(950), alarm.raised)


def test_a_limit_of_nothing_is_always_passed():
    """The limit 0, which administrators set to stop publishers, is exceeded by any process."""
    alarm = MemoryAlarm(0)

    assert alarm.check(anonymous_memory())
    assert alarm.raised


@given(limit=SIZES, sizes=st.lists(SIZES))
def test_the_disk_alarm_is_raised_below_the_limit(limit, sizes):
    """The disk alarm is raised below the limit, cleared from 105 % of it on, and reports each change once."""
    alarm = DiskAlarm(limit)
    raised = False
    for free in sizes:
        changed = alarm.check(free)
        before, raised = raised, free < limit or (raised and free < 1.05 * limit)

        assert (raised, free) == (alarm.raised, alarm.free)
        assert (before != raised) == changed


def test_a_commit_without_room_raises_the_disk_alarm():
    """A commit without space raises the alarm at once; it is cleared by the check after a commit that succeeds."""
    alarm = DiskAlarm(100)

    assert (False, False) == (alarm.check(1000), alarm.raised)
    assert (True, True) == (alarm.set_full(is_full=True), alarm.raised)
    assert (False, True) == (alarm.check(1000), alarm.raised)
    assert (False, True) == (alarm.set_full(is_full=False), alarm.raised)
    assert (False, True) == (alarm.check(104), alarm.raised)
    assert (True, False) == (alarm.check(105), alarm.raised)


def test_a_disk_that_is_full_twice_is_reported_once():
    """A commit without space changes nothing while the alarm is raised."""
    alarm = DiskAlarm(100)
    alarm.check(10)

    assert (True, False) == (alarm.raised, alarm.set_full(is_full=True))
    assert "a commit failed for lack of space, 10 bytes free, limit 100" == str(alarm)


@pytest.mark.parametrize(
    ("free", "seconds"),
    [
        (50_000_000, 0.1),
        (50_000_001, 0.1),
        (175_000_000, 0.25),
        (1_050_000_000, 2.0),
        (9_000_000_000, 10.0),
        (0, 0.1),
    ],
)
def test_the_disk_is_looked_at_oftener_near_the_limit(free, seconds):
    """The interval is half the time to fill the free space at 250 MB/s, between a tenth of a second and ten."""
    alarm = DiskAlarm(50_000_000)
    alarm.check(free)

    assert seconds == pytest.approx(alarm.due)


def test_publishers_that_are_blocked_wait_a_second_at_most():
    """The disk is checked every second while the alarm is raised, however far it is from its limit."""
    alarm = DiskAlarm(10**12)
    alarm.check(0)

    assert 1.0 == alarm.due
    assert 0.1 == DiskAlarm(10).due


@pytest.mark.parametrize(
    ("memory", "disk", "text"),
    [
        (False, False, ""),
        (True, False, "low on memory"),
        (False, True, "low on disk"),
        (True, True, "low on disk & memory"),
    ],
)
def test_publishers_are_notified_of_what_is_short(memory, disk, text):
    """Reasons for blocking have RabbitMQ's words and order."""
    in_use, on_disk = MemoryAlarm(10), DiskAlarm(10)
    in_use.check(20 if memory else 0)
    on_disk.check(0 if disk else 20)

    assert text == reason(raised(in_use, on_disk))


def test_anonymous_memory_is_the_kernels_figure():
    """The bytes in use are the kernel's RssAnon."""
    program = (
        "from pathlib import Path; from leveret.broker.process.resource_alarms import anonymous_memory\n"
        "kib = Path('/proc/self/status').read_text().partition('RssAnon:')[2].split()[0]\n"
        "print(anonymous_memory(), kib)"
    )
    done = execute([sys.executable, "-c", program], check=True)
    octets, kib = map(int, done.stdout.split())

    assert abs(octets - 1024 * kib) < 1 << 20


def test_memory_in_use_is_seen_to_grow():
    """Memory that is written to counts as in use."""
    import mmap

    size = 32 << 20
    before = anonymous_memory()
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as block:
        block.write(b"\x01" * size)
        grown = anonymous_memory() - before

    assert grown >= size // 2


def test_files_that_are_read_are_no_memory_in_use(tmp_path):
    """Pages of a mapped file, which the kernel can drop at any time, do not count."""
    import mmap

    path = tmp_path / "file"
    path.write_bytes(b"\x01" * (32 << 20))
    before = anonymous_memory()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        touched = sum(mapped[at] for at in range(0, len(mapped), 4096))
        grown = anonymous_memory() - before

    assert 32 << 20 >> 12 == touched
    assert grown < 16 << 20


def limited_to(monkeypatch, directory: Path, text: str | None) -> int:
    """Return the total memory under a control group whose limit file has `text`; None: there is no such file."""
    if text is not None:
        (directory / "memory.max").write_text(text)
    monkeypatch.setattr(resource_alarms, "Path", lambda name: directory / Path(name).name)
    return total_memory()


MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_total_memory_is_the_machines(monkeypatch, tmp_path):
    """The machine's memory is the total without control groups, and if a group's limit is `max`."""
    assert MACHINE == limited_to(monkeypatch, tmp_path, None)
    assert MACHINE == limited_to(monkeypatch, tmp_path, "max\n")


def test_a_control_group_limits_the_total(monkeypatch, tmp_path):
    """A group's limit is the total if it is below the machine's memory, as in a container."""
    assert 1 << 20 == limited_to(monkeypatch, tmp_path, f"{1 << 20}\n")
    assert MACHINE == limited_to(monkeypatch, tmp_path, f"{1 << 62}\n")


def test_the_older_control_groups_count_too(monkeypatch, tmp_path):
    """The limit file of version 1 is read if there is none of version 2."""
    (tmp_path / "memory.limit_in_bytes").write_text(f"{1 << 21}\n")

    assert 1 << 21 == limited_to(monkeypatch, tmp_path, None)

"""How much memory there is, and when the alarm goes."""

import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given, strategies as st

from broker import alarms
from broker.alarms import MemoryAlarm, resident_memory, total_memory

SIZES = st.integers(0, 2**40)


@given(limit=SIZES, sizes=st.lists(SIZES))
def test_the_alarm_is_raised_above_the_limit(limit, sizes):
    """It is raised exactly while more than the limit is used, and each change is told once."""
    alarm = MemoryAlarm(limit)
    before = False
    for used in sizes:
        told = alarm.check(used)

        assert (used > limit, used) == (alarm.raised, alarm.used)
        assert (before != alarm.raised) == told
        before = alarm.raised


def test_a_limit_of_nothing_is_always_passed():
    """The limit 0, which administrators set to stop publishers, is passed by any process there is."""
    alarm = MemoryAlarm(0)

    assert alarm.check(resident_memory())
    assert alarm.raised


def test_resident_memory_is_the_kernels_figure():
    """The octets in use are those the kernel calls VmRSS."""
    program = (
        "from pathlib import Path; from broker.alarms import resident_memory\n"
        "kib = Path('/proc/self/status').read_text().partition('VmRSS:')[2].split()[0]\n"
        "print(resident_memory(), kib)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    octets, kib = map(int, done.stdout.split())

    assert abs(octets - 1024 * kib) < 1 << 20


def test_memory_in_use_is_seen_to_grow():
    """Octets that are written to count."""
    before = resident_memory()
    block = b"\x01" * (32 << 20)

    assert resident_memory() - before >= len(block) // 2


def limited_to(monkeypatch, directory: Path, text: str | None) -> int:
    """The total memory under a control group whose file of the limit says `text`; None: there is no such file."""
    if text is not None:
        (directory / "memory.max").write_text(text)
    monkeypatch.setattr(alarms, "Path", lambda name: directory / Path(name).name)
    return total_memory()


MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_total_memory_is_the_machines(monkeypatch, tmp_path):
    """Without control groups the machine's memory is the total, also where a group says `max`."""
    assert MACHINE == limited_to(monkeypatch, tmp_path, None)
    assert MACHINE == limited_to(monkeypatch, tmp_path, "max\n")


def test_a_control_group_limits_the_total(monkeypatch, tmp_path):
    """A group's limit is the total if it is less than the machine has, as it is in a container."""
    assert 1 << 20 == limited_to(monkeypatch, tmp_path, f"{1 << 20}\n")
    assert MACHINE == limited_to(monkeypatch, tmp_path, f"{1 << 62}\n")


def test_the_older_control_groups_count_too(monkeypatch, tmp_path):
    """The file of version 1 is read where there is none of version 2."""
    (tmp_path / "memory.limit_in_bytes").write_text(f"{1 << 21}\n")

    assert 1 << 21 == limited_to(monkeypatch, tmp_path, None)

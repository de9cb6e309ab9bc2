"""The broker's reaction to low memory or disk space."""

import logging

import pytest
from doubles.fakes import Clock

from leveret.broker.counters.sampling import Events
from leveret.broker.persistence.data_store import DiskUsage
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.server import resource_monitor
from leveret.broker.server.resource_monitor import ResourceMonitor

PLENTY, LITTLE = DiskUsage(10**12, 4096, 0), DiskUsage(10, 4096, 0)


class Host:
    def __init__(self) -> None:
        self.alarm = ""
        self.context = NodeContext()
        self.context.events = Events()
        self.reasons: list[str] = []
        self.relieved: list[int] = []
        self.failed: BaseException | None = None
        self.loop = self

    def set_alarm(self, reason: str) -> None:
        self.alarm = reason
        self.reasons.append(reason)

    def free_memory(self, octets: int) -> None:
        self.relieved.append(octets)

    def storage_failed(self, error: BaseException) -> None:
        self.failed = error


class Monitor:
    used = 0


class Store:
    """A disk whose free space a test sets; its reader answers when asked to."""

    def __init__(self) -> None:
        self.found = PLENTY
        self.monitor = Monitor()
        self.asked = []

    def disk_usage(self) -> DiskUsage:
        return self.found

    def measure(self, done) -> None:
        self.asked.append(done)


class Timer:
    def cancel(self) -> None:
        pass


class Done:
    """The result of a thread that is already complete."""

    def __init__(self, result) -> None:
        self.result = lambda: result

    def cancelled(self) -> bool:
        return False

    def add_done_callback(self, callback) -> None:
        self.callback = callback


class Loop(Clock):
    """A loop whose timers can be cancelled."""

    def call_later(self, seconds, callback):
        super().call_later(seconds, callback)
        entry = self.later[-1]
        timer = Timer()
        timer.cancel = lambda: self.later.remove(entry) if entry in self.later else None
        return timer

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[Done] = []

    def run_in_executor(self, _executor, function) -> Done:
        self.threads.append(Done(function()))
        return self.threads[-1]

    def due(self) -> None:
        """Advance to the time of the next timer."""
        self.now, callback = self.later.pop(0)
        callback()


class Pages:
    """An allocator that returns `free` bytes to the system on request, with objects of `taken` bytes at most."""

    def __init__(self) -> None:
        self.free = 0
        self.taken = 1 << 60
        self.asked = 0
        self.calibrated: list[int] = []

    def calibrate(self, resident: int) -> None:
        self.calibrated.append(resident)

    def release_pages(self) -> None:
        self.asked += 1

    def in_use(self, resident: int) -> int:
        return min(resident, self.taken)


class Watched:
    """A resource monitor and its environment."""

    def __init__(self) -> None:
        self.host, self.store, self.loop = Host(), Store(), Loop()
        self.pages = Pages()
        self.watch = ResourceMonitor(self.host, self.store, 1000, 50_000_000, self.pages)
        self.memory = 0

    def look(self, usage: DiskUsage) -> None:
        """Set what the next check of the disk finds."""
        self.loop.due()
        self.store.asked.pop()(usage, None)

    def use(self, octets: int) -> None:
        self.memory = octets
        self.watch.check_memory(0.0)

    def pass_seconds(self, seconds: int) -> None:
        """Let time pass, with a check in each second, and the result of its thread."""
        for _ in range(seconds):
            self.loop.now += 1
            self.watch.check_memory(self.loop.now)
            for done in self.loop.threads:
                done.callback(done)
            self.loop.threads.clear()


@pytest.fixture
def watched(monkeypatch, caplog) -> Watched:
    caplog.set_level(logging.WARNING, "leveret")
    found = Watched()
    monkeypatch.setattr(resource_monitor, "anonymous_memory", lambda: found.memory)
    found.watch.start(found.loop)
    return found


def test_publishers_go_on_when_all_is_there_again(watched, caplog):
    """Publishers are blocked until both of two alarms are cleared, and every change is logged."""
    watched.use(1001)
    watched.look(LITTLE)
    watched.use(0)
    watched.look(PLENTY)

    assert ["low on memory", "low on disk & memory", "low on disk", ""] == watched.host.reasons
    assert [
        "memory alarm raised: 1001 bytes used, limit 1000; publishers are blocked (low on memory)",
        "disk alarm raised: 10 bytes free, limit 50000000; publishers are blocked (low on disk & memory)",
        "memory alarm cleared: 0 bytes used, limit 1000; publishers are blocked (low on disk)",
        "disk alarm cleared: 1000000000000 bytes free, limit 50000000; publishers are unblocked",
    ] == caplog.messages
    assert [
        ("alarm_raised", "memory"),
        ("alarm_raised", "disk"),
        ("alarm_cleared", "memory"),
        ("alarm_cleared", "disk"),
    ] == [(event.kind, event.name) for event in watched.host.context.events.take()]


def test_what_is_short_at_the_start_blocks_from_the_start(monkeypatch):
    """The first check is made before clients may connect."""
    found = Watched()
    found.store.found = LITTLE
    monkeypatch.setattr(resource_monitor, "anonymous_memory", lambda: 2000)
    found.watch.start(found.loop)

    assert "low on disk & memory" == found.host.alarm


def test_what_queues_count_is_in_use(watched):
    """Memory of messages counts even if the kernel does not see it."""
    watched.store.monitor.used = 5000
    watched.use(10)

    assert "low on memory" == watched.host.alarm
    assert 5000 == watched.watch.memory.used


def test_memory_is_looked_at_once_a_second(watched):
    """Checks requested within a second of the last change nothing."""
    watched.watch.check_memory(100.0)
    watched.memory = 5000
    watched.watch.check_memory(100.5)
    before = watched.host.alarm
    watched.watch.check_memory(101.0)

    assert ("", "low on memory") == (before, watched.host.alarm)


def test_a_full_disk_is_reported_at_once_and_checked_soon(watched):
    """A full disk raises the alarm at once; a check within a second clears it once commits succeed."""
    watched.watch.report_full(True)

    assert ["low on disk"] == watched.host.reasons
    assert [watched.loop.now + 1] == [at for at, _ in watched.loop.later]
    watched.look(PLENTY)
    assert ["low on disk"] == watched.host.reasons
    watched.watch.report_full(False)
    assert ["low on disk"] == watched.host.reasons
    watched.look(PLENTY)
    assert ["low on disk", ""] == watched.host.reasons


def test_a_full_disk_during_a_look(watched):
    """An alarm raised while the reader checks does not start a second series of checks."""
    watched.loop.due()
    watched.watch.report_full(True)
    watched.store.asked.pop()(PLENTY, None)

    assert 1 == len(watched.loop.later)
    assert "low on disk" == watched.host.alarm


def test_a_disk_that_cannot_be_looked_at_is_broken(watched):
    """An error of the check is an error of the disk."""
    watched.loop.due()
    error = OSError(5, "Input/output error")
    watched.store.asked.pop()(None, error)

    assert error is watched.host.failed


def test_nothing_is_looked_at_after_the_end(watched):
    """A check under way when the broker stops has no effect."""
    watched.loop.due()
    watched.watch.stop()
    watched.store.asked.pop()(LITTLE, None)

    assert ("", []) == (watched.host.alarm, watched.loop.later)


def test_a_broker_without_a_disk_watches_its_memory(monkeypatch):
    """A broker without a disk checks its memory only."""
    host, loop = Host(), Loop()
    monkeypatch.setattr(resource_monitor, "anonymous_memory", lambda: 11)
    ResourceMonitor(host, None, 10, 10).start(loop)

    assert ("low on memory", []) == (host.alarm, loop.later)


def test_an_alarm_ends_with_its_cause_whatever_the_allocator_keeps(watched):
    """The alarm is cleared for good once objects take less than the limit, although the kernel's figure stays."""
    watched.memory = 2000
    watched.pass_seconds(3)
    assert ["low on memory"] == watched.host.reasons
    watched.pages.taken = 100
    watched.pass_seconds(3)
    assert ["low on memory", ""] == watched.host.reasons
    assert [2000] == watched.pages.calibrated
    watched.pass_seconds(10)
    assert ["low on memory", ""] == watched.host.reasons


def test_memory_in_use_again_raises_the_alarm_again(watched):
    """Memory above what the allocator keeps counts, and so do kept pages once they are used again."""
    watched.memory, watched.pages.taken = 2000, 100
    watched.pass_seconds(3)
    watched.memory, watched.pages.taken = 2901, 1001
    watched.pass_seconds(3)
    assert ["low on memory", "", "low on memory"] == watched.host.reasons
    watched.pages.taken = 100
    watched.pass_seconds(1)
    assert ["low on memory", "", "low on memory", ""] == watched.host.reasons
    watched.pages.taken = 1500
    watched.pass_seconds(2)
    assert ["low on memory", "", "low on memory", "", "low on memory"] == watched.host.reasons


def test_those_who_hold_much_are_closed_while_an_alarm_stands(watched):
    """From the second second on each check reports the excess over the clearing level, until there is none."""
    watched.memory = 2000
    watched.pass_seconds(2)
    before = list(watched.host.relieved)
    watched.pass_seconds(2)
    watched.memory = 10
    watched.pass_seconds(2)

    assert [] == before
    assert [1051, 1051] == watched.host.relieved


def test_pages_are_given_back_every_now_and_then(watched, monkeypatch):
    """Pages are returned after seconds without an alarm, later on a busy broker, and never at the initial level."""
    watched.watch.memory.limit = 1 << 40
    watched.memory = 90 << 20
    watched.pass_seconds(100)
    assert 0 == watched.pages.asked
    watched.memory = 110 << 20
    watched.pass_seconds(24)
    assert 3 == watched.pages.asked
    busy = iter(range(1000))
    monkeypatch.setattr(resource_monitor.time, "process_time", lambda: float(next(busy)))
    watched.pass_seconds(40)
    assert 5 == watched.pages.asked

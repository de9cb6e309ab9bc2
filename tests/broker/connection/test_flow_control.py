"""Flow control: when a publisher waits for a queue, and for how long."""

from types import SimpleNamespace
from typing import Any

import pytest

from leveret.broker.connection.flow_control import (
    BACKOFF_LIMIT,
    BACKOFF_SECONDS,
    DRAIN_SECONDS,
    HIGH,
    LIGHT_OCTETS,
    LOW,
    PACED_READ_LIMIT,
    PAUSE_SECONDS,
    FlowControl,
    Pause,
    congested,
)
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.storage.message import Message
from leveret.storage.queues.memory_queue import MemoryQueue

NOW = 100.0


class Consumer:
    """A consumer that never rejoins the rotation."""

    exclusive = cancelled = no_ack = False
    priority = 0

    def __init__(self, *, full: bool = False) -> None:
        self.outbox = SimpleNamespace(full=full, parked={})

    def wake(self) -> None:
        """Do nothing."""


class Driver:
    def __init__(self) -> None:
        self.read_limit = 65536
        self.pauses = 0

    def pause_reading(self) -> None:
        self.pauses += 1

    def resume_reading(self) -> None:
        self.pauses -= 1


@pytest.fixture
def queue() -> Queue:
    """A queue with a consumer that takes messages only when a test says so."""
    made = Queue("q", "/", MemoryQueue(), Turn())
    made.add_consumer(Consumer())
    return made


def fill(queue: Queue, count: int) -> None:
    """Make `count` messages ready."""
    queue.backing.purge()
    queue.backing.publish([Message(b"", b"", 1)] * count)


def test_a_backlog_that_is_worked_off_is_worth_a_pause(queue):
    """A queue is congested above so many ready messages, if it has consumers and pauses have had an effect."""
    fill(queue, HIGH)
    assert congested([queue], NOW) is None

    fill(queue, HIGH + 1)
    assert congested([queue], NOW) is queue
    queue.no_pause_until = NOW + 1
    assert congested([queue], NOW) is None
    assert congested([queue], NOW + 1) is queue
    queue.consumers.clear()
    assert congested([queue], NOW + 1) is None
    assert congested([], NOW) is None


def test_a_pause_ends_when_the_backlog_has_gone(queue):
    """A pause ends, in small reads, once the queue has run down, and does not end a second time."""
    driver = Driver()
    fill(queue, HIGH + 1)
    pause = Pause(queue, driver, 100)

    assert (1, PACED_READ_LIMIT) == (driver.pauses, driver.read_limit)
    queue.run()
    assert 1 == driver.pauses
    fill(queue, LOW)
    queue.run()
    assert (0, True) == (driver.pauses, pause.over)
    queue.run()
    pause.expire(NOW)
    assert (0, 0) == (driver.pauses, queue.ineffective_pauses)


def test_a_pause_ends_with_the_last_consumer(queue):
    """A pause ends when the last consumer leaves, as nobody reduces the backlog any more."""
    driver = Driver()
    fill(queue, HIGH + 1)
    Pause(queue, driver, 100)
    queue.consumers.clear()
    queue.run()

    assert 0 == driver.pauses


def test_a_pause_ends_with_the_queue(queue):
    """A deleted queue ends the pauses of its publishers."""
    driver = Driver()
    queue.consumers.clear()
    fill(queue, HIGH + 1)
    Pause(queue, driver, 100)
    queue.delete()

    assert 0 == driver.pauses


def test_pauses_without_use_become_rare(queue):
    """Each pause with hardly any deliveries doubles the time until the next, up to a limit."""
    fill(queue, HIGH + 1)
    seen = []
    for _ in range(12):
        driver = Driver()
        pause = Pause(queue, driver, 100)
        pause.expire(NOW)
        seen.append(queue.no_pause_until - NOW)

        assert 0 == driver.pauses

    assert seen[0] == pytest.approx(2 * BACKOFF_SECONDS)
    assert seen[1] == pytest.approx(4 * BACKOFF_SECONDS)
    assert seen[-1] == pytest.approx(BACKOFF_LIMIT)


@pytest.mark.parametrize(
    ("size", "delivered", "useful"), [(100, 250, True), (100, 200, False), (100_000, 5, True)]
)
def test_what_makes_a_pause_useful(queue, size, delivered, useful):
    """A pause was useful if consumers took a fair part of what a publisher can send of messages that large."""
    fill(queue, HIGH + 1)
    queue.ineffective_pauses = 3
    pause = Pause(queue, Driver(), size)
    queue.delivered += delivered
    pause.expire(NOW)

    assert (0 if useful else 4) == queue.ineffective_pauses
    assert (0.0 if useful else NOW) <= queue.no_pause_until


@pytest.mark.parametrize(("delivered", "useful"), [(20_000, True), (2_000, False)])
def test_a_consumer_with_a_full_socket_is_judged_by_more_than_one_pause(queue, delivered, useful):
    """A single pause without deliveries is not ineffective if the consumer's socket is full: it drains in bursts."""
    fill(queue, HIGH + 1)
    queue.consumers.clear()
    queue.add_consumer(Consumer(full=True))
    now = NOW
    while now < NOW + DRAIN_SECONDS - PAUSE_SECONDS / 2:
        pause = Pause(queue, Driver(), 100)
        pause.expire(now)
        now += PAUSE_SECONDS

        assert 0 == queue.ineffective_pauses

    queue.delivered += delivered  # between two pauses, when the socket had room
    pause = Pause(queue, Driver(), 100)
    pause.expire(now + PAUSE_SECONDS)
    assert (0 if useful else 1) == queue.ineffective_pauses


def test_publishers_wait_for_a_queue_that_is_behind(queue, monkeypatch):
    """A publisher waits for a queue that has to discard messages first, and its pause does not count as ineffective."""
    monkeypatch.setattr(Queue, "is_behind", True)
    queue.consumers.clear()
    driver = Driver()

    assert queue is congested([queue], NOW)
    pause = Pause(queue, driver, 100)
    pause.queue_ran(queue)
    assert 1 == driver.pauses
    pause.expire(NOW + PAUSE_SECONDS)
    assert (0, 0) == (driver.pauses, queue.ineffective_pauses)
    pause = Pause(queue, driver, 100)
    monkeypatch.setattr(Queue, "is_behind", False)
    pause.queue_ran(queue)
    assert (0, True) == (driver.pauses, pause.over)
    assert congested([queue], NOW) is None


class Host:
    """A server whose disk a test makes slow."""

    def __init__(self) -> None:
        self.loop = self
        self.turn = Turn()
        self.context = NodeContext()
        self.is_slow = False
        self.waits: list[tuple[bool, bool]] = []
        self.later: list[Any] = []

    def now(self) -> float:
        return NOW

    def call_later(self, _seconds: float, callback: Any) -> None:
        self.later.append(callback)

    def wait_for_disk(
        self, _callback: Any, *, publishes: bool = True, declares: bool = False, is_light: bool = False
    ) -> bool:
        self.waits.append((publishes or declares, is_light))
        return self.is_slow


def controlled(**state: Any) -> tuple[Host, Any, FlowControl]:
    host, driver = Host(), Driver()
    driver.resumed = 0
    usual = {"stalled": False, "published": True, "published_to": (), "consumes": False, "message_size": 100}
    usual |= {"has_declared": False, "paused_at": 0.0, "pace": None}
    driver.connection = SimpleNamespace(**(usual | state))

    def process_buffered() -> None:
        driver.resumed += 1

    driver.process_buffered = process_buffered
    return host, driver, FlowControl(host, driver)


@pytest.mark.parametrize("stalled", [False, True])
def test_a_publisher_waits_for_a_slow_disk(stalled):
    """A publisher is not read until the disk has caught up, and an unprocessed rest of a read is processed then."""
    host, driver, flow = controlled(stalled=stalled)
    host.is_slow = True
    flow.after_read(LIGHT_OCTETS + 1)

    assert (1, float("inf"), 1) == (
        driver.pauses,
        driver.connection.paused_at,
        host.context.totals.pauses_disk,
    )
    assert [(True, False)] == host.waits
    flow.disk_caught_up()
    assert (int(stalled), NOW, int(stalled)) == (driver.pauses, driver.connection.paused_at, driver.resumed)


def test_a_connection_that_declares_waits_for_a_slow_disk():
    """A connection that was stopped because of its declarations waits for the disk, the next time only if it is again."""
    host, driver, flow = controlled(stalled=True, published=False, has_declared=True)
    host.is_slow = True
    flow.after_read(100)
    flow.disk_caught_up()
    host.is_slow = False
    flow.after_rest()

    assert [(True, False), (False, False)] == host.waits
    assert 1 == driver.resumed


def test_light_publishers_are_distinguished_by_what_they_send_in_one_read():
    """A read of up to `LIGHT_OCTETS` counts as light; the rest of an earlier one does not."""
    host, _, flow = controlled()
    for size in (LIGHT_OCTETS, LIGHT_OCTETS + 1, 0):
        flow.after_read(size)

    assert [(True, True), (True, False), (True, False)] == host.waits


def test_input_left_over_is_processed_after_the_deferred_queues():
    """A connection that could not process all of a read is not read until the deferred queues have run."""
    host, driver, flow = controlled(stalled=True, published=False)
    flow.after_read(100)

    assert (1, 0, [(False, False)]) == (driver.pauses, driver.resumed, host.waits)
    host.turn.slices.run()
    assert 1 == driver.resumed
    driver.connection.stalled = False
    flow.after_rest()
    assert 0 == driver.pauses


@pytest.mark.parametrize("consumes", [False, True])
def test_a_publisher_to_a_congested_queue_is_paused_unless_it_consumes(queue, consumes):
    """A publisher is paused for a queue with a backlog; one that also consumes is not, as its acks must be read."""
    fill(queue, HIGH + 1)
    host, driver, flow = controlled(published_to=[queue], consumes=consumes)
    flow.after_read(100)

    assert (int(not consumes), host.context.totals.pauses_queue) == (driver.pauses, int(not consumes))
    for callback in host.later:
        callback()
    assert 0 == driver.pauses


def test_the_read_limit_grows_again_with_full_reads():
    """Each read that fills a reduced buffer doubles the next one, up to the size at the beginning."""
    _, driver, flow = controlled()
    largest, driver.read_limit = driver.read_limit, PACED_READ_LIMIT
    flow.after_read(PACED_READ_LIMIT - 1)
    assert PACED_READ_LIMIT == driver.read_limit
    for _ in range(5):
        flow.after_read(driver.read_limit)
    assert largest == driver.read_limit

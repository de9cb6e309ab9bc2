"""Flow control: when a publisher waits for a queue, and for how long."""

from types import SimpleNamespace

import pytest

from leveret.broker.connection.flow_control import (
    DRAIN_SECONDS,
    FUTILE_LIMIT,
    FUTILE_SECONDS,
    HIGH,
    LOW,
    PAUSE_SECONDS,
    SMALL_APPETITE,
    Pause,
    congested,
)
from leveret.broker.queue.queue import Queue
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


class Reader:
    def __init__(self) -> None:
        self.appetite = 65536
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
    """A queue is congested above so many ready messages, if it has consumers and pauses were not futile."""
    fill(queue, HIGH)
    assert congested([queue], NOW) is None

    fill(queue, HIGH + 1)
    assert congested([queue], NOW) is queue
    queue.unpaced_until = NOW + 1
    assert congested([queue], NOW) is None
    assert congested([queue], NOW + 1) is queue
    queue.consumers.clear()
    assert congested([queue], NOW + 1) is None
    assert congested([], NOW) is None


def test_a_pause_ends_when_the_backlog_has_gone(queue):
    """A pause ends, in small reads, once the queue has run down, and does not end a second time."""
    reader = Reader()
    fill(queue, HIGH + 1)
    pause = Pause(queue, reader, 100)

    assert (1, SMALL_APPETITE) == (reader.pauses, reader.appetite)
    queue.run()
    assert 1 == reader.pauses
    fill(queue, LOW)
    queue.run()
    assert (0, True) == (reader.pauses, pause.over)
    queue.run()
    pause.expire(NOW)
    assert (0, 0) == (reader.pauses, queue.futile_pauses)


def test_a_pause_ends_with_the_last_consumer(queue):
    """A pause ends when the last consumer leaves, as nobody reduces the backlog any more."""
    reader = Reader()
    fill(queue, HIGH + 1)
    Pause(queue, reader, 100)
    queue.consumers.clear()
    queue.run()

    assert 0 == reader.pauses


def test_a_pause_ends_with_the_queue(queue):
    """A deleted queue ends the pauses of its publishers."""
    reader = Reader()
    queue.consumers.clear()
    fill(queue, HIGH + 1)
    Pause(queue, reader, 100)
    queue.delete()

    assert 0 == reader.pauses


def test_pauses_without_use_become_rare(queue):
    """Each pause with hardly any deliveries doubles the time until the next, up to a limit."""
    fill(queue, HIGH + 1)
    seen = []
    for _ in range(12):
        reader = Reader()
        pause = Pause(queue, reader, 100)
        pause.expire(NOW)
        seen.append(queue.unpaced_until - NOW)

        assert 0 == reader.pauses

    assert seen[0] == pytest.approx(2 * FUTILE_SECONDS)
    assert seen[1] == pytest.approx(4 * FUTILE_SECONDS)
    assert seen[-1] == pytest.approx(FUTILE_LIMIT)


@pytest.mark.parametrize(
    ("size", "delivered", "useful"), [(100, 250, True), (100, 200, False), (100_000, 5, True)]
)
def test_what_makes_a_pause_useful(queue, size, delivered, useful):
    """A pause was useful if consumers took a fair part of what a publisher can send of messages that large."""
    fill(queue, HIGH + 1)
    queue.futile_pauses = 3
    pause = Pause(queue, Reader(), size)
    queue.delivered += delivered
    pause.expire(NOW)

    assert (0 if useful else 4) == queue.futile_pauses
    assert (0.0 if useful else NOW) <= queue.unpaced_until


@pytest.mark.parametrize(("delivered", "useful"), [(20_000, True), (2_000, False)])
def test_a_consumer_with_a_full_socket_is_judged_by_more_than_one_pause(queue, delivered, useful):
    """A single pause without deliveries is not futile if the consumer's socket is full: it drains in bursts."""
    fill(queue, HIGH + 1)
    queue.consumers.clear()
    queue.add_consumer(Consumer(full=True))
    now = NOW
    while now < NOW + DRAIN_SECONDS - PAUSE_SECONDS / 2:
        pause = Pause(queue, Reader(), 100)
        pause.expire(now)
        now += PAUSE_SECONDS

        assert 0 == queue.futile_pauses

    queue.delivered += delivered  # between two pauses, when the socket had room
    pause = Pause(queue, Reader(), 100)
    pause.expire(now + PAUSE_SECONDS)
    assert (0 if useful else 1) == queue.futile_pauses


def test_publishers_wait_for_a_queue_that_is_behind(queue, monkeypatch):
    """A publisher waits for a queue that has to discard messages first, and its pause does not count as futile."""
    monkeypatch.setattr(Queue, "is_behind", True)
    queue.consumers.clear()
    reader = Reader()

    assert queue is congested([queue], NOW)
    pause = Pause(queue, reader, 100)
    pause.queue_ran(queue)
    assert 1 == reader.pauses
    pause.expire(NOW + PAUSE_SECONDS)
    assert (0, 0) == (reader.pauses, queue.futile_pauses)
    pause = Pause(queue, reader, 100)
    monkeypatch.setattr(Queue, "is_behind", False)
    pause.queue_ran(queue)
    assert (0, True) == (reader.pauses, pause.over)
    assert congested([queue], NOW) is None

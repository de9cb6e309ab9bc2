"""Publishes that wait too long for their confirms, and queues that would never confirm them."""

import signal
from dataclasses import dataclass, field

import pika
import pika.exceptions
import pytest
from doubles.fakes import Client, DiskNode, Node, queue_declare
from hypothesis import given, strategies as st
from processes.running import serving

from leveret.broker.amqp.commands import Basic, Confirm, make
from leveret.broker.statistics.rows import queue_row
from leveret.confirm.channel_confirms import ConfirmTimeouts
from leveret.confirm.deadlock import TRAP_SECONDS, is_forsaken, is_trapped

TIMEOUT = 30.0
AWAITED = {"x-confirm-mode": ("longstr", "consumer-ack")}
LIGHT = {"x-confirm-mode": ("longstr", "consumer-ack-light")}


@given(
    script=st.lists(st.one_of(st.integers(1, 500).map(float), st.floats(0.5, 20.0)), max_size=60),
    timeout=st.sampled_from((0.001, 5.0, 60.0)),
)
def test_it_is_never_early_and_a_little_late_at_most(script, timeout):
    """Promises called overdue are older than the timeout, the others are hardly older, and marks are few."""
    ages = ConfirmTimeouts()
    given_out: dict[int, float] = {}
    now, last, done, longest = 1000.0, 0, 0, 0.0
    for step in script:
        if step.is_integer():
            for _ in range(int(step)):
                last += 1
                given_out[last] = now
            continue
        now += step
        longest = max(longest, step)
        found = ages.overdue(now, last, timeout)
        assert not found or now - given_out[found] > timeout
        done = max(done, found)
        if done < last:
            assert now - given_out[done + 1] <= timeout + 2 * longest + timeout / 1000
    assert 1002 >= len(ages._times) == len(ages._numbers)


def wait(client: Client, seconds: float) -> list[str]:
    """Time passes, and the server looks at everything; what the client is sent."""
    node = client.node
    for _ in range(round(seconds)):
        node.clock.now += 1
        node._overdue.run(node.now())
        node._queue_checks.run(node.now())
    node.run_turn()
    return client.sent()


def confirming(node: Node) -> Client:
    """A client whose channel is in confirm mode."""
    client = Client(node)
    client.ask(Confirm.Select())
    return client


@pytest.mark.parametrize("arguments", [AWAITED, LIGHT])
def test_what_nobody_consumes_is_nacked_in_time(arguments):
    """A waiting message is nacked once, alone, and only if the timeout is set; it stays, and has no later verdict."""
    client = confirming(Node(confirm_timeout=TIMEOUT))
    client.declare("q", arguments=arguments)
    client.publish("q", b"one")
    assert [] == wait(client, 20)
    client.publish("q", b"two")
    assert [] == wait(client, 9)

    assert ["1 basic.nack delivery_tag=1 requeue"] == wait(client, 4)
    assert ["1 basic.nack delivery_tag=2 requeue"] == wait(client, 20)
    client.consume("q")
    client.sent()
    client.send(make(Basic.Ack, 2, True))
    client.publish("q", b"three")
    client.sent()
    client.send(make(Basic.Nack, 3, False, False))
    assert ["1 basic.ack delivery_tag=3"] == client.sent()
    assert [] == wait(client, 100)


def test_without_a_timeout_publishers_wait_for_ever():
    """Publishers wait without a limit by default."""
    client = confirming(Node())
    client.declare("q", arguments=AWAITED)
    client.publish("q", b"one")

    assert [] == wait(client, 10_000)
    assert 1 == client.connection.channels[1].confirms.unconfirmed_count


def test_a_number_that_was_given_up_is_not_nacked_again():
    """A number that was given up is not nacked again when its queue is purged, which nacks the others."""
    client = confirming(Node(confirm_timeout=TIMEOUT))
    client.declare("q", arguments=AWAITED)
    client.publish("q", b"one")
    assert ["1 basic.nack delivery_tag=1 requeue"] == wait(client, 33)
    client.publish("q", b"two")
    client.node.vhosts["/"].queues["q"].purge()
    client.node.run_turn()

    assert ["1 basic.nack delivery_tag=2 requeue"] == client.sent()


def test_the_disk_may_be_too_slow_as_well(tmp_path):
    """Standard confirms have the same timeout, and a commit that comes too late confirms only the others."""
    node = DiskNode(tmp_path, confirm_timeout=TIMEOUT)
    client = confirming(node)
    client.send(queue_declare("q", durable=True))
    node.commit()
    client.sent()
    client.publish("q", b"one", delivery_mode=2)
    assert ["1 basic.nack delivery_tag=1 requeue"] == wait(client, 33)
    client.publish("q", b"two", delivery_mode=2)
    node.commit()

    assert ["1 basic.ack delivery_tag=2"] == client.sent()
    node.disk.close()


def test_a_publisher_is_nacked_on_a_real_connection(tmp_path):
    """A client in confirm mode is nacked without any other traffic; the broker's last words have the publish."""
    settings = ("--set", "confirm.mode=consumer-ack", "--set", "confirm.timeout=1ms")
    with serving(tmp_path, *settings) as running:
        connection = pika.BlockingConnection(pika.ConnectionParameters(*running.address))
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", queue, b"one")
        assert 1 == channel.queue_declare(queue, passive=True).method.message_count
        connection.close()
        code, log, _ = running.stopped_by(signal.SIGTERM)
    assert 0 == code
    assert "totals: published=1 delivered=0 acked=0 cpu_seconds=" in log


# -- the trap -----------------------------------------------------------------------------------------------------


@dataclass
class Consumer:
    unacked: int = 1
    room: int = 1


@dataclass
class Promises:
    open_count: int = 1
    ready_count: int = 0


@dataclass
class Queue:
    awaiting: Promises | None = field(default_factory=Promises)
    consumers: list[Consumer] = field(default_factory=lambda: [Consumer()])
    published: int = 1
    acked: int = 0
    deadlock_state: object = None


def reported(queue: Queue, seconds: int, start: float = 0.0) -> list[int]:
    """Return the seconds after which a deadlock is reported, with a look each second."""
    return [second for second in range(seconds) if is_trapped(queue, start + second)]


def test_a_trap_is_reported_once():
    """A deadlock is reported as soon as nothing has moved for long enough, and not again."""
    assert [TRAP_SECONDS] == reported(Queue(), 100)


@pytest.mark.parametrize(
    "queue",
    [
        Queue(awaiting=None),
        Queue(awaiting=Promises(open_count=0)),
        Queue(awaiting=Promises(ready_count=1)),
        Queue(consumers=[]),
        Queue(consumers=[Consumer(room=0)]),
        Queue(consumers=[Consumer(unacked=0), Consumer(room=0)]),
    ],
)
def test_what_else_stands_still_is_no_trap(queue):
    """A queue is not deadlocked if no publisher waits, something can be delivered, or no consumer could have more."""
    assert [] == reported(queue, 100)


def test_what_moves_is_no_trap():
    """A publish or an ack restarts the time."""
    queue = Queue()
    for second in range(0, 50, 5):
        queue.published += 1
        assert [] == reported(queue, 5, second)
    for second in range(50, 100, 5):
        queue.acked += 1
        assert [] == reported(queue, 5, second)
    assert [5] == reported(queue, 20, 100)


def test_a_queue_of_slow_jobs_is_reported_once():
    """A queue of slow jobs looks deadlocked for a while with each of them, and is reported once."""
    queue = Queue()
    assert [10] == reported(queue, 20)
    for second in range(20, 200, 20):
        queue.acked += 1
        queue.awaiting.open_count = 0
        assert [] == reported(queue, 5, second)
        queue.published += 1
        queue.awaiting.open_count = 1
        assert [] == reported(queue, 15, second + 5)


def test_a_trap_that_opens_and_closes_is_not_reported_again():
    """A deadlock that ends for want of room, without an ack, is not reported again when it is back."""
    queue = Queue()
    assert [10] == reported(queue, 20)
    queue.consumers[0].room = 0
    assert [] == reported(queue, 20, 20)
    queue.consumers[0].room = 1
    assert [] == reported(queue, 20, 40)


@pytest.mark.parametrize("arguments", [AWAITED, LIGHT])
def test_the_log_names_the_queue_and_what_to_do(arguments, caplog):
    """One warning for a publisher and a consumer that wait for each other, in both modes; none once it has acked."""
    client = confirming(Node())
    client.declare("small window", arguments=arguments)
    client.consume("small window")
    for body in (b"one", b"two"):
        client.publish("small window", body)
    client.sent()
    assert [] == wait(client, 40)

    (warning,) = caplog.messages
    assert warning.startswith(
        "queue 'small window' in vhost '/' appears deadlocked: 2 publishes await consumer acks"
    )
    assert all(advice in warning for advice in ("windows of unconfirmed messages", "confirm.timeout"))
    client.send(make(Basic.Ack, 2, True))
    assert ["1 basic.ack delivery_tag=2 multiple"] == client.sent()
    wait(client, 40)
    assert [warning] == caplog.messages


# -- no consumer --------------------------------------------------------------------------------------------------


def test_a_missing_consumer_is_reported_once_each_time():
    """A queue whose publishers wait is reported when it has had no consumer for a while, and again after it had one."""
    queue = Queue(consumers=[])
    assert [TRAP_SECONDS] == [second for second in range(50) if is_forsaken(queue, float(second))]
    queue.published += 1  # does not begin anew
    assert [] == [second for second in range(50, 90) if is_forsaken(queue, float(second))]
    queue.consumers.append(Consumer())
    assert not is_forsaken(queue, 90.0)
    queue.consumers.clear()
    assert [101] == [second for second in range(91, 150) if is_forsaken(queue, float(second))]


@pytest.mark.parametrize("queue", [Queue(), Queue(awaiting=None), Queue(awaiting=Promises(0), consumers=[])])
def test_who_lacks_no_consumer(queue):
    """A queue that has a consumer, or for which no publisher waits."""
    assert not any(is_forsaken(queue, float(second)) for second in range(50))


@pytest.mark.parametrize("arguments", [AWAITED, LIGHT])
def test_a_missing_consumer_is_told(arguments, caplog):
    """The log says it once, the explanation and the metric while it lasts; all is quiet when a consumer has come."""
    node = Node()
    client = confirming(node)
    client.declare("lonely", arguments=arguments)

    def told() -> tuple[list[str], float]:
        steps = node.administration.explaining.queue(None, "/", "lonely")
        while True:
            try:
                next(steps)
            except StopIteration as stopped:
                found = stopped.value["troubles"]
                return found, queue_row(node.vhosts["/"].queues["lonely"]).levels.forsaken

    before = told()
    for _ in range(20):
        client.publish("lonely", b"x")
    wait(client, 40)
    (warning,) = caplog.messages
    (explained,), forsaken = told()

    assert warning.startswith(
        "queue 'lonely' in vhost '/' has no consumer. Publishes that wait for the ack of one: 20,"
    )
    assert explained.startswith(
        "publishers wait for a consumer (20 ready messages, 0 unacked, 20 unconfirmed): "
    )
    assert (([], 0), 1) == (before, forsaken)

    client.consume("lonely", no_ack=True)
    wait(client, 40)

    assert ([], 0) == told()
    assert [warning] == caplog.messages

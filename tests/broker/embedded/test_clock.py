"""The clock of an embedded broker: what a client sees when it is stopped and advanced."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pika
import pytest
from conformance.wire import Client, ClosedError
from hypothesis import given, settings, strategies as st

import leveret
from leveret.broker.network.socket_driver import MANY

SECOND = 1000
DELAY_EXCHANGE = {"arguments": {"x-delayed-type": "fanout"}}


@pytest.fixture
def broker():
    with leveret.Broker() as running:
        yield running


def test_messages_expire(broker, connect):
    """A message expires when the clock is advanced by its TTL, and not before."""
    broker.clock.freeze()
    channel = connect(broker).channel()
    channel.queue("short", arguments={"x-message-ttl": 60 * SECOND})
    channel.queue("long", arguments={"x-message-ttl": 60 * SECOND + 1})
    channel.put("short", b"s")
    channel.put("long", b"l")

    broker.clock.advance(seconds=59.999)
    before = channel.ready("short", 1)
    broker.clock.advance(timedelta(milliseconds=1))

    assert 1 == before
    assert [0, 1] == [channel.ready("short"), channel.ready("long", 1)]


def test_confirms_that_wait_for_others_are_sent_when_advance_returns(broker, connect):
    """A confirm among many sockets, of a channel with many open ones, is on its way when `advance` returns."""
    channels = [connect(broker).channel() for _ in range(MANY + 2)]
    publisher, consumer = channels[0], channels[1]
    publisher.queue("q", arguments={"x-confirm-mode": "consumer-ack"})
    consumer.consume("q")
    publisher.call("confirm.select")
    for number in range(8):
        publisher.publish("", "q", b"%d" % number)
    tags = [consumer.deliver().delivery_tag for _ in range(8)]
    for each in channels[2:]:
        each.sync()
    broker.clock.freeze()
    consumer.send("basic.ack", delivery_tag=tags[0])
    broker.clock.advance(0)

    assert 1 == publisher.receive("basic.ack", timeout=0.05).delivery_tag


def test_everything_is_done_when_advance_returns(broker, connect):
    """An expired message is dead-lettered, delivered, and on its way to the client when `advance` returns."""
    channel = connect(broker).channel()
    channel.queue("dead")
    channel.queue(
        "waiting",
        arguments={
            "x-message-ttl": 300 * SECOND,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        },
    )
    channel.consume("dead", no_ack=True)
    channel.publish("", "waiting", b"late")  # without a confirm: it may not even be read yet

    broker.clock.advance(minutes=5)

    assert b"late" == channel.deliver(timeout=5).body


def test_a_chain_of_expirations_takes_its_time(broker, connect):
    """A message that has expired begins its time in the next queue then: two queues of one minute need two minutes."""
    broker.clock.freeze()
    channel = connect(broker).channel()
    for name, following in (("one", "two"), ("two", "end")):
        arguments = {
            "x-message-ttl": 60 * SECOND,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": following,
        }
        channel.queue(name, arguments=arguments)
    channel.queue("end")
    channel.put("one", b"m")

    broker.clock.advance(119)
    before = channel.ready("two", 1), channel.ready("end")
    broker.clock.advance(1)

    assert (1, 0) == before
    assert 1 == channel.ready("end", 1)


def test_unused_queues_expire(broker, connect):
    """A queue with x-expires is deleted when the clock passes that time."""
    channel = connect(broker).channel()
    channel.queue("unused", arguments={"x-expires": 3600 * SECOND})

    broker.clock.advance(hours=1)

    with pytest.raises(ClosedError, match="404"):
        channel.queue("unused", passive=True)


def test_delayed_messages_are_routed(broker, connect):
    """A delayed message is routed when its delay is over."""
    channel = connect(broker).channel()
    channel.exchange("later", "x-delayed-message", **DELAY_EXCHANGE)
    channel.queue("q")
    channel.call("queue.bind", queue="q", exchange="later")
    channel.put("", b"m", exchange="later", headers={"x-delay": 86_400 * SECOND})

    broker.clock.advance(hours=23)
    before = channel.ready("q")
    broker.clock.advance(days=1)

    assert 0 == before
    assert 1 == channel.ready("q", 1)


def test_a_consumer_times_out(broker, connect):
    """A consumer that does not ack for half an hour is cancelled, and the message is in the queue again."""
    client = connect(broker)
    channel, other = client.channel(), client.channel(2)
    other.queue("q")
    channel.consume("q")
    other.put("q", b"m")
    channel.deliver()

    broker.clock.advance(minutes=29)
    channel.sync()
    broker.clock.advance(minutes=1, seconds=3)

    channel.receive("basic.cancel", timeout=5)
    assert b"m" == other.get("q")


def test_an_unconfirmed_publish_times_out(connect):
    """A publish that waits for its consumer's ack is nacked after `confirm.timeout`."""
    config = {"confirm.mode": "consumer-ack", "confirm.timeout": "1h"}
    with leveret.Broker(config=config) as broker:
        channel = connect(broker).channel()
        channel.queue("q")
        channel.call("confirm.select")
        channel.publish("", "q", b"m")

        broker.clock.advance(hours=1, seconds=2)

        assert "basic.nack" == channel.receive("basic.ack", "basic.nack").name


def test_a_client_that_says_nothing_is_disconnected(broker, connect, dial):
    """A client that does not log in within `handshake_timeout` is disconnected."""
    broker.clock.freeze()
    silent = dial(broker)
    connect(broker).channel().sync()  # until the broker has accepted the first one

    broker.clock.advance(11)

    assert b"" == silent.read_rest(timeout=5)


def test_a_refused_client_is_disconnected_after_a_delay(broker, dial):
    """The delay after a wrong password follows the clock."""
    broker.clock.freeze()
    guessing = dial(broker)
    guessing.begin()
    guessing.start_ok(password="wrong", capabilities={})

    broker.clock.advance(10)

    assert b"" == guessing.read_rest(timeout=5)


def test_a_frozen_clock_stands_still(broker, connect):
    """Nothing expires while the clock is frozen, however much time passes; after `resume` it runs on."""
    channel = connect(broker).channel()
    broker.clock.freeze()
    frozen_at = broker.clock.now
    channel.queue("q", arguments={"x-message-ttl": 1})
    channel.put("q", b"m")
    latest = time.monotonic() + 0.02
    while time.monotonic() < latest:
        channel.sync()

    assert broker.clock.is_frozen
    assert frozen_at == broker.clock.now
    assert 1 == channel.ready("q", 1)
    broker.clock.resume()
    assert not broker.clock.is_frozen
    assert 0 == channel.ready("q", 0, within=5)
    assert broker.clock.now > frozen_at


def test_an_advanced_clock_runs_on(broker):
    """A clock that is not frozen runs on from the time to which it was advanced."""
    broker.clock.advance(days=365)

    ahead = broker.clock.now - datetime.now(UTC)
    assert timedelta(days=364) < ahead < timedelta(days=366)
    assert not broker.clock.is_frozen


def test_heartbeats_of_clients_are_not_expected(broker, connect):
    """Clients are not disconnected because the clock is advanced, unless their heartbeats are to be judged."""
    client = connect(broker, heartbeat=10)
    channel = client.channel()
    broker.clock.freeze()

    broker.clock.advance(days=1)
    for _ in range(60):
        broker.clock.advance(seconds=1)
    channel.sync()
    broker.clock.advance(seconds=60, heartbeats=True)

    client.read_rest(timeout=5)  # until the end of the stream


def test_clients_get_heartbeats_while_the_clock_stands(broker, connect):
    """A client with heartbeats gets them in real time from a broker whose clock is frozen."""
    broker.clock.freeze()
    client = connect(broker, heartbeat=1)

    assert 8 == client.read_frame(timeout=5)[0]


def test_clients_get_a_heartbeat_when_the_clock_stops_and_when_it_runs_on(broker, connect):
    """Time that passed before, by the other clock, does not make the silence longer than half an interval."""
    client = connect(broker, heartbeat=60)
    for change in (broker.clock.freeze, broker.clock.resume):
        change()

        assert 8 == client.read_frame(timeout=5)[0]


def test_a_clock_does_not_go_back(broker):
    """A negative time is refused."""
    with pytest.raises(ValueError, match="cannot go back"):
        broker.clock.advance(minutes=-1)


def test_a_closed_broker_has_no_time():
    """The clock of a closed broker can neither be stopped nor advanced."""
    broker = leveret.Broker()
    for act in (broker.clock.freeze, broker.clock.resume, broker.clock.advance):
        with pytest.raises(leveret.ClosedBrokerError):
            act()


def test_a_broker_with_a_frozen_clock_can_be_stopped(tmp_path, connect):
    """A broker on a directory stops although its clock is frozen."""
    with leveret.Broker(data_dir=tmp_path / "data") as broker:
        channel = connect(broker).channel()
        channel.queue("q", durable=True)
        channel.put("q", b"m", delivery_mode=2)
        broker.clock.freeze()


def test_durable_messages_expire_into_other_queues(tmp_path, connect):
    """With a data directory the dead letters are in their queue, and on disk, when `advance` returns."""
    with leveret.Broker(data_dir=tmp_path / "data") as broker:
        channel = connect(broker).channel()
        channel.queue("dead", durable=True)
        arguments = {
            "x-message-ttl": 60 * SECOND,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        }
        channel.queue("q", durable=True, arguments=arguments)
        channel.put("q", *[b"%d" % number for number in range(50)], delivery_mode=2)

        broker.clock.advance(minutes=1)

        assert 50 == channel.call("queue.declare", queue="dead", passive=True).message_count
        assert [b"%d" % number for number in range(50)] == [channel.get("dead") for _ in range(50)]


def test_paged_messages_expire(tmp_path, connect):
    """Messages that are on disk only are read, dead-lettered and delivered before `advance` returns."""
    config = {"storage.target_ram_count": "0"}
    with leveret.Broker(data_dir=tmp_path / "data", config=config) as broker:
        channel = connect(broker).channel()
        channel.queue("dead")
        arguments = {
            "x-message-ttl": 60 * SECOND,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
        }
        channel.queue("q", arguments=arguments)
        channel.put("q", *[b"%d" % number + bytes(5000) for number in range(200)])

        broker.clock.advance(minutes=1)

        assert 200 == channel.call("queue.declare", queue="dead", passive=True).message_count


async def test_a_clock_in_a_running_loop():
    """The clock of an `AsyncBroker` is advanced with `await`."""

    def publish(url):
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.queue_declare("q", arguments={"x-message-ttl": 60_000})
            channel.basic_publish("", "q", b"m")

    def count(url):
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            return connection.channel().queue_declare("q", passive=True).method.message_count

    async with leveret.AsyncBroker() as broker:
        broker.clock.freeze()
        await asyncio.to_thread(publish, broker.url)
        await broker.clock.advance(59)
        before = await asyncio.to_thread(count, broker.url)
        await broker.clock.advance(timedelta(seconds=1))

        assert (1, 0) == (before, await asyncio.to_thread(count, broker.url))


# -- steps ---------------------------------------------------------------------------------------------------------------

LENGTH = 60 * SECOND
TIMES = st.lists(st.integers(1, LENGTH - 3 * SECOND), min_size=3, max_size=12, unique=True)
KINDS = st.lists(st.sampled_from(("ttl", "delay", "timeout")), min_size=12, max_size=12)
EXPIRIES = st.lists(st.none() | st.integers(1, LENGTH), min_size=12, max_size=12)
STEPS = st.lists(st.integers(1, LENGTH), max_size=12)


def expected(plan):
    """Return what a client sees, in order: bodies that are delivered, numbers of channels whose consumer is cancelled."""
    events = []
    for number, (kind, due, expiry) in enumerate(plan, 2):
        if kind == "timeout":
            # looked at each second: the first time the delivery is marked, then its age must exceed the timeout
            events.append(((due // SECOND + 2) * SECOND, 1, number, number))
        elif kind == "delay" or expiry is None or due < expiry:
            events.append((due, 0, 0, b"%d" % number))
    return [event for *_, event in sorted(events)]


def seen(plan, steps):
    """Return what a client sees while the clock is advanced in these steps."""
    with leveret.Broker() as broker:
        broker.clock.freeze()
        phase = broker._core.time.elapsed % 1_000_000_000
        broker.clock.advance((1_000_000_000 - phase) / 1e9)  # timeouts are judged at full seconds
        client = Client(("127.0.0.1", broker.port)).login()
        first = client.channel()
        first.queue("dead")
        first.consume("dead", no_ack=True)
        first.exchange("later", "x-delayed-message", **DELAY_EXCHANGE)
        first.call("queue.bind", queue="dead", exchange="later")
        for number, (kind, due, expiry) in enumerate(plan, 2):
            channel, body = client.channel(number), b"%d" % number
            if kind == "ttl":
                arguments = {
                    "x-message-ttl": due,
                    "x-dead-letter-exchange": "",
                    "x-dead-letter-routing-key": "dead",
                }
                if expiry is not None:
                    arguments["x-expires"] = expiry
                channel.queue(f"q{number}", arguments=arguments)
                channel.put(f"q{number}", body)
            elif kind == "delay":
                channel.put("", body, exchange="later", headers={"x-delay": due})
            else:
                channel.queue(f"q{number}")
                channel.consume(f"q{number}", arguments={"x-consumer-timeout": due})
                channel.put(f"q{number}", body)
                channel.deliver()
        for step in steps:
            broker.clock.advance(step / SECOND)
        found = []
        client.send(1, "channel.flow", active=True)
        while (message := client._next(5.0)).name != "channel.flow-ok":
            found.append(message.channel if message.name == "basic.cancel" else message.body)
        client.close_socket()
        return found


@settings(max_examples=15, deadline=None)
@given(times=TIMES, kinds=KINDS, expiries=EXPIRIES, steps=STEPS)
def test_the_number_of_steps_does_not_matter(times, kinds, expiries, steps):
    """Messages expire, delays end and consumers time out in the order of due times, in one advance or in many."""
    plan = [
        (kind, due, None if expiry == due else expiry)
        for kind, due, expiry in zip(kinds, times, expiries, strict=False)
    ]
    ends = [*sorted({step for step in steps if step < LENGTH}), LENGTH]
    many = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]

    assert expected(plan) == seen(plan, [LENGTH])
    assert expected(plan) == seen(plan, many)

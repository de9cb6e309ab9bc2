"""Faults on demand: what a client sees of each, and what the broker holds true meanwhile."""

import asyncio
import socket
import weakref

import pika
import pytest
from conformance.wire import ClosedError, QuietError

import leveret
from leveret.broker.channel.channel import Channel
from leveret.broker.network.socket_driver import SocketDriver
from leveret.broker.server.server import Server

PERSISTENT = {"delivery_mode": 2}


@pytest.fixture
def broker():
    with leveret.Broker() as running:
        yield running


@pytest.fixture
def on_disk(tmp_path):
    with leveret.Broker(data_dir=tmp_path / "data") as running:
        yield running


def publisher(client, number=1, queue="q", **options):
    """Return a channel in confirm mode, with a queue."""
    channel = client.channel(number)
    channel.queue(queue, **options)
    channel.call("confirm.select")
    return channel


def verdicts(channel, count):
    """Return the confirms of that many publishes: numbers by 'ack' and 'nack', in order."""
    found, low = [], 0
    while sum(len(numbers) for _, numbers in found) < count:
        message = channel.receive("basic.ack", "basic.nack")
        tag = message.delivery_tag
        numbers = list(range(low + 1, tag + 1)) if message.fields["multiple"] else [tag]
        low = max(low, tag)
        found.append((message.name[6:], numbers))
    return found


def ends(client):
    """Return whether the connection ends without a word, after what was sent before."""
    try:
        client.read_rest(timeout=5)
    except ConnectionResetError:
        pass
    return True


# -- publishers ----------------------------------------------------------------------------------------------------------


def test_the_next_publishes_are_nacked(broker, connect):
    """`nack_next(2)` refuses two publishes, of whatever kind, and no more; what is nacked is in no queue."""
    channel = publisher(connect(broker))
    channel.publish("", "q", b"0")
    assert [("ack", [1])] == verdicts(channel, 1)

    broker.faults.nack_next(2)
    for body in (b"1", b"2", b"3"):
        channel.publish("", "q", body, **PERSISTENT)
    found = {}
    while len(found) < 3:
        message = channel.receive("basic.ack", "basic.nack")
        tag = message.delivery_tag
        for number in range(2, tag + 1) if message.fields["multiple"] else [tag]:
            found.setdefault(number, message.name)  # a multiple ack may cover what was nacked before

    assert {2: "basic.nack", 3: "basic.nack", 4: "basic.ack"} == found
    assert [b"0", b"3"] == [channel.get("q"), channel.get("q")]
    assert channel.get("q") is None


def test_pika_sees_a_nack(broker):
    """A publish that is nacked raises `NackError` in pika."""
    with pika.BlockingConnection(pika.URLParameters(broker.url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("q")
        with broker.faults.nack_next(1), pytest.raises(pika.exceptions.NackError):
            channel.basic_publish("", "q", b"1")
        channel.basic_publish("", "q", b"2")

        assert b"2" == channel.basic_get("q")[2]


def test_a_fault_ends_with_its_block(broker, connect):
    """A fault that is not used up ends with its `with` block; an end that comes twice has no effect."""
    channel = publisher(connect(broker))
    fault = broker.faults.nack_next(5)
    with fault:
        channel.publish("", "q", b"1")
        assert [("nack", [1])] == verdicts(channel, 1)
    fault.end()
    channel.publish("", "q", b"2")

    assert "basic.ack" == channel.receive("basic.ack", "basic.nack").name


def test_confirms_are_held(broker, connect):
    """Held confirms are not sent before `release_confirms`; the messages are in their queues, and delivered."""
    client = connect(broker)
    channel, consumer = publisher(client), client.channel(2)
    consumer.consume("q", no_ack=True)
    broker.faults.hold_confirms()
    channel.publish("", "q", b"1")
    channel.publish("", "nowhere", b"2")  # unroutable messages are confirmed, too
    body = consumer.deliver().body
    channel.sync()
    held = all(message.name not in {"basic.ack", "basic.nack"} for message in client._inbox)

    broker.faults.release_confirms()

    assert b"1" == body
    assert held
    assert {1, 2} == {number for kind, numbers in verdicts(channel, 2) for number in numbers if kind == "ack"}


# -- connections ---------------------------------------------------------------------------------------------------------


def test_all_connections_are_dropped(broker, connect):
    """`drop_connections()` ends all connections without a word; clients may connect again."""
    clients = [connect(broker), connect(broker)]

    broker.faults.drop_connections()

    assert all(map(ends, clients))
    connect(broker).channel().sync()


def test_a_confirm_is_lost(on_disk, connect):
    """'before-confirm' drops the publisher instead of confirming; the message is stored."""
    client = connect(on_disk)
    channel = publisher(client, durable=True)
    on_disk.faults.drop_connections("before-confirm")
    channel.publish("", "q", b"1", **PERSISTENT)

    rest = client.read_rest(timeout=5)

    assert b"" == rest
    on_disk.restart()
    again = publisher(connect(on_disk), durable=True)
    assert b"1" == again.get("q")
    again.publish("", "q", b"2")
    assert "basic.ack" == again.receive("basic.ack").name  # one connection was to be dropped, and was


def test_a_publisher_is_dropped_after_its_confirm(broker, connect):
    """'after-confirm' drops the publisher after the confirm was sent."""
    client = connect(broker)
    channel = publisher(client)
    broker.faults.drop_connections("after-confirm")
    channel.publish("", "q", b"1")

    assert "basic.ack" == channel.receive("basic.ack").name
    assert ends(client)
    assert 1 == connect(broker).channel().ready("q", 1)


def test_a_publish_is_cut_off(broker, connect):
    """'mid-body' drops a publisher in the middle of a body: the message is nowhere."""
    client = connect(broker)
    channel = publisher(client)
    channel.publish("", "q", b"before")
    channel.receive("basic.ack")
    broker.faults.drop_connections("mid-body")
    channel.publish("", "q", b"x" * 1000)

    assert ends(client)
    assert [b"before", None] == [(other := connect(broker).channel()).get("q"), other.get("q")]


def test_a_delivery_is_cut_off(broker, connect):
    """'mid-body' drops a consumer in the middle of a body; the message is delivered again, flagged as redelivered."""
    client = connect(broker)
    channel = publisher(client)
    channel.publish("", "q", b"x" * 1000)
    channel.receive("basic.ack")
    broker.faults.drop_connections("mid-body")
    channel.send("basic.consume", queue="q", consumer_tag="c")
    rest = client.read_rest(timeout=5)
    other = connect(broker).channel()
    other.consume("q")
    again = other.deliver()

    assert 0 < rest.count(b"x") < 1000
    assert (b"x" * 1000, True) == (again.body, bool(again.fields["redelivered"]))


def test_several_connections_are_dropped(broker, connect):
    """`times` is the number of connections that are dropped; `clear` keeps the rest."""
    broker.faults.drop_connections("before-confirm", times=3)
    for _ in range(2):
        client = connect(broker)
        publisher(client).publish("", "q", b"1")
        assert ends(client)
    broker.faults.clear()
    channel = publisher(connect(broker))
    channel.publish("", "q", b"1")

    assert "basic.ack" == channel.receive("basic.ack").name


def test_output_is_delayed(broker, connect):
    """With `delay` replies come later by the clock of the broker: not before it is advanced, if it is frozen."""
    channel = connect(broker).channel()
    broker.clock.freeze()
    with broker.faults.delay(30):
        channel.send("channel.flow", active=True)
        broker.clock.advance(29)
        early = channel.quiet(timeout=0.05)
        broker.clock.advance(1)
        channel.receive("channel.flow-ok")
        channel.send("channel.flow", active=True)
        broker.clock.advance(1)

    assert early
    channel.receive("channel.flow-ok")  # the end of the fault has sent it


def test_a_closed_channel_says_so_late(broker, connect):
    """Replies on their way are sent before a connection is closed."""
    client = connect(broker)
    broker.faults.delay(0.05)
    client.send(0, "connection.close", reply_code=200)

    assert "connection.close-ok" == client.receive(0, "connection.close-ok").name


def test_logins_are_refused(broker, connect):
    """`refuse_logins` refuses a right password; connections that are open stay open."""
    channel = connect(broker).channel()
    with broker.faults.refuse_logins():
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            pika.BlockingConnection(pika.URLParameters(broker.url))
        channel.sync()

    connect(broker).channel().sync()


def test_slow_consumers_take_bytes_by_the_clock(broker, connect):
    """A slow consumer gets its messages at the rate given; others stay in the queue, publishers are as fast as ever."""
    client, other = connect(broker), connect(broker)
    channel, consumer = publisher(other), client.channel()
    broker.clock.freeze()
    with broker.faults.slow_consumers(10_000):
        for number in range(100):
            if number == 70:  # which one turn could deliver
                consumer.send("basic.consume", queue="q", consumer_tag="c", no_ack=True)
            channel.publish("", "q", b"x" * 1000)
        verdicts(channel, 100)
        broker.clock.advance(1)
        first = received(client)
        waiting = channel.call("queue.declare", queue="q", passive=True).message_count
        broker.clock.advance(20)
        rest = received(client)

    assert 5000 <= first <= 10_000
    assert waiting > 50
    assert 100_000 == first + rest


def received(client):
    """Return the number of octets of bodies that have arrived."""
    client.socket.settimeout(0.5)  # the broker's thread may have to wait for a processor
    count = 0
    while True:
        try:
            count += client.socket.recv(1 << 16).count(b"x")
        except TimeoutError:
            return count


# -- resources -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["memory", "disk"])
def test_publishers_are_blocked(broker, connect, resource):
    """An alarm blocks publishers, which are told; its end unblocks them, and what they have sent is published."""
    client = connect(broker)
    channel = publisher(client)
    with broker.faults.block(resource):
        channel.publish("", "q", b"1")
        blocked = client.receive(0, "connection.blocked").fields["reason"]
        channel.publish("", "q", b"2")
    client.receive(0, "connection.unblocked")
    while channel.receive("basic.ack").delivery_tag < 2:
        pass

    assert f"low on {resource}" == blocked
    assert [b"1", b"2"] == [channel.get("q"), channel.get("q")]


def test_an_alarm_stays_while_the_other_one_ends(broker, connect):
    """Two alarms are independent: publishers are unblocked when both have ended."""
    client = connect(broker)
    channel = publisher(client)
    memory, disk = broker.faults.block("memory"), broker.faults.block("disk")
    channel.publish("", "q", b"1")
    both = client.receive(0, "connection.blocked").fields["reason"]
    memory.end()
    still = client.quiet(0, "connection.unblocked", timeout=0.05)
    disk.end()
    client.receive(0, "connection.unblocked")

    assert ("low on disk & memory", True) == (both, still)


def test_a_full_disk(on_disk, connect):
    """On a full disk persistent publishes are nacked and publishers blocked; with space again everything goes on."""
    client = connect(on_disk)
    channel = publisher(client, durable=True)
    channel.publish("", "q", b"1", **PERSISTENT)
    channel.receive("basic.ack")
    with on_disk.faults.fill_disk():
        channel.publish("", "q", b"2", **PERSISTENT)
        second = channel.receive("basic.ack", "basic.nack").name
    third = publisher(connect(on_disk), durable=True)
    third.publish("", "q", b"3", **PERSISTENT)

    assert "basic.nack" == second
    assert "basic.ack" == third.receive("basic.ack", "basic.nack").name
    on_disk.restart()
    left = connect(on_disk).channel()
    assert {b"1", b"3"} <= {left.get("q"), left.get("q"), left.get("q")}


def test_a_broker_in_memory_has_no_disk(broker):
    """The disk of a broker without one cannot be filled."""
    with pytest.raises(leveret.LeveretError, match="has no disk"):
        broker.faults.fill_disk()


# -- deliveries ----------------------------------------------------------------------------------------------------------


def test_everything_is_delivered_again(broker, connect):
    """`redeliver_all` delivers unacked messages again, flagged; acks of both deliveries are fine, and one is enough."""
    client = connect(broker)
    channel, control = client.channel(), client.channel(2)
    channel.queue("q")
    channel.put("q", b"1", b"2", b"3")
    channel.call("basic.qos", prefetch_count=3)
    channel.consume("q")
    first = [channel.deliver() for _ in range(3)]
    channel.send("basic.ack", delivery_tag=first[0].delivery_tag)
    channel.sync()

    broker.faults.redeliver_all()
    again = [channel.deliver() for _ in range(2)]
    for message in (*first[1:], *again):
        channel.send("basic.ack", delivery_tag=message.delivery_tag)
    channel.sync()

    assert [(b"2", True), (b"3", True)] == [(each.body, bool(each.fields["redelivered"])) for each in again]
    assert 0 == control.call("queue.delete", queue="q").message_count


def test_settling_what_was_requeued_has_no_effect(broker, connect):
    """Nacks, multiple acks and the end of a channel leave redelivered messages alone."""
    channel = connect(broker).channel()
    channel.queue("q")
    channel.put("q", b"1", b"2")
    channel.consume("q")
    first = [channel.deliver() for _ in range(2)]
    broker.faults.redeliver_all()
    again = [channel.deliver() for _ in range(2)]
    channel.send("basic.nack", delivery_tag=first[0].delivery_tag, requeue=True)
    channel.send("basic.ack", delivery_tag=first[1].delivery_tag, multiple=True)
    channel.send("basic.ack", delivery_tag=again[0].delivery_tag)
    channel.call("channel.close", reply_code=200)
    other = channel.client.channel(3)

    assert [b"2", None] == [other.get("q"), other.get("q")]


def hostile_run(broker, connect, seed):
    """Return what a consumer and a publisher see of a hostile broker."""
    publishing, consuming = publisher(connect(broker)), connect(broker).channel()
    with broker.faults.hold_confirms():
        broker.faults.hostile(seed)
        for number in range(30):
            publishing.publish("", "q", b"%d" % number)
        publishing.sync()
    confirms = [message.delivery_tag for message in (publishing.receive("basic.ack") for _ in range(30))]
    consuming.call("basic.qos", prefetch_count=1)
    consuming.consume("q")
    seen = []
    while True:
        try:
            message = consuming.receive("basic.deliver", timeout=5 if len(seen) < 30 else 0.2)
        except QuietError:
            return confirms, seen
        seen.append((message.body, bool(message.fields["redelivered"])))
        consuming.send("basic.ack", delivery_tag=message.delivery_tag)


def test_a_hostile_broker_is_the_same_for_the_same_seed(connect):
    """Confirms and deliveries are the same for one seed, and others for another; duplicates are flagged."""
    runs = []
    for seed in (1, 1, 2):
        with leveret.Broker() as broker:
            runs.append(hostile_run(broker, connect, seed))
    confirms, seen = runs[0]

    assert runs[0] == runs[1]
    assert runs[0] != runs[2]
    assert list(range(1, 31)) == sorted(confirms)
    first, again = (
        [body for body, is_again in seen if not is_again],
        [body for body, is_again in seen if is_again],
    )
    assert {b"%d" % number for number in range(30)} == set(first)
    assert len(first) == len(set(first))
    assert again
    assert set(again) <= set(first)


def hostile_deliveries(broker, connect, seed, prefetch, acks_each):
    """Return what one consumer gets of forty messages, if it acks `acks_each` at a time, and the most it had unacked."""
    filling, consuming = connect(broker).channel(), connect(broker).channel()
    filling.queue("q")
    filling.put("q", *(b"%d" % number for number in range(40)))
    broker.wait_until_idle()
    with broker.faults.hostile(seed):
        if prefetch:
            consuming.call("basic.qos", prefetch_count=prefetch)
        consuming.consume("q")
        seen, acked = [], 0
        while broker.queue("q").depth or broker.queue("q").unacked:
            try:
                message = consuming.receive("basic.deliver", timeout=0.2)
            except QuietError:
                assert len(seen) > acked, "the broker delivers nothing, and has messages"
            else:
                seen.append((message.body, bool(message.fields["redelivered"]), len(seen) + 1 - acked))
                if len(seen) - acked < acks_each:
                    continue
            acked = len(seen)
            consuming.send("basic.ack", delivery_tag=message.delivery_tag, multiple=True)
            consuming.sync()
    return [each[:2] for each in seen], max(each[2] for each in seen)


def test_a_seed_gives_the_same_order_each_time(tmp_path, connect):
    """Ten runs have the same deliveries, whatever the prefetch and the acks; no more than the prefetch is unacked."""
    runs = []
    for number, (prefetch, acks_each) in enumerate(
        [(1, 1), (2, 1), (2, 2), (5, 1), (5, 4), (7, 7), (0, 1), (0, 9), (0, 100), (1, 1)]
    ):
        with leveret.Broker(data_dir=tmp_path / str(number) if number % 2 else None) as broker:
            order, unacked = hostile_deliveries(broker, connect, 3, prefetch, acks_each)
        assert not prefetch or unacked <= prefetch
        runs.append(order)

    assert 1 == len({tuple(order) for order in runs})
    bodies = [body for body, _ in runs[0]]
    assert len(bodies) > 40
    assert [b"%d" % number for number in range(40)] == [body for body, is_again in runs[0] if not is_again]
    again = [at for at, (_, is_again) in enumerate(runs[0]) if is_again]
    assert 1 < max(at - bodies.index(bodies[at]) for at in again), "some come after younger messages"


def test_a_message_that_waits_for_its_second_delivery_is_not_lost(broker, connect):
    """After the end of its channel, its consumer or the fault, everything is in the queue or delivered again."""
    for ending in ("channel", "cancel", "fault", "connection"):
        client = connect(broker)
        channel, name = client.channel(), f"q-{ending}"
        channel.queue(name)
        channel.put(name, *(b"%d" % number for number in range(40)))
        channel.call("basic.qos", prefetch_count=20)
        fault = broker.faults.hostile(3)
        tag = channel.consume(name)
        for message in [channel.receive("basic.deliver") for _ in range(20)]:
            channel.send("basic.ack", delivery_tag=message.delivery_tag)
        kept = {message.body for message in broker.queue(name).messages}
        if ending == "channel":
            channel.call("channel.close", reply_code=200)
        elif ending == "cancel":
            channel.call("basic.cancel", consumer_tag=tag)
        elif ending == "connection":
            client.close_socket()
        fault.end()
        left = {message.body for message in broker.queue(name).messages}

        assert kept
        assert left
        assert left <= kept


def test_messages_that_are_fetched_are_duplicated_too(broker, connect):
    """By `basic.get` a hostile broker gives a quarter of the messages twice, the second time at once and flagged."""
    channel = connect(broker).channel()
    channel.queue("q")
    channel.put("q", *(b"%d" % number for number in range(40)))
    broker.faults.hostile(3)
    seen = []
    while (body := channel.get("q", no_ack=False)) is not None:
        seen.append(body)

    assert sorted({int(body) for body in seen}) == list(range(40))
    assert 44 < len(seen) < 60
    assert seen == sorted(seen, key=int)


# -- the end -------------------------------------------------------------------------------------------------------------


def test_nothing_that_was_confirmed_is_lost_by_a_kill(on_disk, connect):
    """After `kill` and `restart` all confirmed messages are there, in order, at the same URL; clients were cut off."""
    url = on_disk.url
    client = connect(on_disk)
    channel = publisher(client, durable=True)
    for number in range(200):
        channel.publish("", "q", b"%d" % number, **PERSISTENT)
    channel.client.timeout = 10
    confirmed = 0
    while confirmed < 100:
        confirmed = channel.receive("basic.ack").delivery_tag

    on_disk.kill()
    assert ends(client)
    with pytest.raises(leveret.ClosedBrokerError):
        _ = on_disk.url
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", pika.URLParameters(url).port), 1).close()
    on_disk.restart()

    assert url == on_disk.url
    other = connect(on_disk).channel()
    left = [other.get("q") for _ in range(confirmed)]
    assert [b"%d" % number for number in range(confirmed)] == left


def test_a_restart_in_memory_forgets_everything(broker, connect):
    """A broker in memory has nothing after a restart but its configuration; faults and a frozen clock stay."""
    broker.clock.freeze()
    broker.faults.nack_next(1)
    before = broker.clock.now
    connect(broker).channel().queue("q", durable=True)

    broker.restart()

    channel = publisher(connect(broker), queue="other")
    with pytest.raises(ClosedError, match="404"):
        channel.client.channel(2).queue("q", passive=True)
    channel.publish("", "other", b"1")
    assert "basic.nack" == channel.receive("basic.ack", "basic.nack").name
    assert (True, before) == (broker.clock.is_frozen, broker.clock.now)


def test_a_killed_broker_can_be_stopped(tmp_path):
    """The end of `with` after a kill is no error."""
    with leveret.Broker(data_dir=tmp_path / "data") as broker:
        broker.kill()
        broker.kill()
        assert "closed" in repr(broker)
    with leveret.Broker(data_dir=tmp_path / "data") as broker:
        broker.faults.clear()


def test_a_killed_broker_starts_again(on_disk, connect):
    """`start` and `with` start a killed broker as they start a stopped one; one that runs is not started twice."""
    url = on_disk.url
    on_disk.kill()
    on_disk.start()
    assert url == on_disk.url
    publisher(connect(on_disk), durable=True)
    with pytest.raises(leveret.ClosedBrokerError, match="already"):
        on_disk.start()
    on_disk.kill()
    with on_disk:
        assert ["q"] == on_disk.queues()
    with pytest.raises(leveret.ClosedBrokerError):
        on_disk.queues()


def test_a_restart_finds_the_data_of_a_relative_path(tmp_path, monkeypatch):
    """Also if the program has changed its directory since, and with the broker killed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with leveret.Broker(data_dir="data") as broker:
        broker.declare("q", durable=True)
        monkeypatch.chdir(tmp_path / "elsewhere")
        broker.publish("", "q", b"kept", properties={"delivery_mode": 2})
        broker.kill()
        broker.start()

        assert [b"kept"] == [message.body for message in broker.queue("q").messages]
    assert [] == list((tmp_path / "elsewhere").iterdir())


def test_a_killed_broker_releases_its_buffer(broker, connect):
    """The large buffer of a broker that was killed is released at once, without a run of the collector."""
    connect(broker)
    server = broker._core.server
    buffer = weakref.ref(server.gate.read_buffer)

    broker.kill()

    assert buffer() is None
    assert 0 == len(server.gate.read_buffer)


def test_a_broker_with_faults_can_be_stopped(tmp_path, connect):
    """A broker stops with all faults at once, and the next start on its directory has none."""
    with leveret.Broker(data_dir=tmp_path / "data") as broker:
        channel = publisher(connect(broker), durable=True)
        broker.faults.hold_confirms()
        broker.faults.block("memory")
        broker.faults.delay(10)
        broker.faults.fill_disk()
        channel.publish("", "q", b"1", **PERSISTENT)
    with leveret.Broker(data_dir=tmp_path / "data") as broker:
        channel = publisher(connect(broker), durable=True)
        channel.publish("", "q", b"2", **PERSISTENT)
        assert "basic.ack" == channel.receive("basic.ack", "basic.nack").name


def test_wrong_arguments_are_refused(broker):
    """Arguments out of their range raise ValueError, and no fault begins."""
    for begin in (
        lambda: broker.faults.nack_next(0),
        lambda: broker.faults.drop_connections("later"),
        lambda: broker.faults.drop_connections("mid-body", times=0),
        lambda: broker.faults.delay(0),
        lambda: broker.faults.slow_consumers(-1),
        lambda: broker.faults.block("cpu"),
    ):
        with pytest.raises(ValueError):
            begin()


def test_a_closed_broker_has_no_faults():
    """Faults of a broker that is not running raise ClosedBrokerError."""
    with pytest.raises(leveret.ClosedBrokerError):
        leveret.Broker().faults.hold_confirms()


async def test_faults_in_a_running_loop():
    """An `AsyncBroker` has the same faults, whose methods are plain functions; kill and restart are coroutines."""

    def publish(url):
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.queue_declare("q")
            channel.basic_publish("", "q", b"m")

    async with leveret.AsyncBroker() as broker:
        url = broker.url
        with broker.faults.nack_next(1), pytest.raises(pika.exceptions.NackError):
            await asyncio.to_thread(publish, url)
        await broker.kill()
        await broker.restart()
        await asyncio.to_thread(publish, url)
        await broker.kill()
        await broker.start()
        await asyncio.to_thread(publish, url)


def test_a_broker_of_its_own_has_the_plain_classes():
    """The classes of an ordinary broker look at no faults."""
    assert (SocketDriver, Channel) == (Server.driver_class, Server.channel_class)

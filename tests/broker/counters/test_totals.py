"""Counters of closed connections, channels and queues, and message sizes."""

from bisect import bisect_left
from operator import add

from doubles.fakes import Client, Node
from hypothesis import given, strategies as st

from leveret.broker.amqp.commands import Basic, Channel, Confirm, Connection as Wire, Queue, Tx, make
from leveret.broker.counters.totals import MOST_SIZES, SIZE_BOUNDS, ChannelCounts, QueueCounts, Sizes, Totals

SIZES = st.one_of(st.integers(0, 300), st.sampled_from(SIZE_BOUNDS), st.integers(0, 200_000_000))


def channels(node: Node) -> ChannelCounts:
    """Return the counters of all channels, open or closed."""
    live = [channel.counts() for each in node.clients.connections for channel in each.channels.values()]
    return ChannelCounts(*map(sum, zip(node.context.totals.channels, *live, strict=True)))


def queues(node: Node) -> QueueCounts:
    """Return the counters of all classic queues, existing or deleted."""
    live = [queue.counts() for vhost in node.vhosts.values() for queue in vhost.queues.values()]
    return QueueCounts(
        *map(sum, zip(node.context.totals.queues.get("classic", QueueCounts()), *live, strict=True))
    )


@given(st.lists(st.tuples(SIZES, st.integers(1, 3))), st.lists(SIZES))
def test_sizes_are_counted_alike_one_by_one_and_in_runs(runs, singles):
    """Each message is in the first bucket whose bound it does not exceed, and the bytes are the sum of all sizes."""
    sizes = Sizes()
    every = [size for size, count in runs for _ in range(count)] + singles
    expected = [0] * (len(SIZE_BOUNDS) + 1)
    for size in every:
        expected[bisect_left(SIZE_BOUNDS, size)] += 1
    for size, count in runs:
        sizes.fresh[size] += count
    for size in singles:
        sizes.add(size)

    assert (expected, sum(every)) == (sizes.counts, sizes.octets)


def test_different_sizes_do_not_pile_up():
    """Few sizes of commits and messages are kept one by one, however many there are."""
    sizes, node = Sizes(), Node()
    client = Client(node)
    for size in range(3 * MOST_SIZES):
        sizes.add(size)
        client.publish("", b"x" * size)

        assert len(sizes.fresh) <= MOST_SIZES
        assert len(node.context.totals.sizes.fresh) <= MOST_SIZES
    assert 3 * MOST_SIZES == sum(sizes.counts) == sum(node.context.totals.sizes.counts)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("classic", "quorum")), st.lists(st.integers(0, 9), min_size=11, max_size=11)
        )
    )
)
def test_what_is_gone_is_added_up_by_type(gone):
    """The counters of deleted queues are the sums by type."""
    totals = Totals()
    expected: dict[str, list[int]] = {}
    for kind, numbers in gone:
        totals.queue_deleted(kind, QueueCounts(*numbers), {"to_delta": 1})
        expected[kind] = list(map(add, expected.get(kind, [0] * 11), numbers))

    assert {kind: QueueCounts(*numbers) for kind, numbers in expected.items()} == totals.queues
    assert ({"to_delta": len(gone)} if gone else {}) == totals.transitions


def work(node: Node) -> tuple[Client, Client]:
    """A publisher and a consumer that use all kinds of operations."""
    publisher, consumer = Client(node), Client(node, port=50001)
    publisher.ask(Confirm.Select())
    publisher.declare("q")
    for body in (b"one", b"two" * 50, b"three"):
        publisher.publish("q", body)
    publisher.publish("nowhere")
    publisher.publish("nowhere", mandatory=True)
    consumer.ask(make(Basic.Get, 0, "q", True))
    consumer.ask(make(Basic.Get, 0, "q", False))
    consumer.ask(make(Basic.Reject, 2, True))
    consumer.consume("q")
    consumer.send(make(Basic.Ack, 3, False))
    consumer.send(make(Basic.Reject, 4, False))
    consumer.ask(make(Basic.Get, 0, "q", False))
    return publisher, consumer


WORK = ChannelCounts(
    published=5,
    numbered=5,
    confirmed=5,
    returned=1,
    dropped=1,
    delivered_ack=2,
    got_ack=1,
    got_auto=1,
    get_empty=1,
    redelivered=1,
    acked=1,
)
QUEUE_WORK = QueueCounts(
    published=3,
    delivered_ack=2,
    got_ack=1,
    got_auto=1,
    get_empty=1,
    redelivered=1,
    settled=1,
    rejected=1,
)


def test_a_channel_counts_what_comes_and_goes():
    """Publishes, confirms, returns, gets, deliveries and acks are counted, each in its own counter."""
    node = Node()
    work(node)

    assert (WORK, QUEUE_WORK) == (channels(node), queues(node))


def test_counts_outlive_what_counted():
    """Closing channels and connections and deleting queues changes nothing in the sums."""
    node = Node()
    publisher, consumer = work(node)

    consumer.ask(make(Basic.Cancel, "c-q", False))
    assert (WORK, QUEUE_WORK) == (channels(node), queues(node))
    consumer.ask(Channel.Close(200, "", 0, 0))
    assert (WORK, QUEUE_WORK) == (channels(node), queues(node))
    publisher.ask(make(Queue.Delete, 0, "q", False, False, False))
    assert (WORK, QUEUE_WORK) == (channels(node), queues(node))
    publisher.connection.lost()
    consumer.connection.lost()
    assert (WORK, QUEUE_WORK) == (channels(node), queues(node))
    assert (WORK, QUEUE_WORK) == (node.context.totals.channels, node.context.totals.queues["classic"])


def test_consumers_that_need_not_ack_are_distinguished():
    """Messages to consumers without acks count as delivered without acks, also after they have left."""
    node = Node()
    client = Client(node)
    client.declare("q")
    client.consume("q", no_ack=True)
    for _ in range(3):
        client.publish("q")
    expected = ChannelCounts(published=3, delivered_auto=3)
    assert expected == channels(node)

    client.ask(make(Queue.Delete, 0, "q", False, False, False))

    assert expected == channels(node)
    assert QueueCounts(published=3, delivered_auto=3) == queues(node)


def test_a_reply_queue_counts_as_well():
    """Direct replies to a requester are deliveries like any others."""
    node = Node()
    client = Client(node)
    client.consume("amq.rabbitmq.reply-to", no_ack=True)
    (name,) = node.vhosts["/"].reply_queues
    client.publish(name, b"answer")

    client.ask(Channel.Close(200, "", 0, 0))

    assert ChannelCounts(published=1, delivered_auto=1) == channels(node)
    assert QueueCounts(published=1, delivered_auto=1) == queues(node)


def test_acks_after_the_end_of_a_queue_change_nothing():
    """The counters of a deleted queue stay as they were added to the totals."""
    node = Node()
    client = Client(node)
    client.declare("q")
    client.publish("q")
    client.consume("q")
    queue = node.vhosts["/"].queues["q"]
    client.ask(make(Queue.Delete, 0, "q", False, False, False))

    client.send(make(Basic.Ack, 1, False))

    assert 1 == queue.acked
    assert 0 == queue.counts().settled == queues(node).settled
    assert 1 == channels(node).acked


def test_a_transaction_counts_acks_when_it_is_committed():
    """Acks in a transaction that is rolled back are not counted."""
    node = Node()
    client = Client(node)
    client.declare("q")
    client.publish("q")
    client.publish("q")
    client.ask(Tx.Select())
    client.consume("q")
    client.send(make(Basic.Ack, 1, False))
    client.ask(Tx.Rollback())
    assert 0 == channels(node).acked

    client.send(make(Basic.Ack, 2, True))
    client.ask(Tx.Commit())

    assert 2 == channels(node).acked == queues(node).settled


def test_nacks_are_no_confirms():
    """A publish that a full queue refuses is nacked and counted as nacked."""
    node = Node()
    client = Client(node)
    client.ask(Confirm.Select())
    limits = {"x-max-length": ("long", 1), "x-overflow": ("longstr", "reject-publish")}
    client.declare("q", arguments=limits)
    for _ in range(3):
        client.publish("q")
    expected = ChannelCounts(published=3, numbered=3, confirmed=1, nacked=2)
    assert expected == channels(node)

    client.connection.lost()

    assert expected == channels(node)


def test_dead_letters_are_distinguished_from_publishes():
    """A dead letter counts in its queue but not as published by a client; its reason is counted."""
    node = Node()
    client = Client(node)
    client.declare("dead")
    client.declare(
        "q",
        arguments={
            "x-dead-letter-exchange": ("longstr", ""),
            "x-dead-letter-routing-key": ("longstr", "dead"),
        },
    )
    client.publish("q")
    client.consume("q")
    client.ask(make(Basic.Reject, 1, False))

    found = queues(node)

    assert (2, 1) == (found.published, found.forwarded)
    assert {("classic", "rejected"): 1} == node.context.totals.dead_letters


def test_light_deliveries_that_come_back_are_counted():
    """In light mode a message that would have to be redelivered is lost, also when its queue is deleted by then."""
    node = Node()
    publisher, consumer = Client(node), Client(node, port=50001)
    publisher.ask(Confirm.Select())
    publisher.declare("q", arguments={"x-confirm-mode": ("longstr", "consumer-ack-light")})
    consumer.consume("q")
    publisher.publish("q")
    publisher.publish("q")
    consumer.ask(make(Basic.Reject, 1, True))
    assert (1, 0) == (queues(node).lost, node.context.totals.lost)

    publisher.ask(make(Queue.Delete, 0, "q", False, False, False))
    consumer.connection.lost()

    assert (1, 1) == (queues(node).lost, node.context.totals.lost)


def test_sizes_of_messages_are_those_of_their_bodies():
    """Equal publishes in one read, different ones, and bodies in several frames are counted alike."""
    node = Node()
    client = Client(node)
    client.declare("q")
    for body in (b"x" * 101, b"x" * 101, b"x" * 101, b"", b"", b"x" * 5000):
        client.publish("q", body)
    client.publish("q", b"x" * 1_000_001, frame_max=131072)

    assert [2, 3, 1, 0, 0, 1, 0, 0, 0] == node.context.totals.sizes.counts
    assert 3 * 101 + 5000 + 1_000_001 == node.context.totals.sizes.octets


def test_logins_are_counted():
    """Refused logins are counted as well as successful ones."""
    node = Node(auth_failure_delay=0.0)
    Client(node)
    stranger = Client(node, connect=False, port=50001)
    stranger.receive(b"AMQP\x00\x00\x09\x01")
    stranger.send(make(Wire.StartOk, {}, "PLAIN", "\0guest\0wrong", "en_US"), channel=0)

    assert (1, 1) == (node.context.totals.auth_succeeded, node.context.totals.auth_failed)

"""A clean stop writes the messages that queues promised to disk, each in its place."""

import pytest
from doubles.fakes import Client, DiskNode, basic_consume

from leveret.broker.amqp.commands import Basic, Confirm
from leveret.broker.amqp.properties import Properties
from leveret.broker.server.shutdown import ShutdownFlush
from leveret.storage.store.check import Check, Finding

ASKS = {"x-confirm-mode": ("longstr", "consumer-ack")}
STEP = 16
LEVELS = {"x-max-priority": ("signedint", 3)}


@pytest.fixture
def node(tmp_path):
    return DiskNode(tmp_path)


@pytest.fixture
def client(node):
    client = Client(node)
    client.ask(Confirm.Select())
    return client


def stopped(node, *clients, meanwhile=lambda: None):
    """Stop this server cleanly and return the next one; `meanwhile` runs before each commit."""
    for client in clients:
        client.connection.lost()
    node.run_turn()
    for line in node.vhosts["/"].holds():
        line.stop()
    for queue in node.vhosts["/"].queues.values():
        for flush in ShutdownFlush.all_of(queue, node.disk.blob_threshold):
            while flush.left:
                if not flush.step():
                    node.read()
                meanwhile()
                node.commit()
    return node.restarted()


def found(node, queue="q"):
    """Return the messages that a consumer gets, redelivered ones with a star, and close the node."""
    node.run_turn()
    client = Client(node)
    client.send(basic_consume(queue, "it", no_ack=True))
    while node.disk.loads:
        node.read()
    deliveries = [sent for sent in client.take() if isinstance(sent.method, Basic.Deliver)]
    node.disk.close()
    return [sent.body.decode() + "*" * bool(sent.method.redelivered) for sent in deliveries]


def test_each_level_of_a_queue_with_priorities_is_kept(node, client):
    """Messages of lower levels are flushed even if requeued ones circulate in the highest level."""
    client.declare("q", durable=True, arguments=ASKS | LEVELS)
    node.commit()
    for number in range(8):
        client.publish("q", b"%d" % number, delivery_mode=2, priority=number % 4)
    client.send(Basic.Qos(0, 3, False))
    client.consume("q")

    node = stopped(node, client)

    assert ["3*", "7*", "2*", "6", "1", "5", "0", "4"] == found(node)


def test_what_expires_meanwhile_is_not_made_up_for_by_what_has_had_its_turn(node, client, monkeypatch):
    """Messages that expire meanwhile do not change the order of the others."""
    monkeypatch.setattr("leveret.broker.server.shutdown.STEP", STEP)
    client.declare("q", durable=True, arguments=ASKS)
    node.commit()
    for number in range(STEP + 20):
        soon = {"expiration": "500"} if STEP <= number < STEP + 10 else {}
        client.publish("q", b"%d" % number, delivery_mode=2, **soon)

    def meanwhile():
        node.clock.now += 1
        node.vhosts["/"].queues["q"].touch()

    node = stopped(node, client, meanwhile=meanwhile)

    assert [str(number) for number in (*range(STEP), *range(STEP + 10, STEP + 20))] == found(node)


def test_what_was_rejected_becomes_a_dead_letter_first(node, client):
    """Rejected messages are dead-lettered before the flush, though their bodies have to be read."""
    client.declare("dead", durable=True)
    node.commit()
    client.declare(
        "q",
        durable=True,
        arguments=ASKS
        | {"x-dead-letter-exchange": ("longstr", ""), "x-dead-letter-routing-key": ("longstr", "dead")},
    )
    node.commit()
    client.consume("q")
    for number in range(3):
        client.publish("q", b"%d" % number, delivery_mode=2)
    node.vhosts["/"].queues["q"].store.set_ram_target(0, 0)
    node.commit()
    client.send(Basic.Nack(3, True, False))

    node = stopped(node, client)

    assert ["0", "1", "2"] == found(node, "dead")


@pytest.mark.parametrize("levels", [{}, LEVELS])
def test_how_often_messages_came_back_is_kept(node, client, levels):
    """A flushed message keeps its delivery count, and is delivered as often as its limit allows."""
    client.declare("q", durable=True, arguments=ASKS | levels | {"x-delivery-limit": ("long", 5)})
    node.commit()
    for body in (b"a", b"b", b"c"):
        client.publish("q", body, delivery_mode=2)
    for _ in range(2):
        client.take()
        client.send(Basic.Get(0, "q", False))
        (got,) = [sent for sent in client.take() if isinstance(sent.method, Basic.GetOk)]
        client.send(Basic.Nack(got.method.delivery_tag, False, True))
    following = stopped(node, client)
    other = Client(following)
    other.send(basic_consume("q", "it", no_ack=True))
    while following.disk.loads:
        following.read()
    deliveries = [sent for sent in other.take() if isinstance(sent.method, Basic.Deliver)]
    counts = [(Properties(sent.header).headers or {}).get("x-delivery-count") for sent in deliveries]
    following.disk.close()

    assert [("long", 2), None, None] == counts


def test_what_comes_back_after_the_stop_waits_no_more(node, client):
    """A promised message that a channel gives back late, as one of very many, is written, too."""
    retries = {"x-delayed-retry-type": ("longstr", "all"), "x-delayed-retry-min": ("signedint", 500)}
    client.declare("q", durable=True, arguments=ASKS | retries)
    node.commit()
    client.publish("q", b"0", delivery_mode=2)
    client.consume("q")
    (queue,) = node.vhosts["/"].queues.values()
    queue.limits.need_retries().stop()
    client.connection.lost()
    node.run_turn()
    assert (0, 1) == (queue.held_count, queue.ready_count)
    node.disk.close()


@pytest.mark.parametrize("options", [{}, LEVELS])
def test_what_waits_for_a_retry_is_kept_and_goes_on_waiting(node, client, options):
    """A promised message that waits, or that its consumer loses by the stop, is written, and comes at its time."""
    retries = {"x-delayed-retry-type": ("longstr", "all"), "x-delayed-retry-min": ("signedint", 500)}
    client.declare("q", durable=True, arguments=ASKS | options | retries)
    node.commit()
    for number in range(4):
        client.publish("q", b"%d" % number, delivery_mode=2)
    client.send(Basic.Qos(0, 2, False))
    client.consume("q")
    client.send(Basic.Reject(1, True))

    node = stopped(node, client)

    (queue,) = node.vhosts["/"].queues.values()
    client = Client(node)
    client.send(basic_consume("q", "it", no_ack=True))
    while node.disk.loads:
        node.read()
    assert [b"3"] == [sent.body for sent in client.take() if isinstance(sent.method, Basic.Deliver)]
    assert 3 == queue.held_count
    node.pass_time(500)
    got = [sent.body for sent in client.take() if isinstance(sent.method, Basic.Deliver)]
    assert [b"0", b"1", b"2"] == got
    node.disk.close()
    found_damage: list[Finding] = []
    Check(node.data_dir, found_damage.append).run()
    assert [] == found_damage

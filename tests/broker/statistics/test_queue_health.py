"""The judgement of a queue's health."""

from doubles.fakes import Node

from leveret.broker.amqp.commands import Basic, Confirm, make
from leveret.broker.statistics.queue_health import (
    CRITICAL,
    GROWTH_SECONDS,
    STUCK_SECONDS,
    WARNING,
    health,
    shown,
)
from leveret.broker.statistics.rows import queue_row


def sampled(node: Node, seconds: int, do=lambda: None) -> None:
    """Let time pass with a sample each five seconds, before which something is done."""
    for _ in range(seconds // 5 + 1):
        do()
        node.pass_time(5000)
        for _step in node.statistics.sample():
            pass


def judged(node: Node, name: str = "q") -> list[str]:
    found = health(node.vhosts["/"].queues[name], node.statistics, node.now())
    return [each.reason for each in found]


def is_unserved(node: Node, name: str = "q") -> bool:
    """Return whether the metric says that messages wait for a consumer."""
    return bool(queue_row(node.vhosts["/"].queues[name]).levels.unserved)


def declare(node: Node, name: str, **arguments) -> None:
    given = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    node.administration.topology.declare_queue(None, "/", name, arguments=given)


def test_messages_without_a_consumer_are_critical(node, client):
    """Until one comes; an empty queue needs none."""
    declare(node, "q")
    assert [] == judged(node)
    client.publish("q", b"x")
    node.run_turn()

    assert ["no consumer"] == judged(node)
    assert is_unserved(node)
    client.consume("q", no_ack=True)
    assert [] == judged(node)
    assert not is_unserved(node)


def test_a_queue_that_grows_without_a_consumer_says_both(node, client):
    """After some seconds of growth."""
    declare(node, "q")
    sampled(node, GROWTH_SECONDS, lambda: [client.publish("q", b"x") for _ in range(9)])

    assert ["growing, no consumer"] == judged(node)


def test_consumers_that_do_not_keep_up_are_a_warning(node, client):
    """While the queue grows; not one that is long and stays so."""
    declare(node, "q")
    client.send(make(Basic.Qos, 0, 1, False))
    client.consume("q")
    sampled(node, GROWTH_SECONDS, lambda: [client.publish("q", b"x") for _ in range(9)])
    assert ["consumers not keeping up"] == judged(node)
    sampled(node, GROWTH_SECONDS)

    assert [] == judged(node)


def test_consumers_that_hold_messages_and_do_nothing_are_stuck(node, client):
    """After a minute without a delivery and an ack, with ready messages; one that works on its only one is not."""
    for name in ("q", "busy"):
        declare(node, name)
    client.send(make(Basic.Qos, 0, 1, False))
    client.consume("q")
    client.consume("busy")
    client.publish("busy", b"x")
    for _ in range(3):
        client.publish("q", b"x")
    sampled(node, STUCK_SECONDS - 10)
    assert [] == judged(node)
    sampled(node, 20)

    assert ["consumers stuck"] == judged(node)
    assert [] == judged(node, "busy")
    sampled(node, 5, lambda: client.send(make(Basic.Ack, 0, True)))
    assert [] == judged(node)


def test_a_retry_queue_needs_no_consumer(node, client):
    """Its messages expire and go on: by its own time to live, or by theirs once some have expired."""
    declare(node, "q", message_ttl=60_000, dead_letter_exchange="", dead_letter_routing_key="work")
    declare(node, "by-message", dead_letter_exchange="", dead_letter_routing_key="work")
    declare(node, "work")
    client.publish("q", b"x")
    for _ in range(2):
        client.publish("by-message", b"x", expiration="1000")
    node.pass_time(2000)
    client.publish("by-message", b"x", expiration="1000")
    node.run_turn()

    assert [] == judged(node)
    assert [] == judged(node, "by-message")
    assert not is_unserved(node)
    assert not is_unserved(node, "by-message")


def test_messages_that_expire_unread_are_a_warning(node, client):
    """A time to live without a dead letter exchange deletes them; no worker is said to be missing."""
    declare(node, "q", message_ttl=60_000)
    client.publish("q", b"x")
    node.run_turn()

    assert ["expires unread"] == judged(node)
    assert not is_unserved(node)


def test_dead_letters_are_no_missing_worker(node, client):
    """They wait for a person; so do those that were there before a restart, when nothing has been counted yet."""
    declare(node, "work", dead_letter_exchange="", dead_letter_routing_key="q")
    declare(node, "q")
    client.publish("work", b"x")
    client.consume("work")
    client.send(make(Basic.Reject, 1, False))
    node.run_turn()
    queue = node.vhosts["/"].queues["q"]

    assert ["dead letters"] == judged(node)
    assert not is_unserved(node)
    queue.published = queue.tally.forwarded = 0
    assert ["dead letters"] == judged(node)


def test_a_message_that_came_back_to_its_queue_is_no_dead_letter(node, client):
    """The worker of a queue with retries is missing like any other."""
    declare(node, "q", dead_letter_exchange="", dead_letter_routing_key="later")
    declare(node, "later", message_ttl=1000, dead_letter_exchange="", dead_letter_routing_key="q")
    client.publish("q", b"x")
    client.consume("q", "worker")
    client.send(make(Basic.Reject, 1, False))
    client.send(make(Basic.Cancel, "worker", False))
    node.run_turn()
    assert [] == judged(node, "later")
    node.pass_time(2000)
    node.run_turn()

    assert ["no consumer"] == judged(node)
    assert is_unserved(node)


def test_publishers_that_wait_for_consumers_are_told(node, client):
    """In a mode that confirms what is acknowledged; it is said once, not as a missing consumer, too."""
    declare(node, "q", confirm_mode="consumer-ack")
    client.send(make(Confirm.Select, False))
    client.publish("q", b"x")
    node.run_turn()

    assert ["publishers wait for a consumer"] == judged(node)


def test_a_paused_queue_is_told_as_paused(node, client):
    """With messages that wait for its end, and in place of a missing consumer."""
    declare(node, "q")
    node.administration.topology.set_queue_paused(None, "/", "q", paused=True)
    assert [] == judged(node)
    client.publish("q", b"x")
    node.run_turn()

    assert ["paused"] == judged(node)
    assert not is_unserved(node)


def test_a_full_queue_that_refuses_is_critical(node, client):
    """One that drops its oldest message is as it was asked to be."""
    declare(node, "q", max_length=2, overflow="reject-publish")
    declare(node, "ring", max_length=2)
    client.consume("ring")
    for name in ("q", "q", "ring"):
        client.publish(name, b"x")
    node.run_turn()

    assert ["no consumer", "full"] == judged(node)
    assert [] == judged(node, "ring")


def test_the_worst_reason_comes_first(node, client):
    """It is the state of the queue in the API, with the others beside it."""
    declare(node, "q")
    queue = node.vhosts["/"].queues["q"]
    assert {"state": "ok", "reason": "", "advice": "", "others": []} == shown(
        health(queue, node.statistics, node.now())
    )
    client.publish("q", b"x")
    node.run_turn()
    queue.publishers_paused_at = node.now()
    found = shown(health(queue, node.statistics, node.now()))

    assert (CRITICAL, "no consumer") == (found["state"], found["reason"])
    assert [(WARNING, "publishers slowed down")] == [
        (each["state"], each["reason"]) for each in found["others"]
    ]


def test_properties_that_cannot_be_read_are_no_dead_letter(node, client):
    """A header that only mentions x-death in a text decides nothing."""
    declare(node, "q")
    client.publish("q", b"x", headers={"note": ("longstr", "x-death")})
    node.run_turn()

    assert ["no consumer"] == judged(node)

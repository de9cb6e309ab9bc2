"""Listings of connections, channels, consumers, queues and alarms."""

from typing import Any

import pytest
from fakes import Client, Node, publish_frames

from leveret.broker.administration import ForbiddenError, NotFoundError
from leveret.broker.administration.listings import IDLE_SECONDS
from leveret.broker.amqp.commands import Basic, Confirm, Queue, Tx, make
from leveret.broker.auth.users import User
from leveret.broker.connection.flow_control import Pause
from leveret.broker.connection.state import FLOW_SECONDS

ANN = User("ann", "", ("management",))


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def listings(node):
    return node.administration.listings


def state_of(listings: Any) -> str:
    (connection,) = listings.connections(None)
    return connection["state"]


def test_states_of_a_connection(node, listings):
    """A connection is in flow within five seconds of a pause, blocking during an alarm, blocked once it publishes."""
    client = Client(node)
    seen = [state_of(listings)]
    client.connection.paused_at = node.now()
    seen.append(state_of(listings))
    node.clock.now += FLOW_SECONDS
    seen.append(state_of(listings))
    client.connection.paused_at = float("inf")  # waits for the disk
    seen.append(state_of(listings))
    client.connection.paused_at = 0.0
    node.set_alarm("low on memory")
    seen.append(state_of(listings))
    client.publish("q", b"")
    seen.append(state_of(listings))
    node.set_alarm("")
    seen.append(state_of(listings))
    client.connection.force_close("the end")
    seen.append(state_of(listings))

    assert ["running", "flow", "running", "flow", "blocking", "blocked", "running", "closing"] == seen


def test_what_is_shown_of_a_connection(node, listings):
    """A connection is listed with its user, vhost, addresses, limits and client properties."""
    client = Client(node)
    (shown,) = listings.connections(None)

    assert ("guest", "/", "AMQP 0-9-1", 1) == (
        shown["user"],
        shown["vhost"],
        shown["protocol"],
        shown["channels"],
    )
    assert client.connection.name == shown["name"]
    assert shown["client_properties"]["capabilities"]["connection.blocked"] is True


def test_what_is_shown_of_a_channel(node, listings):
    """A channel is listed with its mode and its open consumers, deliveries and publishes."""
    client = Client(node)
    client.declare("q")
    client.publish("q", b"1")
    client.send(make(Basic.Qos, 0, 7, False))
    client.consume("q", "tag")
    client.send(make(Confirm.Select, True))
    (confirming,) = listings.channels(None)
    client = Client(node)
    client.send(Tx.Select())
    client.publish("q", b"2")
    transactional = next(each for each in listings.channels(None) if each["transactional"])

    assert (7, 1, 1, True, "running") == tuple(
        confirming[name]
        for name in ("prefetch_count", "consumer_count", "messages_unacknowledged", "confirm", "state")
    )
    assert (1, False) == (transactional["messages_uncommitted"], transactional["confirm"])


def test_states_of_a_queue(node, listings):
    """A queue is running while it is used, idle after a while without use, and in flow while publishers wait for it."""
    client = Client(node)
    client.declare("q")
    queue = node.vhosts["/"].queues["q"]

    def state() -> str:
        (shown,) = listings.queues(None)
        return shown["state"]

    seen = [state()]
    node.clock.now += IDLE_SECONDS
    seen.append(state())
    client.publish("q", b"")
    seen.append(state())
    node.clock.now += IDLE_SECONDS
    seen.append(state())
    queue.publishers_paused_at = node.now()
    seen.append(state())
    node.clock.now += FLOW_SECONDS
    client.driver.read_limit = 0
    pause = Pause(queue, client.driver, 1)
    seen.append(state())
    pause.expire(node.now())
    seen.append(state())

    assert ["running", "idle", "running", "idle", "flow", "flow", "idle"] == seen


def test_a_queue_that_is_gone_is_not_remembered(node, listings):
    """Queues come and go, and the listing keeps nothing of them."""
    client = Client(node)
    for number in range(3):
        client.declare(f"q{number}")
        list(listings.queues(None))
        client.ask(make(Queue.Delete, 0, f"q{number}", False, False, False))

    assert [] == list(listings.queues(None))
    assert {"/": {}} == listings._seen


def test_what_is_shown_of_a_queue(node, listings):
    """A queue is listed with its counts and its declaration."""
    client = Client(node)
    client.declare("q", exclusive=True, arguments={"x-max-priority": ("long", 3)})
    client.publish("q", b"1")
    client.publish("q", b"2")
    client.ask(make(Basic.Get, 0, "q", False))
    (shown,) = listings.queues(None, "/")

    assert (2, 1, 1, 0) == tuple(
        shown[name] for name in ("messages", "messages_ready", "messages_unacknowledged", "consumers")
    )
    assert (True, {"x-max-priority": 3}) == (shown["exclusive"], shown["arguments"])
    assert (2, 1) == (shown["message_stats"]["publish"], shown["message_stats"]["deliver_get"])


def test_the_confirm_mode_of_a_queue_is_that_in_effect():
    """The requested confirm mode is listed with the arguments and policies; `confirm_mode` is the one in effect."""
    node = Node(confirm_mode="consumer-ack")
    node.vhosts["/"].policies.set("light", "^light", {"confirm-mode": "consumer-ack-light"})
    client = Client(node)
    client.declare("argument", arguments={"x-confirm-mode": ("longstr", "standard")})
    client.declare("default")
    client.declare("light")
    client.declare("light.dead", arguments={"x-dead-letter-exchange": ("longstr", "")})
    client.declare("quorum", durable=True, arguments={"x-queue-type": ("longstr", "quorum")})
    shown = {each["name"]: each for each in node.administration.listings.queues(None)}

    assert {
        "argument": "standard",
        "default": "consumer-ack",
        "light": "consumer-ack-light",
        "light.dead": "consumer-ack",
        "quorum": "standard",
    } == {name: each["confirm_mode"] for name, each in shown.items()}
    assert {"x-confirm-mode": "standard"} == shown["argument"]["arguments"]
    assert {"confirm-mode": "consumer-ack-light"} == shown["light"]["effective_policy_definition"]


def test_what_is_shown_of_consumers(node, listings):
    """A consumer is listed with its counts of deliveries, acks and returns, and whether it is the active one."""
    client = Client(node)
    arguments = {"x-queue-type": ("longstr", "quorum"), "x-single-active-consumer": ("bool", True)}
    client.declare("q", durable=True, arguments=arguments)
    client.consume("q", "a")
    client.consume("q", "b")
    client.receive(publish_frames("q") * 3)
    client.send(make(Basic.Ack, 1, False))
    client.send(make(Basic.Nack, 2, False, True))
    first, second = listings.consumers(None)
    (queue,) = listings.queues(None)

    assert ("single_active", "waiting") == (first["activity_status"], second["activity_status"])
    assert (True, False) == (first["active"], second["active"])
    assert {"deliver": 4, "redeliver": 1, "ack": 1, "returned": 1} == first["message_stats"]
    assert ("quorum", 1.0, "a") == (
        queue["type"],
        queue["consumer_capacity"],
        queue["single_active_consumer_tag"],
    )


def test_alarms(node, listings):
    """Each raised alarm is listed with its cause."""
    seen = [listings.alarms(None)]
    node.resource_monitor.memory.check(node.resource_monitor.memory.limit + 1)
    node.resource_monitor.disk.check(0)
    seen.append(listings.alarms(None))

    assert [
        [],
        [
            {
                "resource": "memory",
                "used": node.resource_monitor.memory.limit + 1,
                "limit": node.resource_monitor.memory.limit,
            },
            {"resource": "disk", "free": 0, "limit": node.resource_monitor.disk.limit, "full": False},
        ],
    ] == seen


def test_who_sees_what(node, listings):
    """The tag management shows a user its own connections, and queues of vhosts it may connect to, but no alarms."""
    Client(node).declare("q")
    node.users.add(ANN)
    seen = [
        list(rows(ANN))
        for rows in (listings.connections, listings.channels, listings.queues, listings.consumers)
    ]
    node.users.set_permissions("ann", "/", "", "", "")

    assert [[], [], [], []] == seen
    assert ["q"] == [each["name"] for each in listings.queues(ANN)]
    with pytest.raises(ForbiddenError, match="Not monitor user"):
        listings.alarms(ANN)
    with pytest.raises(NotFoundError, match="Virtual host 'v' does not exist"):
        listings.queues(None, "v")


def test_a_connection_can_be_closed(node, listings):
    """A connection is closed by its name, with a reason that the client receives, but not by the tag monitoring."""
    client = Client(node)
    with pytest.raises(ForbiddenError, match="Not administrator user"):
        listings.close_connection(User("m", "", ("monitoring",)), client.connection.name, "enough")
    closed = [
        listings.close_connection(None, name, "enough") for name in (client.connection.name, "nobody's")
    ]
    node.run_turn()

    assert [True, False] == closed
    assert ['0 connection.close reply_code=320 reply_text="CONNECTION_FORCED - enough"'] == client.sent()

"""Rows of connections, channels, consumers and queues, and the users who see them."""

import pytest
from doubles.fakes import Client, Node, publish_frames, set_policy
from services.api import OPERATOR, Api

from leveret.broker.administration import ForbiddenError, NotFoundError
from leveret.broker.amqp.commands import Basic, Confirm, Tx, make
from leveret.broker.auth.users import User
from leveret.broker.connection.flow_control import Pause
from leveret.broker.connection.state import FLOW_SECONDS
from leveret.broker.management.clients import consumer_rows, queue_row

ANN = User("ann", "", ("management",))


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
def api(node) -> Api:
    return Api(node, OPERATOR)


def state_of(api: Api) -> str:
    (connection,) = api.get("connections")
    return connection["state"]


def test_states_of_a_connection(node, api):
    """A connection is in flow within five seconds of a pause, blocking during an alarm, blocked once it publishes."""
    client = Client(node)
    seen = [state_of(api)]
    client.connection.paused_at = node.now()
    seen.append(state_of(api))
    node.clock.now += FLOW_SECONDS
    seen.append(state_of(api))
    client.connection.paused_at = float("inf")  # waits for the disk
    seen.append(state_of(api))
    client.connection.paused_at = 0.0
    node.set_alarm("low on memory")
    seen.append(state_of(api))
    client.publish("q", b"")
    seen.append(state_of(api))
    node.set_alarm("")
    seen.append(state_of(api))
    client.connection.force_close("the end")
    seen.append(state_of(api))

    assert ["running", "flow", "running", "flow", "blocking", "blocked", "running", "closing"] == seen


def test_what_is_shown_of_a_connection(node, api):
    """A connection is listed with its user, vhost, addresses, limits and client properties."""
    client = Client(node)
    (shown,) = api.get("connections")

    assert ("guest", "/", "AMQP 0-9-1", 1) == (
        shown["user"],
        shown["vhost"],
        shown["protocol"],
        shown["channels"],
    )
    assert client.connection.name == shown["name"]
    assert shown["client_properties"]["capabilities"]["connection.blocked"] is True


def test_what_is_shown_of_a_channel(node, api):
    """A channel is listed with its mode and its open consumers, deliveries and publishes."""
    client = Client(node)
    client.declare("q")
    client.publish("q", b"1")
    client.send(make(Basic.Qos, 0, 7, False))
    client.consume("q", "tag")
    client.send(make(Confirm.Select, True))
    (confirming,) = api.get("channels")
    client = Client(node)
    client.send(Tx.Select())
    client.publish("q", b"2")
    transactional = next(each for each in api.get("channels") if each["transactional"])

    assert (7, 1, 1, True, "running") == tuple(
        confirming[name]
        for name in ("prefetch_count", "consumer_count", "messages_unacknowledged", "confirm", "state")
    )
    assert (1, False) == (transactional["messages_uncommitted"], transactional["confirm"])


def test_states_of_a_queue(node, api):
    """A queue is in flow while publishers wait for it, and for a while after."""
    client = Client(node)
    client.declare("q")
    queue = node.vhosts["/"].queues["q"]

    def state() -> str:
        (shown,) = api.get("queues")
        return shown["state"]

    seen = [state()]
    queue.publishers_paused_at = node.now()
    seen.append(state())
    node.clock.now += FLOW_SECONDS
    client.driver.read_limit = 0
    pause = Pause(queue, client.driver, 1)
    seen.append(state())
    pause.expire(node.now())
    seen.append(state())

    assert ["running", "flow", "flow", "running"] == seen


def test_what_is_shown_of_a_queue(node, api):
    """A queue is listed with its counts and its declaration."""
    client = Client(node)
    client.declare("q", exclusive=True, arguments={"x-max-priority": ("long", 3)})
    client.publish("q", b"1")
    client.publish("q", b"2")
    client.ask(make(Basic.Get, 0, "q", False))
    (shown,) = api.get("queues/%2F")

    assert (2, 1, 1, 0) == tuple(
        shown[name] for name in ("messages", "messages_ready", "messages_unacknowledged", "consumers")
    )
    assert (True, {"x-max-priority": 3}) == (shown["exclusive"], shown["arguments"])
    assert (2, 1) == (shown["message_stats"]["publish"], shown["message_stats"]["deliver_get"])


def test_the_confirm_mode_of_a_queue_is_that_in_effect():
    """The requested confirm mode is listed with the arguments and policies; `confirm_mode` is the one in effect."""
    node = Node(confirm_mode="consumer-ack")
    set_policy(node.vhosts["/"].policies, "light", "^light", {"confirm-mode": "consumer-ack-light"})
    client = Client(node)
    client.declare("argument", arguments={"x-confirm-mode": ("longstr", "standard")})
    client.declare("default")
    client.declare("light")
    client.declare("light.dead", arguments={"x-dead-letter-exchange": ("longstr", "")})
    client.declare("quorum", durable=True, arguments={"x-queue-type": ("longstr", "quorum")})
    shown = {each["name"]: each for each in Api(node, OPERATOR).get("queues")}

    assert {
        "argument": "standard",
        "default": "consumer-ack",
        "light": "consumer-ack-light",
        "light.dead": "consumer-ack",
        "quorum": "standard",
    } == {name: each["confirm_mode"] for name, each in shown.items()}
    assert {"x-confirm-mode": "standard"} == shown["argument"]["arguments"]
    assert {"confirm-mode": "consumer-ack-light"} == shown["light"]["effective_policy_definition"]


def test_what_is_shown_of_consumers(node, api):
    """A consumer is listed with its counts of deliveries, acks and returns, and whether it is the active one."""
    client = Client(node)
    arguments = {"x-queue-type": ("longstr", "quorum"), "x-single-active-consumer": ("bool", True)}
    client.declare("q", durable=True, arguments=arguments)
    client.consume("q", "a")
    client.consume("q", "b")
    client.receive(publish_frames("q") * 3)
    client.send(make(Basic.Ack, 1, False))
    client.send(make(Basic.Nack, 2, False, True))
    first, second = consumer_rows(node, "/", "q")
    (queue,) = api.get("queues")

    assert ("single_active", "waiting") == (first["activity_status"], second["activity_status"])
    assert (True, False) == (first["active"], second["active"])
    assert {"deliver": 4, "redeliver": 1, "ack": 1, "returned": 1} == first["message_stats"]
    assert ("quorum", 1.0, "a") == (
        queue["type"],
        queue["consumer_capacity"],
        queue["single_active_consumer_tag"],
    )


def test_who_sees_what(node):
    """The tag management shows a user its own connections, and queues of vhosts it may connect to."""
    Client(node).declare("q")
    node.users.add(ANN)
    listings = node.administration.listings
    seen = [
        list(rows(ANN))
        for rows in (listings.connections, listings.channels, listings.queues, listings.consumers)
    ]
    node.users.set_permissions("ann", "/", "", "", "")

    assert [[], [], [], []] == seen
    assert ["q"] == [each.name for each in listings.queues(ANN)]
    with pytest.raises(NotFoundError, match="Virtual host 'v' does not exist"):
        listings.queues(None, "v")
    with pytest.raises(NotFoundError, match="no queue 'x' in vhost '/'"):
        queue_row(node, "/", "x")


def test_connections_can_be_closed(node):
    """They are closed with a reason that the client receives, but not by the tag monitoring."""
    listings = node.administration.listings
    client = Client(node)
    with pytest.raises(ForbiddenError, match="not authorised to access virtual host"):
        listings.close_connections(ANN, "enough", "/")
    closed = [
        listings.close_connections(actor, "enough", user=user)
        for actor, user in ((User("m", "", ("monitoring",)), None), (None, "nobody"), (None, "guest"))
    ]
    node.run_turn()

    assert [0, 0, 1] == closed
    assert ['0 connection.close reply_code=320 reply_text="CONNECTION_FORCED - enough"'] == client.sent()

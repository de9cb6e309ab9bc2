"""Limits on the number of objects and on the size of their arguments."""

import pytest
from doubles.fakes import Client, Node

from leveret.broker.amqp.commands import Basic, Exchange, Queue, make
from leveret.broker.amqp.tables import Table
from leveret.broker.auth.users import VHostLimits
from leveret.broker.channel.settings import DefaultLimits, Limits
from leveret.broker.config.config import ConfigError, load

LARGE: Table = {"x-text": ("longstr", "x" * 16_400)}


def close_text(client: Client) -> str:
    """Return the text of the last close that was sent."""
    return str(client.take()[-1].method.reply_text)


def declare_exchange(name: str, arguments: Table | None = None) -> object:
    return make(Exchange.Declare, 0, name, "direct", False, False, False, False, False, arguments or {})


def bind(queue: str, key: str, arguments: Table | None = None) -> object:
    return make(Queue.Bind, 0, queue, "amq.direct", key, False, arguments or {})


def test_queues_are_limited_in_all_vhosts_together():
    """A queue above the limit is refused with RabbitMQ's text; an existing one may be redeclared."""
    node = Node(limits=Limits(cluster_queue_limit=2), vhosts=("/", "other"))
    client = Client(node)
    client.declare("q1")
    node.vhosts["other"].create_queue(
        "q2", durable=False, exclusive_owner=None, auto_delete=False, arguments={}
    )

    assert ["1 queue.declare-ok queue=q1"] == client.declare("q1")
    client.send(make(Queue.Declare, 0, "q3", False, False, False, False, False, {}))
    text = "PRECONDITION_FAILED - cannot declare queue 'q3': queue limit in cluster (2) is reached"
    assert text == close_text(client)


def test_exchanges_are_limited_in_all_vhosts_together():
    """An exchange above the limit is refused with RabbitMQ's text; predeclared ones count."""
    client = Client(Node(limits=Limits(cluster_exchange_limit=8)))

    assert ["1 exchange.declare-ok"] == client.ask(declare_exchange("x1"))
    assert ["1 exchange.declare-ok"] == client.ask(declare_exchange("x1"))
    client.send(declare_exchange("x2"))
    text = "PRECONDITION_FAILED - cannot declare exchange 'x2' in vhost '/': exchange limit of 8 is reached"
    assert text == close_text(client)


def test_bindings_are_limited_in_each_vhost():
    """A binding above the limit is refused; an existing one may be repeated, and unbinding makes room."""
    node = Node(limits=Limits(vhost_bindings={"/": 2}))
    client = Client(node)
    client.declare("q")
    for key in ("a", "b", "b"):
        assert ["1 queue.bind-ok"] == client.ask(bind("q", key))
    client.send(make(Queue.Unbind, 0, "q", "amq.direct", "a", {}))
    client.sent()

    assert ["1 queue.bind-ok"] == client.ask(bind("q", "c"))
    client.send(bind("q", "d"))
    text = "PRECONDITION_FAILED - cannot add a binding: binding limit in vhost '/' (2) is reached"
    assert text == close_text(client)


@pytest.mark.parametrize(
    "method",
    [
        make(Queue.Declare, 0, "new", False, False, False, False, False, LARGE),
        declare_exchange("new", LARGE),
        bind("q", "key", LARGE),
        make(Exchange.Bind, 0, "amq.fanout", "amq.direct", "key", False, LARGE),
        make(Basic.Consume, 0, "q", "tag", False, False, False, False, LARGE),
    ],
)
def test_large_arguments_are_refused(method):
    """Arguments to be stored that exceed the limit are refused, of any object."""
    client = Client()
    client.declare("q")
    client.send(method)

    octets = 4 + 1 + len("x-text") + 1 + 4 + 16_400
    text = f"PRECONDITION_FAILED - arguments of {octets} bytes are too large: limits.argument_bytes is 16384"
    assert text == close_text(client)


def test_arguments_are_limited_by_their_own_size():
    """A method above the limit is accepted if its arguments are not, and the limit can be raised."""
    arguments: Table = {"x-text": ("longstr", "x" * 16_360)}
    client = Client()

    assert ["1 exchange.declare-ok"] == client.ask(declare_exchange("x" * 200, arguments))
    assert ["1 exchange.declare-ok"] == Client(Node(limits=Limits(argument_octets=20_000))).ask(
        declare_exchange("x", LARGE)
    )


def test_limits_are_configured_with_the_keys_of_rabbitmq():
    """Keys of limits are RabbitMQ's if it has the limit; `infinity`, and `-1` for those of new vhosts, is none."""
    limits = load(
        settings=[
            "cluster_queue_limit = infinity",
            "cluster_exchange_limit = 10",
            "limits.vhost.a.max_bindings = 5",
            "limits.argument_bytes = 64KiB",
            "default_limits.vhosts.10.pattern = .*",
            "default_limits.vhosts.10.max_queues = 7",
            "default_limits.vhosts.2.pattern = ^dev",
            "default_limits.vhosts.2.max_connections = 3",
            "default_limits.vhosts.2.max_queues = -1",
        ]
    ).limits

    assert (None, 10, 65536) == (
        limits.cluster_queue_limit,
        limits.cluster_exchange_limit,
        limits.argument_octets,
    )
    assert {"a": 5} == limits.vhost_bindings
    assert (
        DefaultLimits("^dev", VHostLimits(3)),
        DefaultLimits(".*", VHostLimits(None, 7)),
    ) == limits.default_limits


def test_a_wrong_pattern_of_limits_is_reported():
    """An invalid pattern is an error of the configuration that names its key."""
    with pytest.raises(ConfigError) as caught:
        load(settings=["default_limits.vhosts.1.pattern = ("])

    assert "default_limits.vhosts.1.pattern" in str(caught.value)


def test_new_vhosts_get_the_limits_of_the_first_pattern_that_matches():
    """A new vhost gets the limits of the first pattern that matches its name, or none."""
    limits = (DefaultLimits("^dev", VHostLimits(3)), DefaultLimits("^d", VHostLimits(None, 7)))
    node = Node(limits=Limits(default_limits=limits), vhosts=("/", "developers", "data"))

    found = {name: node.users.vhost_limits(name) for name in node.vhosts}
    assert {"/": (None, None), "developers": (3, None), "data": (None, 7)} == {
        name: (each.max_connections, each.max_queues) for name, each in found.items()
    }

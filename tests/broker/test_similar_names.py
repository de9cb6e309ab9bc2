"""Names that a mistyped one may stand for."""

import pytest
from doubles.fakes import Node

from leveret.broker.administration import NotFoundError
from leveret.broker.errors import did_you_mean


def test_the_nearest_name_is_named():
    """One that is quite another, or begins with another letter, is not."""
    names = ["default", "orders", "orders.retry", "mail"]

    assert "; did you mean 'default'?" == did_you_mean("defalt", names)
    assert "; did you mean 'orders'?" == did_you_mean("oders", names)
    assert ["", "", ""] == [did_you_mean(name, names) for name in ("xyz", "tail", "")]


def test_many_names_take_a_moment():
    """Some hundreds are compared at most."""
    assert "; did you mean 'queue-00007'?" == did_you_mean(
        "queu-00007", (f"queue-{n:05}" for n in range(100_000))
    )


def test_errors_of_operations_name_it():
    """For queues, exchanges and virtual hosts; clients of AMQP get RabbitMQ's texts."""
    node = Node()
    node.administration.topology.declare_queue(None, "/", "default")
    node.administration.vhosts.put(None, "shop")
    for ask, text in (
        (lambda: next(node.administration.explaining.queue(None, "/", "defalt")), "no queue 'defalt' in vhost '/'; did you mean 'default'?"),
        (lambda: node.administration.explaining.publish(None, "/", "amq.topik", ""), "no exchange 'amq.topik' in vhost '/'; did you mean 'amq.topic'?"),
        (lambda: next(node.administration.explaining.queue(None, "shp", "x")), "Virtual host 'shp' does not exist; did you mean 'shop'?"),
    ):  # fmt: skip
        with pytest.raises(NotFoundError) as raised:
            ask()
        assert text == str(raised.value)

"""The ports of the HTTP listeners beside that for AMQP."""

import pytest

from leveret.broker.config.config import load


@pytest.mark.parametrize(
    ("amqp", "expected"),
    [(None, (15672, 15692)), (5672, (15672, 15692)), (5680, (15680, 15700)), (0, (15672, 15692))],
)
def test_they_follow_the_port_of_the_command_line(amqp, expected):
    """By 10,000 and 10,020; like the usual ones they need not be free."""
    config = load(amqp_port=amqp)

    assert expected == (config.management.port, config.prometheus.port)
    assert not config.management.required
    assert not config.prometheus.required


def test_a_port_that_is_set_stays():
    """The usual one, too; the other listener moves."""
    config = load(settings=["management.tcp.port=15672"], amqp_port=5680)

    assert (15672, 15700) == (config.management.port, config.prometheus.port)


def test_a_port_beyond_the_last_is_not_moved():
    """A broker on one of the highest ports has the usual ones."""
    assert 15672 == load(amqp_port=60_000).management.port


def test_another_address_needs_a_free_port():
    """The administrator relies on it."""
    assert load(settings=["management.tcp.ip=127.0.0.2"], amqp_port=5680).management.required

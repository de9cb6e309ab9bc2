"""The firehose shows the same script of a client as RabbitMQ does, message by message and header by header."""

from collections.abc import Callable

from conformance import firehose
from conformance.brokers import Broker

EXPLAINED = {
    # what is delivered has its BCC header no more, and RabbitMQ keeps the keys elsewhere
    '"routing_keys": ["a.bcc", "a.y"], "properties": {"headers": {}}, "redelivered"': (
        '"routing_keys": ["a.bcc"], "properties": {"headers": {}}, "redelivered"'
    ),
    # since RabbitMQ 3.13
    '"x-first-death-reason": "rejected"}': (
        '"x-first-death-reason": "rejected", "x-last-death-exchange": "", "x-last-death-queue": "d", '
        '"x-last-death-reason": "rejected"}'
    ),
}
"""Parts of RabbitMQ's lines, and what ours have there."""


def test_the_firehose_shows_what_rabbitmq_shows(broker_for: Callable[[str], Broker]) -> None:
    """Ours shows what the record of RabbitMQ has: which messages, their routing keys, headers and bodies."""
    expected = firehose.RECORD.read_text(encoding="utf-8").rstrip("\n")
    for theirs, ours in EXPLAINED.items():
        assert 1 == expected.count(theirs)
        expected = expected.replace(theirs, ours)

    assert expected.splitlines() == firehose.record(broker_for("main"))

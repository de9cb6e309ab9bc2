"""Records of scripts that are compared with ours elsewhere, compared with the RabbitMQ of this machine, which is started once."""

from collections.abc import Iterator

import pytest
from conformance import firehose, redeclared
from conformance.brokers import Broker, SetUp, rabbitmq_server, start_rabbitmq

pytestmark = [
    pytest.mark.skipif(rabbitmq_server() is None, reason="needs rabbitmq-server"),
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def rabbitmq() -> Iterator[Broker]:
    """A RabbitMQ without clients."""
    broker = start_rabbitmq(SetUp("main"))
    yield broker
    broker.stop()


def test_the_firehose_shows_what_was_recorded(rabbitmq: Broker) -> None:
    """Its firehose shows each message of the script as in the record."""
    assert firehose.RECORD.read_text(encoding="utf-8").splitlines() == firehose.record(rabbitmq)


def test_arguments_are_compared_as_was_recorded(rabbitmq: Broker) -> None:
    """RabbitMQ 3.10 accepts and refuses arguments of declared queues as in the record."""
    recorded = redeclared.recorded()["3.10"]

    assert {case: answer for case, answer in recorded.items() if answer != "-"} == dict(
        redeclared.outcomes(rabbitmq.address)
    )

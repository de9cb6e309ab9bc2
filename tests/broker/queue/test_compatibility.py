"""What RabbitMQ 4 changed of queues, in a broker with its profile."""

from pathlib import Path

import pytest

import leveret

PROFILE = {"compatibility.profile": "4.3"}
QUORUM = {"x-queue-type": "quorum"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-queue-version": 1},
        {"x-queue-master-locator": "min-masters"},
        {"x-delivery-limit": 3},
        {**QUORUM, "x-delayed-retry-type": "all"},
    ],
    ids=str,
)
def test_import_follows_the_rules_of_arguments(arguments):
    """Definitions with an argument that 4.3 refuses are refused with its profile, and imported without it."""
    document = {"queues": [{"vhost": "/", "name": "q", "durable": True, "arguments": arguments}]}
    with leveret.Broker() as broker:
        broker.import_definitions(document)
    with (
        leveret.Broker(config=PROFILE) as broker,
        pytest.raises(leveret.LeveretError, match=r"x-queue-version|queue_master|x-del"),
    ):
        broker.import_definitions(document)


def test_queues_of_before_stay(tmp_path: Path):
    """A queue of an earlier run keeps an argument that a new one may not have."""
    with leveret.Broker(data_dir=tmp_path) as broker:
        broker.declare("q", durable=True, arguments={"x-delivery-limit": 3})
    with leveret.Broker(data_dir=tmp_path, config=PROFILE) as broker:
        assert ["q"] == broker.queues()

"""Our broker answers octet for octet as the records of RabbitMQ's answers have it, in the profile of each."""

from collections.abc import Callable

import pytest
from conformance import octets
from conformance.brokers import Broker
from conformance.codec import BY_NAME
from conformance.peers import PEERS, Peer

FROM_CLIENTS = {
    "access.request", "basic.consume", "basic.get", "basic.publish", "basic.qos", "basic.recover", "basic.recover-async",
    "basic.reject", "channel.flow", "channel.open", "confirm.select", "connection.open", "connection.secure-ok",
    "connection.start-ok", "connection.tune-ok", "connection.update-secret", "exchange.bind", "exchange.declare",
    "exchange.delete", "exchange.unbind", "queue.bind", "queue.declare", "queue.delete", "queue.purge", "queue.unbind",
    "tx.commit", "tx.rollback", "tx.select",
}  # fmt: skip
NEVER_SENT = {"connection.secure": "no mechanism has a challenge"}


BY_PEER = pytest.mark.parametrize("peer", [pytest.param(peer, id=name) for name, peer in PEERS.items()])


@BY_PEER
@pytest.mark.parametrize("name", octets.SCRIPTS)
def test_octets(name: str, peer: Peer, broker_for: Callable[..., Broker]) -> None:
    """Each frame that our broker answers a script with is octet for octet RabbitMQ's."""
    broker = broker_for(octets.SCRIPTS[name][0], peer.profile)

    assert octets.expected(peer, name) == octets.record(broker, name)


@BY_PEER
def test_every_method_is_recorded(peer: Peer) -> None:
    """Each method that a broker sends is in the record at least once."""
    recorded = {line.partition(":")[0] for lines in octets.read(peer).values() for line in lines}

    assert set(BY_NAME) - FROM_CLIENTS - set(NEVER_SENT) == {name for name in recorded if "." in name}


@BY_PEER
def test_no_script_without_a_record(peer: Peer) -> None:
    """The record and the scripts are of the same names."""
    assert set(octets.SCRIPTS) == set(octets.read(peer))

"""pamqp writes the methods that the broker sends, except a few; the octets are RabbitMQ's in any case."""

from collections import defaultdict
from itertools import chain

import pytest
from conformance import octets
from conformance.peers import PEERS

from leveret.broker.amqp import codec

OURS = {
    "channel.open-ok": "pamqp refuses an empty field, which RabbitMQ sends",
    "connection.start": "pamqp sorts the fields of tables, and chooses the types",
    "basic.deliver": "a part of a message: broker.amqp.fastpath",
    "basic.get-ok": "a part of a message",
    "basic.return": "a part of a message",
    "basic.ack": "the confirm of a message",
    "basic.nack": "the confirm of a message",
}
"""Methods that pamqp does not write, and why."""
BY_PAMQP = [
    "access.request-ok", "basic.cancel", "basic.cancel-ok", "basic.consume-ok", "basic.get-empty", "basic.qos-ok",
    "basic.recover-ok", "channel.close", "channel.close-ok", "channel.flow-ok", "confirm.select-ok",
    "connection.blocked", "connection.close", "connection.close-ok", "connection.open-ok", "connection.tune",
    "connection.unblocked", "connection.update-secret-ok", "exchange.bind-ok", "exchange.declare-ok",
    "exchange.delete-ok", "exchange.unbind-ok", "queue.bind-ok", "queue.declare-ok", "queue.delete-ok",
    "queue.purge-ok", "queue.unbind-ok", "tx.commit-ok", "tx.rollback-ok", "tx.select-ok",
]  # fmt: skip
"""Methods that pamqp writes."""


MASKED = b"REPLY-TO.B64.B64".hex()
"""An address in the record that does not have its length."""


def recorded() -> dict[str, list[bytes]]:
    """The frames of methods that RabbitMQ has answered with, by method."""
    found: dict[str, list[bytes]] = defaultdict(list)
    for lines in chain.from_iterable(octets.read(peer).values() for peer in PEERS.values()):
        for line in lines:
            name, header, payload = (*line.split(" "), "")[:3]
            if header.startswith("01") and MASKED not in payload:
                found[name.removesuffix(":")].append(bytes.fromhex(header + payload) + b"\xce")
    return found


def test_each_method_is_written_by_pamqp_or_by_ours() -> None:
    """Every method that RabbitMQ was seen to send is in exactly one of the two lists."""
    assert recorded().keys() == OURS.keys() | set(BY_PAMQP)
    assert not OURS.keys() & set(BY_PAMQP)


@pytest.mark.parametrize("name", [*BY_PAMQP, "channel.open-ok", "connection.start"])
def test_the_octets_are_rabbitmqs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames that RabbitMQ has sent are decoded and encoded to the same octets, and the named encoder has written them."""
    frames = recorded()[name]
    written: list[bytes] = []

    def marshal(method: codec.Frame, channel_id: int) -> bytes:
        written.append(codec_marshal(method, channel_id))
        return written[-1]

    codec_marshal = codec.marshal
    monkeypatch.setattr(codec, "marshal", marshal)
    for frame in frames:
        method = codec.decode_method(frame, 7, len(frame) - 1)
        channel_id = int.from_bytes(frame[1:3], "big")
        assert frame == codec.encode_method(channel_id, method)
        assert frame == codec.encode_any_method(channel_id, method)

    assert written == (frames if name in BY_PAMQP else [])

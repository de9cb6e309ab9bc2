"""Deliveries become publishes, confirms become acks: against a list and a set, however the bytes are cut."""

import pytest
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.codec import decode_method, encode_method
from leveret.broker.amqp.commands import Basic, make
from leveret.broker.amqp.fastpath import content_frames, pack_confirm, unpack_frame
from leveret.broker.amqp.properties import Properties, build
from leveret.broker.client.errors import UnreachableError
from leveret.broker.shovel.definition import NO_ACK, ON_CONFIRM, ON_PUBLISH
from leveret.broker.shovel.forwarding import Deliveries, Forwarding, Settlements


def delivery(tag: int, body: bytes, exchange: str = "x", key: str = "k", frame_max: int = 0) -> bytes:
    method = encode_method(1, make(Basic.Deliver, "ctag", tag, False, exchange, key))
    return method + content_frames(1, frame_max, build(len(body), app_id="app"), body)


def consuming(forwarding: Forwarding) -> Deliveries:
    """Return the receiving side of a source that has a consumer."""
    receiving = Deliveries(forwarding)
    receiving.is_consuming = True
    receiving.frame_max = 131_072
    return receiving


def frames(octets: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at < len(octets):
        kind, _, size = unpack_frame(octets, at)
        found.append((kind, octets[at + 7 : at + 7 + size]))
        at += size + 8
    return found


def published(octets: bytes) -> list[tuple[str, str, bytes]]:
    """Return exchange, routing key and body of each publish."""
    messages: list[tuple[str, str, bytes]] = []
    for kind, payload in frames(octets):
        if kind == 1:
            method = decode_method(payload, 0, len(payload))
            messages.append((method.exchange, method.routing_key, b""))
        elif kind == 3:
            messages[-1] = (*messages[-1][:2], messages[-1][2] + payload)
    return messages


def acks(octets: bytes) -> list[tuple[bool, int, bool]]:
    """Return of each ack and nack whether it is an ack, its tag and whether it stands for several."""
    methods = [decode_method(payload, 0, len(payload)) for _, payload in frames(octets)]
    return [(isinstance(each, Basic.Ack), each.delivery_tag, each.multiple) for each in methods]


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=60), min_size=1, max_size=12),
    st.lists(st.integers(1, 90)),
    st.sampled_from([0, 24]),
)
def test_deliveries_are_published_in_order_however_they_are_cut(bodies, cuts, frame_max):
    """Exchange, key, properties and body stay as they are."""
    forwarding = Forwarding(ON_CONFIRM, None, None)
    receiving = consuming(forwarding)
    octets = b"".join(
        delivery(tag, body, key=f"k{tag}", frame_max=frame_max) for tag, body in enumerate(bodies, 1)
    )
    out = b""
    for size in [*cuts, len(octets)]:
        piece, octets = octets[:size], octets[size:]
        if piece:
            receiving.feed(piece, 0)
            out += forwarding.take_publishes()

    assert [("x", f"k{tag}", body) for tag, body in enumerate(bodies, 1)] == published(out)
    assert {"app"} == {Properties(payload).app_id for kind, payload in frames(out) if kind == 2}
    assert len(bodies) == forwarding.unconfirmed


@settings(deadline=None)
@given(
    st.integers(1, 12),
    st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.booleans()), max_size=20),
    st.data(),
)
def test_each_message_is_settled_once_as_the_destination_has_settled_it(count, verdicts, data):
    """Acks of several never cover what is open or refused; what is confirmed and not acked yet is acked at the end."""
    forwarding = Forwarding(ON_CONFIRM, "", "q")
    consuming(forwarding).feed(b"".join(delivery(tag, b"b") for tag in range(1, count + 1)), 0)
    forwarding.take_publishes()
    receiving = Settlements(forwarding)
    open_there, open_here = set(range(1, count + 1)), set(range(1, count + 1))
    confirmed: set[int] = set()
    refused: set[int] = set()
    acked: set[int] = set()
    nacked: set[int] = set()
    for is_ack, number, multiple in verdicts:
        if number > count or (not number and not multiple):
            continue
        done = {
            each for each in open_there if each == number or (multiple and (each <= number or not number))
        }
        if not done:
            continue
        open_there -= done
        (confirmed if is_ack else refused).update(done)
        receiving.feed(pack_confirm(1, number, multiple=multiple, ack=is_ack), 0)
        if data.draw(st.booleans()):
            _apply(forwarding.take_settlements(), open_here, acked, nacked)
    _apply(forwarding.take_settlements(), open_here, acked, nacked)

    assert (confirmed, refused) == (acked, nacked)
    assert (len(confirmed), len(refused), len(open_there)) == (
        forwarding.settled,
        forwarding.refused,
        forwarding.unconfirmed,
    )


def _apply(octets: bytes, open_here: set[int], acked: set[int], nacked: set[int]) -> None:
    """Settle at the source; an ack or nack that settles nothing would close the channel there."""
    for is_ack, tag, multiple in acks(octets):
        done = {each for each in open_here if each == tag or (multiple and each <= tag)}
        assert done, (is_ack, tag, multiple)
        open_here -= done
        (acked if is_ack else nacked).update(done)


def test_no_more_than_the_limit_is_published():
    """Further deliveries stay unacked."""
    forwarding = Forwarding(ON_CONFIRM, "", "q")
    forwarding.most = 2
    consuming(forwarding).feed(b"".join(delivery(tag, b"b") for tag in (1, 2, 3)), 0)

    assert [("", "q", b"b")] * 2 == published(forwarding.take_publishes())
    assert not forwarding.is_complete
    Settlements(forwarding).feed(pack_confirm(1, 2, multiple=True, ack=True), 0)
    assert forwarding.is_complete
    assert [(True, 2, True)] == acks(forwarding.take_settlements())


@pytest.mark.parametrize(("mode", "settled"), [(ON_PUBLISH, [(True, 1, True)]), (NO_ACK, [])])
def test_without_confirms_a_message_is_settled_once_it_is_sent_whole(mode, settled):
    """Not while half of its body is missing."""
    forwarding = Forwarding(mode, "", "q")
    receiving = consuming(forwarding)
    octets = delivery(1, b"body") + delivery(2, b"body")
    receiving.feed(octets[:-3], 0)
    forwarding.take_publishes()
    forwarding.sent(is_open=receiving.is_open)

    assert settled == acks(forwarding.take_settlements())
    assert (1, 1) == (forwarding.settled, forwarding.unconfirmed)
    receiving.feed(octets[-3:], 0)
    forwarding.take_publishes()
    forwarding.sent(is_open=receiving.is_open)
    assert 2 == forwarding.settled


def test_properties_are_rewritten():
    """The header frame is replaced, whether it arrives with its body or alone."""
    forwarding = Forwarding(ON_CONFIRM, "", "q")
    forwarding.rewrite = lambda payload: Properties(payload).replace(app_id="other", message_id="m")
    receiving = consuming(forwarding)
    octets = delivery(1, b"one") + delivery(2, b"two")
    for at in range(0, len(octets), 70):
        receiving.feed(octets[at : at + 70], 0)
    out = forwarding.take_publishes()

    assert [b"one", b"two"] == [body for _, _, body in published(out)]
    assert ["other", "other"] == [Properties(payload).app_id for kind, payload in frames(out) if kind == 2]


def test_a_tag_that_is_not_the_next_ends_the_connection():
    """Otherwise acks would be for other messages."""
    with pytest.raises(UnreachableError, match="delivery tag 5 instead of 1"):
        consuming(Forwarding(ON_CONFIRM, "", "q")).feed(delivery(5, b"b"), 0)


def test_a_confirm_of_what_was_not_published_ends_the_connection():
    """It cannot be an ack of anything."""
    with pytest.raises(UnreachableError, match="confirmed 1 of 0 messages"):
        Settlements(Forwarding(ON_CONFIRM, "", "q")).feed(pack_confirm(1, 1, multiple=False, ack=True), 0)

"""The handshake from the protocol header to open-ok, and all its failures."""

from itertools import pairwise
from typing import Any

import pytest
from doubles.fakes import CAPABILITIES, Client, Node
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Channel, Connection as Wire, make
from leveret.broker.amqp.fastpath import HEARTBEAT
from leveret.broker.amqp.tables import Table
from leveret.broker.channel.settings import Compatibility
from leveret.broker.connection.handshake import PROTOCOL_HEADER

DELAY = 3.0


def start_ok(user: str = "guest", password: str = "guest", properties: Table | None = None) -> Any:
    return make(Wire.StartOk, properties or {}, "PLAIN", f"\0{user}\0{password}", "en_US")


def tune_ok(channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 60) -> Any:
    return make(Wire.TuneOk, channel_max, frame_max, heartbeat)


def open_(vhost: str = "/") -> Any:
    return make(Wire.Open, vhost, "", False)


def talk(node: Node | None, *methods: Any) -> tuple[Client, list[str]]:
    """Send the header and these methods; returns the client and the replies after the start."""
    client = Client(node, connect=False)
    client.receive(PROTOCOL_HEADER)
    client.sent()
    for method in methods:
        client.receive(method if isinstance(method, bytes) else encode_method(0, method))
    return client, client.sent()


def assert_silent(client: Client, sent: list[str]) -> None:
    """The client is sent nothing and its socket closes after a delay."""
    assert ([], "closed", DELAY) == (sent, client.connection.state, client.driver.closed)


HANDSHAKE = PROTOCOL_HEADER + b"".join(encode_method(0, each) for each in (start_ok(), tune_ok(), open_()))


def test_the_way_in():
    """Header, start-ok, tune-ok and open are each answered, and the negotiated values apply."""
    client, sent = talk(
        Node(), start_ok(properties={"capabilities": ("table", CAPABILITIES)}), tune_ok(7, 8192, 5), open_()
    )
    connection = client.connection

    assert [
        "0 connection.tune channel_max=2047 frame_max=131072 heartbeat=60",
        "0 connection.open-ok",
    ] == sent
    assert ("open", 7, 8192, 5) == (
        connection.state,
        connection.channel_max,
        connection.frame_max,
        connection.heartbeat,
    )
    assert connection.notifies_cancel
    assert {connection} == client.node.clients.connections


@settings(max_examples=40)
@given(st.lists(st.integers(0, len(HANDSHAKE)), max_size=6))
def test_the_split_of_a_handshake_does_not_matter(cuts):
    """The handshake may arrive in any pieces, and with frames of the open connection behind it."""
    octets = HANDSHAKE + encode_method(1, Channel.Open())
    client = Client(connect=False)
    bounds = [0, *sorted(cuts), len(octets)]
    for start, stop in pairwise(bounds):
        client.receive(octets[start:stop])

    names = [line.split(" ")[1] for line in client.sent()]
    assert ["connection.start", "connection.tune", "connection.open-ok", "channel.open-ok"] == names


# -- login ------------------------------------------------------------------------------------------------------------


def test_nobody_is_anonymous_by_default():
    """A client without credentials is not let in unless a user is configured for it, and the mechanism is offered."""
    anonymous = make(Wire.StartOk, {}, "ANONYMOUS", "anybody", "en_US")
    client, sent = talk(Node(), anonymous)
    assert_silent(client, sent)
    assert b"ANONYMOUS" not in Node().start_frame
    enabled: dict[str, Any] = {"auth_mechanisms": ("PLAIN", "ANONYMOUS")}
    for user, state in (("guest", "open"), ("nobody", "closed")):
        node = Node(anonymous_user=user, **enabled)
        client, sent = talk(node, anonymous, *((tune_ok(), open_()) if state == "open" else ()))
        assert b"PLAIN ANONYMOUS" in node.start_frame
        assert state == client.connection.state
        assert state != "open" or user == client.connection.user.name


@pytest.mark.parametrize(("password", "state"), [("guest", "tuning"), ("other", "closed")])
def test_anonymous_logins_may_need_the_users_password(password: str, state: str) -> None:
    """With `anonymous_login_pass`, ANONYMOUS opens no door that is closed to the user with this password."""
    node = Node(auth_mechanisms=("ANONYMOUS",), anonymous_user="guest", anonymous_pass=password)
    client, _ = talk(node, make(Wire.StartOk, {}, "ANONYMOUS", "", "en_US"))

    assert state == client.connection.state


# -- limits -----------------------------------------------------------------------------------------------------------


def test_frames_before_open_are_small():
    """A frame above `initial_frame_max` ends the handshake before it has arrived."""
    node = Node(initial_frame_max=8192)
    client, sent = talk(node, b"\x01\x00\x00" + (8193).to_bytes(4, "big") + b"\x00")

    assert_silent(client, sent)
    client, sent = talk(node, b"\x01\x00\x00" + (8192).to_bytes(4, "big") + b"\x00")
    assert "starting" == client.connection.state


def test_octets_before_open_are_few():
    """The octets before the login are limited in total, however small the frames."""
    client, sent = talk(None, HEARTBEAT * 8000)
    assert "starting" == client.connection.state
    client.receive(HEARTBEAT * 1000)

    assert_silent(client, sent + client.sent())


def test_a_handshake_has_a_deadline():
    """A handshake that is not complete in time is cut off; a complete one is not."""
    slow, quick = Client(connect=False), Client()
    now = slow.node.clock.now

    assert now + 10.0 == slow.connection.tick(now + 9.9)
    assert slow.connection.tick(now + 10.0) is None
    assert ("closed", 0.0) == (slow.connection.state, slow.driver.closed)
    quick.connection.tick(now + 10.0)
    assert "open" == quick.connection.state


# -- tune -------------------------------------------------------------------------------------------------------------


def test_without_limits_everything_is_allowed():
    """A node without limits accepts 0, no limit."""
    node = Node(frame_max=0, channel_max=0, heartbeat=0, compatibility=Compatibility(frame_min=4096))
    client, sent = talk(node, start_ok(), tune_ok(0, 0, 0), open_())

    assert ["0 connection.tune", "0 connection.open-ok"] == sent
    assert 1 << 31 == client.connection.frame_limit


# -- open -------------------------------------------------------------------------------------------------------------


def test_a_half_open_connection_leaves_nothing():
    """A socket lost during the handshake is counted nowhere."""
    client, _ = talk(None, start_ok())
    client.connection.lost()
    client.connection.lost()

    assert (0, 0) == (client.node.clients.connections_opened, client.node.clients.connections_closed)

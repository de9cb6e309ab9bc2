"""SEC-18, SEC-22, SEC-24, SEC-27, SEC-29 and SEC-32: who is let in, and what clients may have (docs/security.md)."""

import http.client
import time
from collections.abc import Callable, Iterator

import pytest
from conformance.wire import Channel, Client, ClosedError
from doubles.fakes import Client as PureClient, Node
from processes.running import Running, serving
from services.api import Api

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Channel as ChannelMethods, Connection as Wire, Exchange, Queue, make
from leveret.broker.auth.passwords import Password, hash_password
from leveret.broker.auth.users import LoginRefusedError, User, Users
from leveret.broker.channel.settings import Limits
from leveret.broker.connection.connection import Connection
from leveret.broker.connection.handshake import PROTOCOL_HEADER

SOON = 10.0


def error_of(act: Callable[[], object]) -> tuple[str, int, str]:
    """Return how an act is closed: channel or connection, code, text."""
    with pytest.raises(ClosedError) as caught:
        act()
    assert caught.value.close is not None, "closed without a method"
    fields = caught.value.close.fields
    return caught.value.level, fields["reply_code"], fields["reply_text"]


# -- SEC-18: loopback users and default credentials -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "is_let_in"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.0.2.1", False),
        ("::ffff:192.0.2.1", False),
        ("10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("::", False),
        ("0.0.0.0", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_sec_18_the_default_user_comes_from_this_host_only(host, is_let_in):
    """`guest` is let in from addresses of the loopback interface, however they are written, and from no other."""
    users = Users()
    users.add(User("guest", hash_password(Password("guest"))))

    def log_in() -> str:
        try:
            return users.authenticate("guest", Password("guest"), host).name
        except LoginRefusedError as error:
            return str(error)

    assert ("guest" if is_let_in else "user 'guest' can only connect via localhost") == log_in()


def test_sec_18_the_default_user_is_refused_on_the_wire():
    """A client from another host gets the answer of a wrong password, so that it learns nothing."""
    answers = []
    for host, password in (("192.0.2.1", "guest"), ("127.0.0.1", "wrong")):
        client = PureClient(connect=False)
        client.connection = Connection(
            client.node, client.driver, (host, 50000), ("127.0.0.1", 5672), client.node.now()
        )
        client.driver.connection = client.connection
        client.receive(PROTOCOL_HEADER)
        client.sent()
        properties = {"capabilities": ("table", {"authentication_failure_close": ("bool", True)})}
        client.receive(
            encode_method(0, make(Wire.StartOk, properties, "PLAIN", f"\0guest\0{password}", "en_US"))
        )
        answers.append((client.sent(), client.driver.closed))

    assert answers[0] == answers[1]
    assert "0 connection.close reply_code=403" in answers[0][0][0]


def test_sec_18_the_default_password_is_warned_about(tmp_path):
    """A start with the default password is logged as a warning, with what a proxy on this host makes of it."""
    with Running(tmp_path) as running:
        line = running.wait_for("default password")
    (tmp_path / "other").mkdir()
    with Running(tmp_path / "other", "--set", "default_pass=another") as running:
        ready = running.wait_for("Server startup complete")
        running.process.terminate()
        rest, _ = running.process.communicate(timeout=15)

    assert "[warning]" in line
    assert "behind a proxy on this host that applies to all clients" in line
    assert "default password" not in ready + rest


# -- SEC-22, SEC-24: the HTTP listener --------------------------------------------------------------------------------


def ask(broker, method: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*broker.http, timeout=SOON)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def test_sec_22_other_sites_read_nothing(broker):
    """Answers never allow a page of another site to read them, for any request."""
    for method, path in (("GET", "/metrics"), ("GET", "/healthz"), ("OPTIONS", "/metrics")):
        answer = ask(
            broker, method, path, Origin="https://evil.example", **{"Access-Control-Request-Method": "GET"}
        )

        assert [] == [name for name, _ in answer.getheaders() if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    ["/../etc/passwd", "/..%2f..%2fetc/passwd", "//etc/passwd", "/metrics/../../etc/passwd", "/%2e%2e/"],
)
def test_sec_24_paths_lead_to_no_file(broker, path):
    """Requests for any path get no file, and other methods change nothing."""
    assert 404 == ask(broker, "GET", path).status
    assert {405} == {ask(broker, method, "/metrics").status for method in ("POST", "PUT", "DELETE")}


# -- SEC-27: enumeration and guessing -----------------------------------------------------------------------------------


def test_sec_27_unknown_users_take_as_long():
    """A refusal costs the same whether or not the user exists."""
    users = Users()
    users.add(User("known", hash_password(Password("secret"))))
    cost = {}
    for name in ("known", "unknown"):
        best = []
        for _ in range(7):
            began = time.process_time()
            for _ in range(300):
                with pytest.raises(LoginRefusedError):
                    users.authenticate(name, Password("wrong"), "127.0.0.1")
            best.append(time.process_time() - began)
        cost[name] = min(best)

    assert 0.6 < cost["unknown"] / cost["known"] < 1.6


def test_sec_27_refusals_say_the_same(broker):
    """An unknown user, a wrong password and a blank one are answered alike."""
    answers = []
    for user, password in (("guest", "wrong"), ("nobody", "wrong"), ("guest", "")):
        client = broker.client()
        client.begin()
        client.start_ok(user, password)
        answers.append(error_of(lambda client=client: client.receive(0, "connection.tune")))
        client.close_socket()

    assert {("connection", 403)} == {answer[:2] for answer in answers}
    assert 1 == len(set(answers))


# -- SEC-29: limits of objects ------------------------------------------------------------------------------------------


def test_sec_29_connections_and_channels_of_a_user(broker):
    """A user has no more connections and channels than its limits, over all connections."""
    first = broker.client().login("limited", "limited")
    second = broker.client()
    answer = error_of(lambda: second.login("limited", "limited"))
    first.channel(1)
    first.channel(2)

    assert ("connection", 530) == answer[:2]
    assert "user connection limit (1) is reached" in answer[2]
    assert ("connection", 530) == error_of(lambda: first.channel(3))[:2]
    first.close_socket()
    second.close_socket()


def test_sec_29_queues_and_connections_of_a_vhost(broker):
    """A virtual host has no more queues and connections than its limits."""
    client = broker.client().login("small", "small", "small")
    channel = client.channel()
    for number in range(2):
        channel.queue(f"q{number}", exclusive=True)
    other = broker.client()
    crowd = error_of(lambda: other.login("small", "small", "small"))

    assert ("connection", 530) == crowd[:2]
    assert ("channel", 406) == error_of(lambda: channel.queue("q2", exclusive=True))[:2]
    client.close_socket()
    other.close_socket()


def test_sec_29_consumers_of_a_channel(broker, client):
    """A channel has no more consumers than `consumer_max_per_channel`."""
    channel = client.login().channel()
    name = channel.queue(exclusive=True)
    for number in range(3):
        channel.consume(name, str(number))

    assert ("connection", 530) == error_of(lambda: channel.consume(name, "3"))[:2]


def test_sec_29_objects_of_the_broker():
    """Queues, exchanges and bindings of the broker, and the octets of their arguments, are bounded (406)."""
    large = {"x-text": ("longstr", "x" * 20_000)}
    refused = (
        (
            Node(limits=Limits(cluster_queue_limit=1)),
            lambda name: make(Queue.Declare, 0, name, *([False] * 5), {}),
        ),
        (
            Node(limits=Limits(cluster_exchange_limit=8)),
            lambda name: make(Exchange.Declare, 0, name, "direct", *([False] * 5), {}),
        ),
        (
            Node(limits=Limits(vhost_bindings={"/": 1})),
            lambda name: make(Queue.Bind, 0, "q", "amq.topic", name, False, {}),
        ),
    )
    for node, method in refused:
        client = PureClient(node)
        if "Bind" in method("a").name:
            client.declare("q")
        assert "ok" in client.ask(method("a"))[-1]
        assert "reply_code=406" in client.ask(method("b"))[-1]
    client = PureClient()
    assert "reply_code=406" in client.ask(make(Queue.Declare, 0, "q", *([False] * 5), large))[-1]


# -- SEC-28: lines of the log -----------------------------------------------------------------------------------------


def test_sec_28_errors_of_clients_do_not_fill_the_log(caplog):
    """However many channels and connections a user breaks in a second, ten lines say so, and one has their number."""
    node = Node()
    clients = [PureClient(node, port=50000 + number) for number in range(3)]
    caplog.clear()
    for _ in range(100):
        clients[0].send(Queue.Declare(queue="missing", passive=True))
        clients[0].send(ChannelMethods.CloseOk())
        clients[0].send(ChannelMethods.Open())
    for client in clients[1:]:
        client.send(ChannelMethods.Open())  # twice: 504, of the connection
    assert 10 == len([each for each in caplog.records if "error on connection" in each.getMessage()])

    node.clock.now += 1.0
    node.loop.tick()
    assert "92 more errors of user 'guest' from 127.0.0.1 within a second" in caplog.text


# -- SEC-32: readers that do not read -----------------------------------------------------------------------------------


def unread(running: Running, count: int, octets: int) -> list[Channel]:
    """Consumers of so many messages of that size each that do not read."""
    publisher = Client(running.address, timeout=SOON).login().channel()
    publisher.queue("q")
    readers = []
    for _ in range(count):
        reader = Client(running.address, timeout=SOON).login().channel()
        reader.send("basic.qos", prefetch_count=octets // 50_000)
        reader.send("basic.consume", queue="q")
        readers.append(reader)
    for _ in range(count * octets // 50_000):
        publisher.publish("", "q", bytes(50_000))
    publisher.sync()
    publisher.client.close_socket()
    return readers


@pytest.fixture
def bounded(tmp_path) -> Iterator[Running]:
    """A broker that keeps little for those who do not read."""
    with serving(tmp_path, "--set", "limits.unsent_bytes=4MiB") as running:
        yield running


def test_sec_32_readers_that_do_not_read_cost_little(bounded):
    """Output for clients that do not read is bounded for all together: the largest is cut, with a line in the log."""
    before = bounded.resident_memory()
    readers = unread(bounded, 8, 10_000_000)
    line = bounded.wait_for("limits.unsent_bytes")

    assert "[warning]" in line
    assert (
        bounded.resident_memory() - before < 80_000_000 + 60_000_000
    )  # the messages themselves, and a margin
    for reader in readers:
        reader.client.close_socket()


def test_sec_32_a_reader_that_does_not_read_is_cut_in_time(tmp_path):
    """A client that takes nothing for `send_timeout` is cut although it sends heartbeats; its messages go back."""
    with serving(tmp_path, "--set", "tcp_listen_options.send_timeout=1000") as running:
        (reader,) = unread(running, 1, 20_000_000)
        line = running.wait_for("closing connection")
        other = Client(running.address, timeout=SOON).login().channel()

        assert "[" in line
        assert 400 == other.ready("q", 400, within=SOON)
        reader.client.close_socket()
        other.client.close_socket()


# -- SEC-33: too many failed logins ---------------------------------------------------------------------------------------


def test_sec_33_an_address_with_too_many_failures_is_refused_over_http():
    """429 tells for how long, also with the right password; a user who was let in before is let in."""
    node = Node()
    peer = "192.0.2.1"
    node.users.add(User("ann", hash_password(Password("ann")), ("management",)))
    node.users.add(User("bob", hash_password(Password("bob")), ("management",)))
    assert 200 == Api(node, "ann:ann", peer).request("GET", "whoami").status
    answers = [Api(node, f"bob:{number}", peer).request("GET", "whoami").status for number in range(12)]
    refused = Api(node, "bob:bob", peer).request("GET", "whoami")

    assert [401] * 10 + [429] * 2 == answers
    assert (429, "60") == (refused.status, refused.headers["retry-after"])
    assert 200 == Api(node, "ann:ann", peer).request("GET", "whoami").status
    assert 200 == Api(node, "bob:bob", "192.0.2.2").request("GET", "whoami").status
    node.clock.now += 60.0
    assert 200 == Api(node, "bob:bob", peer).request("GET", "whoami").status


def test_sec_33_an_address_with_too_many_failures_is_refused_over_amqp():
    """As with a wrong password: 403 and then the delay."""
    node = Node()
    node.users.loopback_users = frozenset()
    for number in range(10):
        node.logins.throttle.failed("192.0.2.1", str(number), node.clock.now)
    client = PureClient(node, connect=False)
    client.connection.peer = ("192.0.2.1", 50000)
    client.receive(PROTOCOL_HEADER)
    client.sent()
    polite = {"capabilities": ("table", {"authentication_failure_close": ("bool", True)})}
    client.send(make(Wire.StartOk, polite, "PLAIN", "\0guest\0guest", "en_US"), 0)

    assert "403" in client.sent()[0]
    assert client.driver.closed == node.config.auth_failure_delay

"""Connections wait for backends in order, without memory without a bound, and without anybody else."""

import asyncio

import aiormq
import pytest
from services.authenticating import SECONDS, broker, connect, fill

from leveret.broker.auth.backends.access_control import AccessControl, ChainStep
from leveret.broker.auth.backends.backend import BackendError, InternalBackend
from leveret.broker.auth.users import Login, LoginRefusedError
from leveret.broker.connection.connection import Connection


class Gate:
    """A backend that answers each question when a test says so, or at once while it is open."""

    module = "gate"
    has_topics = True
    is_local = False
    renews = False

    def __init__(self) -> None:
        self.is_open = True
        self.questions: list[tuple] = []
        self.arrived = asyncio.Event()
        self.opened = asyncio.Event()
        self.refused: set = set()
        self.fault: str | None = None

    def shut(self) -> None:
        self.is_open = False
        self.arrived.clear()
        self.opened.clear()

    def open(self) -> None:
        self.is_open = True
        self.opened.set()

    async def ask(self, *question):
        self.questions.append(question)
        self.arrived.set()
        if not self.is_open:
            await self.opened.wait()
        if self.fault is not None:
            raise BackendError(self.fault)
        return question not in self.refused

    async def log_in(self, name, password):
        if not await self.ask("login", name):
            raise LoginRefusedError(f"user '{name}' - no")
        return Login(name)

    async def find(self, name):
        return await self.log_in(name, None)

    async def may_access(self, login, vhost, peer):
        return await self.ask("vhost", vhost)

    async def may(self, login, vhost, question):
        return await self.ask(*question)

    async def close(self):
        """Nothing is open."""


class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def gate() -> Gate:
    """A backend for users whose names begin with x; others are the internal database's."""
    return Gate()


@pytest.fixture
def time() -> Time:
    """The time by which decisions grow old."""
    return Time()


@pytest.fixture
async def server(gate, time):
    """A broker that asks the gate for all but the internal users."""

    def prepare(server):
        fill(server.users)
        internal = InternalBackend(server.users)
        server.backends = AccessControl(
            [ChainStep(internal, internal), ChainStep(gate, gate)],
            server.users,
            seconds=10.0,
            now=time,
            in_step=server._answered,
        )

    async with asyncio.timeout(SECONDS), broker(prepare=prepare) as server:
        yield server


async def _channel(server, name="x"):
    connection = await connect(server, name)
    return await connection.channel()


async def test_a_login_waits_without_anybody_else(server, gate):
    """While a backend is silent about one login, another connection publishes and gets."""
    gate.shut()
    waiting = asyncio.create_task(connect(server, "x"))
    await gate.arrived.wait()
    channel = await _channel(server, "all")
    await channel.queue_declare("q")
    await channel.basic_publish(b"m", routing_key="q")

    assert b"m" == (await channel.basic_get("q")).body
    assert not waiting.done()
    gate.open()
    await (await waiting).close()


async def test_later_frames_wait_in_their_order(server, gate):
    """Frames that a client has sent behind an operation that waits happen after it, in order, on all its channels."""
    connection = await connect(server, "x")
    first, second = await connection.channel(), await connection.channel()
    await first.queue_declare("q")
    gate.shut()
    declared = asyncio.create_task(second.queue_declare("r"))
    await gate.arrived.wait()
    published = [
        asyncio.create_task(first.basic_publish(b"%d" % each, routing_key="q")) for each in range(20)
    ]
    await asyncio.sleep(0)
    assert not declared.done()
    assert 0 == server.vhosts["/"].queues["q"].ready_count
    gate.open()
    await asyncio.gather(declared, *published)

    found = [(await first.basic_get("q", no_ack=True)).body for _ in range(20)]
    assert [b"%d" % each for each in range(20)] == found


async def test_ten_channels_publish_while_the_backend_is_silent(server, gate):
    """The publishes of ten channels to ten exchanges all arrive once the backend answers, none twice."""
    connection = await connect(server, "x")
    channels = [await connection.channel() for _ in range(10)]
    await channels[0].queue_declare("q")
    for number, channel in enumerate(channels):
        await channel.exchange_declare(f"x-{number}")
        await channel.queue_bind("q", f"x-{number}", routing_key="k")
    gate.shut()
    tasks = [
        asyncio.create_task(channel.basic_publish(b"%d" % number, exchange=f"x-{number}", routing_key="k"))
        for number, channel in enumerate(channels)
    ]
    await gate.arrived.wait()
    gate.open()
    await asyncio.gather(*tasks)

    found = {(await channels[0].basic_get("q", no_ack=True)).body for _ in range(10)}
    assert {b"%d" % number for number in range(10)} == found
    assert 0 == server.vhosts["/"].queues["q"].ready_count


async def test_reading_stops_while_a_connection_waits(server, gate):
    """A client that goes on sending while it waits has little of that in the broker's memory."""
    channel = await _channel(server)
    await channel.queue_declare("q")
    gate.shut()
    published = asyncio.gather(*[channel.basic_publish(bytes(100_000), routing_key="q") for _ in range(100)])
    await gate.arrived.wait()
    (connection,) = server.clients.connections
    sizes = []
    for _ in range(100):
        await asyncio.sleep(0.001)
        sizes.append(sum(map(len, connection._chunks)))

    assert max(sizes) <= 512 * 1024
    assert not connection.driver.reading
    gate.open()
    await published
    assert 100 == server.vhosts["/"].queues["q"].ready_count


async def test_a_client_that_leaves_while_it_waits_leaves_nothing(server, gate):
    """The answer for a connection that has gone is dropped, and its resources are released at once."""
    channel = await _channel(server)
    await channel.queue_declare("mine", exclusive=True)
    gate.shut()
    declared = asyncio.create_task(channel.queue_declare("late"))
    await gate.arrived.wait()
    (connection,) = server.clients.connections
    connection.driver._transport.abort()
    while server.clients.connections or "mine" in server.vhosts["/"].queues:
        await asyncio.sleep(0)
    gate.open()
    with pytest.raises(Exception):  # noqa: B017 - whichever the client makes of it
        await declared
    await (await connect(server, "x")).close()

    assert {} == dict(server.vhosts["/"].queues)


async def test_a_decision_is_good_for_its_time(server, gate, time):
    """Publishes ask once, and again after the time of a decision; a refusal then is that of RabbitMQ."""
    channel = await _channel(server)
    await channel.queue_declare("q")
    gate.questions.clear()
    for _ in range(5):
        await channel.basic_publish(b"m", routing_key="q")
    assert [("write", "exchange", "", None)] == gate.questions
    time.seconds += 10.0
    gate.refused.add(("write", "exchange", "", None))
    for connection in server.clients.connections:
        connection.close_overdue(server.now())

    with pytest.raises(
        aiormq.exceptions.ChannelAccessRefused, match=r"write access to exchange 'amq\.default' in"
    ):
        await channel.basic_publish(b"m", routing_key="q")
    assert 2 == len(gate.questions)


async def test_a_body_that_arrives_late_waits_for_its_decision(server, gate, time, monkeypatch):
    """A publish whose decision has grown old while its body arrived is asked about again, and not lost."""
    channel = await _channel(server)
    await channel.queue_declare("q")
    await channel.basic_publish(b"m", routing_key="q")
    receive = Connection.receive

    def between(connection, data):
        """Change the topology, and let time pass, before the end of the body."""
        if data.endswith(b"END\xce"):
            time.seconds += 10.0
            server.vhosts["/"].router.generation += 1
            gate.shut()
        receive(connection, data)

    monkeypatch.setattr(Connection, "receive", between)
    gate.arrived.clear()
    published = asyncio.create_task(channel.basic_publish(bytes(300_000) + b"END", routing_key="q"))
    await gate.arrived.wait()
    gate.open()
    await published

    assert 2 == server.vhosts["/"].queues["q"].ready_count


async def test_keys_in_cc_are_asked_about_one_after_the_other(server, gate):
    """Each key of CC is a question once; a refused one refuses the message."""
    channel = await _channel(server)
    await channel.queue_declare("q")
    await channel.queue_bind("q", "amq.topic", routing_key="#")
    gate.questions.clear()
    await channel.basic_publish(
        b"m",
        exchange="amq.topic",
        routing_key="a",
        properties=aiormq.spec.Basic.Properties(headers={"CC": ["b", "c"]}),
    )
    assert ["a", "b", "c"] == [key for *_, key in gate.questions if key is not None]
    gate.refused.add(("write", "topic", "amq.topic", "d"))

    with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match="write access to topic 'd' in exchange"):
        await channel.basic_publish(
            b"m",
            exchange="amq.topic",
            routing_key="a",
            properties=aiormq.spec.Basic.Properties(headers={"CC": ["c", "d"]}),
        )
    assert 1 == server.vhosts["/"].queues["q"].ready_count


async def test_what_cannot_be_decided_is_refused(server, gate):
    """A backend that fails refuses operations, vhosts and logins, with RabbitMQ's words, and says so in the log."""
    channel = await _channel(server)
    gate.fault = "no connection to the service"
    text = "configure access to queue 'q' in vhost '/' refused for user 'x', backend gate returned an error: no conn"
    with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match=text):
        await channel.queue_declare("q")
    with pytest.raises(
        aiormq.exceptions.ProbableAuthenticationError, match="ACCESS_REFUSED - Login was refused"
    ):
        await connect(server, "x")

    assert {} == dict(server.vhosts["/"].queues)


async def test_a_loopback_user_of_a_backend_is_let_in_from_this_host_only(server, gate):
    """The rule for loopback users holds whichever backend has checked the password."""
    access = server.backends
    for peer, is_user in (("127.0.0.1", True), ("192.0.2.1", False)):
        found = await access.logged_in("guest", None, peer)
        assert is_user is not isinstance(found, LoginRefusedError)


async def test_an_internal_change_is_felt_where_the_internal_database_decides(server):
    """A user of a chain whose internal permissions are revoked loses its consumers, and then its connection."""
    channel = await _channel(server, "all")
    await channel.queue_declare("q")
    await channel.basic_consume("q", _ignore)
    server.users.set_permissions("all", "/", ".*", ".*", "")
    server.loop.run_turn()
    queue = server.vhosts["/"].queues["q"]
    while queue.consumers:
        await asyncio.sleep(0)
    server.users.clear_permissions("all", "/")
    server.loop.run_turn()
    while server.clients.connections:
        await asyncio.sleep(0)


async def _ignore(_message):
    """Take a message."""

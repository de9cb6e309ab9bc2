"""SEC-42: questions to every backend have three outcomes, of which one alone says that it is down: it cannot be reached."""

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from doubles.fake_directory import BIND, SEARCH, faked, result
from services.authenticating import SECONDS, fill

pytest.importorskip("jwt", reason="tokens need leveret[oauth2]")
pytest.importorskip("ldap3", reason="a directory needs leveret[ldap]")

from doubles.issuing import NOW, jwk, token

from leveret.broker.auth.backends.access_control import access_control
from leveret.broker.auth.backends.backend import BackendError, UnreachableError
from leveret.broker.auth.backends.guarded import CALLER, FAILURES, PAUSE, Guarded
from leveret.broker.auth.backends.settings import BackendSettings, HTTPSettings, OAuth2Settings, Step
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import Question
from leveret.broker.auth.users import BackendUser, Login, LoginRefusedError, Users
from leveret.broker.errors import NotYet

QUESTION = Question("write", "queue", "own-q")
TTL = 15.0


class World:
    """One backend in a chain, and the service behind it.

    Attributes:
        state: "up"; "odd" for a service that gives everybody an answer that is no decision; "down" for none.
        asked: number of connections to the service.
        access: the chain.

    """

    def __init__(self, name):
        self.name = name
        self.state = "up"
        self.asked = 0
        self.seconds = 0.0
        self.access = None

    @asynccontextmanager
    async def running(self):
        async with AsyncExitStack() as stack:
            settings = {}
            if self.name == "ldap":
                _, backend = await stack.enter_async_context(faked(self._directory))
                settings["ldap"] = backend._settings
            elif self.name != "internal":
                server = await stack.enter_async_context(
                    await asyncio.start_server(self._http, "127.0.0.1", 0)
                )
                url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
                paths = {f"{kind}_path": url for kind in ("user", "vhost", "resource", "topic")}
                settings["http"] = HTTPSettings(request_timeout=SECONDS, **paths)
                settings["oauth2"] = OAuth2Settings(resource_server_id="rabbitmq", jwks_uri=url)
            users = Users()
            fill(users)
            self.access = access_control(
                BackendSettings(chain=(Step(self.name, self.name),), **settings),
                users,
                now=lambda: self.seconds,
                wall=lambda: NOW * 1000,
                in_step=lambda work: work(),
            )
            stack.push_async_callback(self.access.close)
            await stack.enter_async_context(asyncio.timeout(SECONDS))
            yield self

    async def _http(self, reader, writer):
        self.asked += 1
        await reader.readuntil(b"\r\n\r\n")
        if self.state != "down":
            body = b"allow" if self.name == "http" else json.dumps({"keys": [jwk("k1")]}).encode()
            status = 200 if self.state == "up" or self.name == "oauth2" else 400
            head = f"HTTP/1.1 {status} x\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()

    def _directory(self, number, tag, _octets):
        self.asked += 1
        if self.state == "down":
            raise ConnectionError
        code = 0 if self.state == "up" else 80
        return [result(number, tag, code)] if tag in (BIND, SEARCH) else []

    async def log_in(self, name="own", peer="192.0.2.1", password=None):
        """Return the user of a login, with the right password or token unless there is another; None if refused."""
        secret = password or (token() if self.name == "oauth2" else "own-secret")
        found = await self.access.logged_in(name, Password(secret), peer)
        assert isinstance(found, BackendUser | LoginRefusedError)
        return found if isinstance(found, BackendUser) else None

    async def is_allowed(self, rights, question=QUESTION):
        """Return whether an open connection may do something, as its channel asks."""
        while True:
            try:
                return rights.find(question).is_allowed
            except NotYet as wait:
                decided = asyncio.Event()
                wait.subscribe(decided.set)
                await decided.wait()


@pytest.fixture(params=["internal", "http", "ldap", "oauth2"])
async def world(request):
    async with World(request.param).running() as world:
        yield world


@pytest.mark.parametrize("name", ["\udcff\udcfe", "own\0", "\0"])
async def test_sec_42_names_that_are_no_text_are_refused_unasked(world, name):
    """A name that is not UTF-8, or has a NUL, is refused without a question to the service."""
    assert await world.log_in(name) is None
    assert 0 == world.asked


@pytest.mark.parametrize("state", ["odd", "down"])
async def test_sec_42_a_stranger_closes_no_backend(world, state):
    """However often one caller gets an answer that is no decision, or none, the next caller is asked about."""
    assert await world.log_in()
    world.state = state
    for number in range(4 * FAILURES):
        name = "stranger" if state == "down" else f"stranger-{number}"
        await world.log_in(name, "192.0.2.66", password="x" * 5000)
    world.state = "up"
    assert await world.log_in()
    assert all(not counts["not_asked"] for counts, _ in world.access.counts.values())


class Slow:
    """A backend that takes its time, and is asked by too many."""

    module, has_topics, is_local, renews, at_once = "slow", False, False, False, 4

    async def log_in(self, name, _password):
        await asyncio.sleep(SECONDS / 100)
        return Login(name)


async def test_sec_42_questions_that_find_no_time_close_no_backend():
    """An address that asks more than a backend can answer in time, under any names, does not make it count as down."""
    backend = Guarded(Slow(), SECONDS / 20, lambda: 0.0)

    async def ask(peer, name):
        CALLER.set((peer, name))
        return await backend.log_in(name, Password("x"))

    crowd = [asyncio.create_task(ask("192.0.2.66", f"stranger-{number}")) for number in range(100)]
    ends = await asyncio.gather(*crowd, return_exceptions=True)
    undecided = [end for end in ends if isinstance(end, BackendError)]
    assert undecided
    assert not [end for end in undecided if isinstance(end, UnreachableError)], (
        "so nobody keeps rights by that"
    )
    assert Login("own") == await asyncio.create_task(ask("192.0.2.1", "own"))
    assert not backend.outcomes["not_asked"]


async def test_sec_42_an_open_connection_keeps_what_it_was_allowed(world):
    """While a backend is down, an open connection goes on with the decisions that it has, and gets no further one."""
    user = await world.log_in()
    rights = world.access.rights(user, "/", "192.0.2.1")
    assert await world.is_allowed(rights)
    world.state = "down"
    await _close(world)
    for _ in range(5):
        world.seconds += TTL
        rights.expire()
        assert await world.is_allowed(rights)
    if world.name in {"http", "ldap"}:
        assert not await world.is_allowed(rights, Question("write", "queue", "another"))


async def test_sec_42_the_broker_finds_out_itself_whether_a_backend_is_back(world):
    """A backend that cannot be reached for several callers is left alone, until a question of the broker is answered."""
    assert await world.log_in()
    world.state = "down"
    await _close(world)
    asked = world.asked
    assert bool(await world.log_in()) is (world.name in {"internal", "oauth2"}), "keys and tables stay good"
    assert asked == world.asked
    world.seconds += SECONDS + 3 * PAUSE
    await world.log_in()
    assert (world.asked > asked) is (world.name in {"http", "ldap"}), "it has found out that it is still down"
    world.state = "up"
    world.seconds += SECONDS + 3 * PAUSE
    await world.log_in("stranger", "192.0.2.66", password="x" * 5000)
    assert await world.log_in()


async def _close(world):
    """Have as many callers fail as show that a backend is down."""
    for number in range(FAILURES):
        await world.log_in(f"user-{number}", f"192.0.2.{number}", password="wrong")

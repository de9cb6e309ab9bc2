"""The HTTP backend: RabbitMQ's contract, failures, and what is never told."""

import asyncio
import logging

import aiohttp
import aiormq
import pytest
from aiohttp import web
from grafana.exposition import Scraped
from services.authenticating import SECONDS, broker, chain, connect, fill, serving

from leveret.broker.auth.backends.backend import BackendError, CacheBackend
from leveret.broker.auth.backends.guarded import FAILURES, Guarded
from leveret.broker.auth.backends.http import HTTPBackend
from leveret.broker.auth.backends.settings import CacheSettings, HTTPSettings
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import Question
from leveret.broker.auth.users import Login, LoginRefusedError
from leveret.broker.http.server import ManagementServer
from leveret.broker.management.routes import ROUTER
from leveret.broker.metrics.sampler import Process
from leveret.broker.metrics.scrape import aggregated

ODD = "ä &=%+?/#\n'\""


@pytest.fixture
async def service():
    async with asyncio.timeout(SECONDS), serving() as service:
        yield service


@pytest.mark.parametrize("method", ["get", "post"])
async def test_the_parameters_are_those_of_rabbitmq(service, method):
    """Each request has RabbitMQ's parameters, with any characters in them."""
    backend = HTTPBackend(service.settings(http_method=method))
    service.answer = lambda _kind, _form: "allow"
    login = Login(ODD, ("management", "other"))
    try:
        assert Login(ODD) == await backend.log_in(ODD, Password(ODD))
        assert Login(ODD) == await backend.find(ODD)
        assert await backend.may_access(login, ODD, "192.0.2.1")
        assert await backend.may(login, ODD, Question("write", "exchange", ""))
        assert await backend.may(login, "v", Question("read", "topic", "e", ODD))
    finally:
        await backend.close()

    tags = "management other"
    assert [
        (method.upper(), "user", {"username": ODD, "password": ODD}),
        (method.upper(), "user", {"username": ODD}),
        (method.upper(), "vhost", {"username": ODD, "vhost": ODD, "ip": "192.0.2.1", "tags": tags}),
        (
            method.upper(),
            "resource",
            {
                "username": ODD,
                "vhost": ODD,
                "resource": "exchange",
                "name": "amq.default",
                "permission": "write",
                "tags": tags,
            },
        ),
        (
            method.upper(),
            "topic",
            {
                "username": ODD,
                "vhost": "v",
                "resource": "topic",
                "name": "e",
                "permission": "read",
                "tags": tags,
                "routing_key": ODD,
                "variable_map.username": ODD,
                "variable_map.vhost": "v",
            },
        ),
    ] == service.asked


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        ("allow", ()),
        (" ALLOW \r\n", ()),
        ("allow administrator management", ("administrator", "management")),
        ("allow  a\ta", ("a",)),
    ],
)
async def test_an_allowed_login_has_the_tags_of_the_answer(service, text, tags):
    """The words after `allow` are the tags, whatever space is around them."""
    service.answer = lambda _kind, _form: text
    backend = HTTPBackend(service.settings())

    assert tags == (await backend.log_in("u", Password("p"))).tags
    await backend.close()


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (200, "deny", LoginRefusedError),
        (201, "Deny\n", LoginRefusedError),
        (200, "allowed", BackendError),
        (200, "", BackendError),
        (200, "error", BackendError),
        (200, "allow " + "x" * 10_000, BackendError),
        (204, "", BackendError),
        (302, "allow", BackendError),
        (404, "allow", BackendError),
        (500, "allow", BackendError),
    ],
)
async def test_only_allow_with_status_200_or_201_lets_in(service, status, text, error):
    """Anything but the two words is an error, and so is any other status, a redirection among them."""
    headers = {"location": "/auth/other"} if status == 302 else {}
    service.answer = lambda _kind, _form: web.Response(status=status, text=text, headers=headers)
    backend = HTTPBackend(service.settings())

    with pytest.raises(error):
        await backend.log_in("u", Password("p"))
    await backend.close()
    assert 1 == len(service.asked)


async def test_a_service_that_is_down_stops_nobody(service, caplog):
    """Logins are refused by the error of RabbitMQ, the password is in no line of the log, and internal users go on."""
    caplog.set_level(logging.DEBUG)
    settings = HTTPSettings(user_path="http://127.0.0.1:1/canary-path", request_timeout=SECONDS)

    def prepare(server):
        fill(server.users)

    async with broker(chain("internal", "http", http=settings), prepare=prepare) as server:
        internal = await connect(server, "all")
        for number in range(FAILURES + 2):
            with pytest.raises(aiormq.exceptions.ProbableAuthenticationError, match="Login was refused"):
                await connect(server, f"stranger-{number}", "canary-password")
        channel = await internal.channel()
        await channel.queue_declare("q")
        (guarded,) = [each for each in server.backends.backends if isinstance(each, Guarded)]
        assert {"failed": FAILURES, "not_asked": 2} == {
            name: guarded.outcomes[name] for name in ("failed", "not_asked")
        }

    assert "rabbit_auth_backend_http failed: no connection to the service" in caplog.text
    assert "rabbit_auth_backend_http is down" in caplog.text
    assert "canary" not in caplog.text


async def test_a_service_that_does_not_answer_is_given_up(service, caplog):
    """A question fails after its time, and the log says so."""
    forever = asyncio.Event()

    async def silent():
        await forever.wait()
        return "allow"

    service.answer = lambda _kind, _form: silent()
    guarded = Guarded(HTTPBackend(service.settings()), 0.05, asyncio.get_running_loop().time)
    with pytest.raises(BackendError, match="timeout"):
        await guarded.log_in("u", Password("p"))
    forever.set()
    await guarded.close()

    assert "no answer within 0.05 s" in caplog.text


@pytest.mark.parametrize("refusals", [False, True])
async def test_the_cache_keeps_decisions(service, refusals):
    """Allowed logins and permissions are asked for once, refused ones if that is switched on; no password is kept."""
    cache = CacheSettings(authn="http", authz="http", refusals=refusals)
    async with broker(chain("cache", http=service.settings(), cache=cache)) as server:
        for _ in range(3):
            connection = await connect(server, "own")
            channel = await connection.channel()
            await channel.queue_declare("own-q")
            with pytest.raises(aiormq.exceptions.ChannelAccessRefused):
                await channel.queue_declare("other")
            await connection.close()
            with pytest.raises(aiormq.exceptions.ProbableAuthenticationError):
                await connect(server, "own", "wrong")
        (backend,) = server.backends.backends
        assert "secret" not in repr(backend._known)

    kinds = [kind for _, kind, _ in service.asked]
    expected = {"user": 2, "vhost": 1, "resource": 2} if refusals else {"user": 4, "vhost": 1, "resource": 4}
    assert expected == {kind: kinds.count(kind) for kind in set(kinds)}


async def test_decisions_of_the_cache_end(service):
    """After their time they are asked for again."""
    seconds = [0.0]
    http = HTTPBackend(service.settings())
    cache = CacheBackend(http, http, seconds=15.0, refusals=False, now=lambda: seconds[0], wall=lambda: 0)
    for seconds[0] in (0.0, 14.9, 15.1):
        await cache.log_in("own", Password("own-secret"))
    assert 2 == len(service.asked)
    cache.clear()
    await cache.log_in("own", Password("own-secret"))
    await cache.close()

    assert 3 == len(service.asked)


async def test_the_management_api_asks_the_backends(service):
    """Requests and sessions of users of the service see its tags, its vhosts and its permissions."""
    async with broker(chain("http", http=service.settings())) as server:
        server.directory.add_vhost("hidden")
        service.users.set_permissions("own", "unknown", "", "", "")
        management = ManagementServer(server, ROUTER)
        await management.start("127.0.0.1", 0)
        url = f"http://127.0.0.1:{management.address[1]}/api/"
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:

            async def ask(method, path, user="own", **more):
                headers = {"authorization": aiohttp.encode_basic_auth(user, f"{user}-secret")} if user else {}
                async with client.request(method, url + path, headers=headers, **more) as answer:
                    return (
                        answer.status,
                        await answer.json() if answer.status < 300 and await answer.read() else None,
                    )

            status, vhosts = await ask("GET", "vhosts")
            assert (200, ["/"]) == (status, [each["name"] for each in vhosts])
            assert 401 == (await ask("GET", "vhosts/hidden"))[0]
            assert 201 == (await ask("PUT", "queues/%2F/own-q", json={}))[0]
            assert 401 == (await ask("PUT", "queues/%2F/other", json={}))[0]
            assert 401 == (await ask("PUT", "queues/hidden/own-q", json={}))[0]
            assert 401 == (await ask("GET", "vhosts", "reader"))[0], "no tag"
            assert 401 == (await ask("GET", "vhosts", "unknown"))[0]
            form = {"username": "own", "password": "own-secret"}
            assert (200, "ok") == await ask("POST", "login", "", data=form)
            status, queues = await ask("GET", "queues", "")
            assert (200, ["own-q"]) == (status, [each["name"] for each in queues])
            assert 401 == (await ask("GET", "queues/hidden", ""))[0]
            service.users.clear_permissions("own", "/")
            assert (200, []) == await ask("GET", "queues", "")
            later = server.wall_clock() + 3_601_000
            server.time_source.wall = lambda: later
            assert 401 == (await ask("GET", "queues", ""))[0], "the session has ended"
        await management.stop()


async def test_cleared_decisions_are_asked_for_again(service):
    """`clear_auth_backend_cache` forgets what the cache and open connections know; the new answers count."""
    cache = CacheSettings(authn="http", authz="http", ttl=3600.0)
    async with broker(chain("cache", http=service.settings(), cache=cache)) as server:
        connection = await connect(server, "own")
        channel = await connection.channel()
        for _ in range(3):
            await channel.queue_declare("own-q")
        assert 1 == [kind for _, kind, _ in service.asked].count("resource")
        service.users.set_permissions("own", "/", "", "", "")
        await channel.queue_declare("own-q")
        server.forget_decisions()
        for each in server.clients.connections:
            each.close_overdue(server.now())
        with pytest.raises(aiormq.exceptions.ChannelAccessRefused):
            await channel.queue_declare("own-q")
        await connection.close()
        again = await connect(server, "own")
        assert 2 == [kind for _, kind, _ in service.asked].count("user")
        await again.close()
        ((name, (outcomes, seconds)),) = server.auth_counts.items()
        text = Scraped(aggregated(server, Process(1, 2, 0.0, 0.0, 0.0))).text

    assert "rabbit_auth_backend_http" == name
    assert {"allowed": 5, "refused": 1, "failed": 0, "not_asked": 0} == outcomes
    assert seconds > 0
    labels = 'backend="rabbit_auth_backend_http"'
    assert f'leveret_auth_backend_requests_total{{{labels},outcome="refused"}} 1\n' in text
    assert f"leveret_auth_backend_request_seconds_total{{{labels}}} {seconds}\n" in text

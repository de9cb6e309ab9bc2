"""Logins by tokens: over AMQP, over HTTP, their renewal, their end, and the keys of the issuer."""

import asyncio

import aiohttp
import aiormq
import pytest

pytest.importorskip("jwt", reason="tokens need leveret[oauth2]")

from doubles.issuing import NOW, issuing, jwk, token
from services.authenticating import SECONDS, broker, chain, connect

from leveret.broker.auth.backends.backend import BackendError
from leveret.broker.auth.backends.issuer import good_for
from leveret.broker.auth.backends.oauth2 import OAuth2Backend
from leveret.broker.auth.backends.settings import OAuth2Settings, ResourceServer
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.connection.connection import EXPIRED
from leveret.broker.http.server import ManagementServer
from leveret.broker.management.routes import ROUTER


@pytest.fixture
async def issuer():
    async with asyncio.timeout(SECONDS), issuing() as issuer:
        yield issuer


class Clock:
    """The time of a backend, which a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def wall(self) -> int:
        return round((NOW + self.seconds) * 1000)


def _settings(issuer, **more) -> OAuth2Settings:
    given = {"resource_server_id": "rabbitmq", "jwks_uri": f"{issuer.url}/keys"} | more
    return OAuth2Settings(**given)


def _timed(server, clock) -> None:
    server.time_source.wall = clock.wall
    (backend,) = server.backends.backends
    backend._backend._wall = clock.wall


async def test_a_token_is_a_login(issuer):
    """The user, the rights and the tags of a connection are those of its token, whatever the name of the login."""
    clock = Clock()
    async with broker(chain("oauth2", oauth2=_settings(issuer))) as server:
        _timed(server, clock)
        connection = await connect(server, "anything", token())
        channel = await connection.channel()
        await channel.queue_declare("own-q")
        with pytest.raises(
            aiormq.exceptions.ChannelAccessRefused, match="queue 'x' in vhost '/' refused for user 'ann'"
        ):
            await channel.queue_declare("x")
        assert {"ann"} == {each.user.name for each in server.clients.connections}
        assert {("management",)} == {each.user.tags for each in server.clients.connections}
        for bad in ("guest", token(exp=NOW - 1), token("k2")):
            with pytest.raises(aiormq.exceptions.ProbableAuthenticationError):
                await connect(server, "guest", bad)
        await connection.close()


async def test_the_audience_says_whose_scopes_a_token_has(issuer):
    """With several resource servers each token has the scopes of its own one; a token for two, or for none, is refused."""
    clock = Clock()
    servers = (ResourceServer("orders", "orders/"), ResourceServer("bills", "", "roles"))
    backend = OAuth2Backend(_settings(issuer, resource_servers=servers), clock.now, clock.wall)
    scope = "rabbitmq.tag:management orders/tag:monitoring tag:policymaker"
    found = {}
    for audience in ("rabbitmq", "orders", ["x", "bills"], ["orders", "bills"], "x", None):
        secret = Password(token(aud=audience, scope=scope, roles=["tag:administrator"]))
        try:
            found[str(audience)] = (await backend.log_in("", secret)).tags
        except LoginRefusedError as error:
            found[str(audience)] = str(error)

    assert {
        "rabbitmq": ("management",),
        "orders": ("monitoring",),
        "['x', 'bills']": ("policymaker", "administrator"),
        "['orders', 'bills']": "token refused: its audience has several of the resource servers",
        "x": "token refused: its audience is another one",
        "None": "token refused: its audience is another one",
    } == found


async def test_a_connection_ends_with_its_token(issuer):
    """Once the token has expired the connection is closed with 320, and nothing is allowed before that."""
    clock = Clock()
    async with broker(chain("oauth2", oauth2=_settings(issuer))) as server:
        _timed(server, clock)
        connection = await connect(server, "", token())
        (mine,) = server.clients.connections
        mine.close_overdue(server.now())
        assert not mine.close_reason
        clock.seconds += 61
        mine.close_overdue(server.now())
        server.loop.run_turn()
        while server.clients.connections:
            await asyncio.sleep(0)
        assert f"CONNECTION_FORCED - {EXPIRED}" == mine.close_reason
        await asyncio.gather(connection.close(), return_exceptions=True)


async def test_a_new_secret_prolongs_a_connection_and_changes_its_rights(issuer):
    """After connection.update-secret the rights and the end are those of the new token; consumers that lose are gone."""
    clock = Clock()
    async with broker(chain("oauth2", oauth2=_settings(issuer))) as server:
        _timed(server, clock)
        connection = await connect(server, "", token())
        channel = await connection.channel()
        await channel.queue_declare("own-q")
        await channel.basic_consume("own-q", _ignore)
        await connection.update_secret(token(exp=NOW + 1000, scope="rabbitmq.configure:*/own-*"))
        queue = server.vhosts["/"].queues["own-q"]
        while queue.consumers:
            await asyncio.sleep(0)
        clock.seconds += 61
        (mine,) = server.clients.connections
        assert () == mine.user.tags
        mine.close_overdue(server.now())
        channel = await connection.channel()
        await channel.queue_declare("own-r")
        with pytest.raises(aiormq.exceptions.ChannelAccessRefused, match="write access"):
            await channel.basic_publish(b"m", routing_key="own-q")
        await connection.close()


@pytest.mark.parametrize("secret", ["no token", token(sub="bob"), token(exp=NOW - 5)])
async def test_a_wrong_new_secret_ends_the_connection(issuer, secret):
    """A bad token, or that of another user, is refused with RabbitMQ's code and text."""
    async with broker(chain("oauth2", oauth2=_settings(issuer))) as server:
        _timed(server, Clock())
        connection = await connect(server, "", token())
        (mine,) = server.clients.connections
        with pytest.raises((aiormq.exceptions.AMQPError, asyncio.CancelledError)):
            await connection.update_secret(secret)
        while server.clients.connections:
            await asyncio.sleep(0)
        assert "NOT_ALLOWED - New secret was refused by one of the backends" == mine.close_reason


async def test_the_management_api_takes_bearer_tokens(issuer):
    """A token is a login in the header Authorization, as a password, and in the form of the page."""
    async with broker(chain("oauth2", oauth2=_settings(issuer))) as server:
        _timed(server, Clock())
        management = ManagementServer(server, ROUTER)
        await management.start("127.0.0.1", 0)
        url = f"http://127.0.0.1:{management.address[1]}/api/"
        async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as client:
            for text, status in ((token(), 200), (token(exp=NOW), 401), ("x", 401), (token(scope="x"), 401)):
                async with client.get(f"{url}whoami", headers={"authorization": f"Bearer {text}"}) as answer:
                    assert status == answer.status
                    if status == 200:
                        assert "ann" == (await answer.json())["name"]
            async with client.get(
                f"{url}whoami", headers={"authorization": aiohttp.encode_basic_auth("x", token())}
            ) as answer:
                assert 200 == answer.status
            async with client.post(f"{url}login", data={"username": "x", "password": token()}) as answer:
                assert 200 == answer.status
            async with client.get(f"{url}whoami") as answer:
                assert "ann" == (await answer.json())["name"]
            server.time_source.wall = lambda: (NOW + 61) * 1000
            async with client.get(f"{url}whoami") as answer:
                assert 401 == answer.status
        await management.stop()


async def test_keys_are_rotated(issuer):
    """A new key is fetched when a token has it, made-up ones make at most one request a minute, old ones go."""
    clock = Clock()
    backend = OAuth2Backend(_settings(issuer), clock.now, clock.wall)
    await backend.log_in("", Password(token()))
    issuer.keys = [jwk("k2"), jwk("ec1")]
    assert "ann" == (await backend.log_in("", Password(token("k2")))).name
    assert 2 == issuer.asked
    for _ in range(10):
        with pytest.raises(LoginRefusedError, match="key is not known"):
            await backend.log_in("", Password(token("k3")))
    assert 2 == issuer.asked
    with pytest.raises(LoginRefusedError):
        await backend.log_in("", Password(token("k1")))
    clock.seconds += 30
    await backend.log_in("", Password(token("ec1", "ES256")))


async def test_the_last_keys_are_good_while_the_issuer_is_down(issuer):
    """Without keys nobody is let in, and it is not asked at once again; with keys they stay, however old."""
    clock = Clock()
    backend = OAuth2Backend(_settings(issuer), clock.now, clock.wall)
    issuer.status = 500
    for _ in range(3):
        with pytest.raises(BackendError, match="issuer of tokens does not answer"):
            await backend.log_in("", Password(token()))
    assert 1 == issuer.asked
    issuer.status = 200
    clock.seconds += 6
    await backend.log_in("", Password(token()))
    issuer.status = 500
    clock.seconds += 4000
    assert "ann" == (await backend.log_in("", Password(token(exp=NOW + 9000)))).name
    assert 3 == issuer.asked


async def test_an_issuer_tells_where_its_keys_are(issuer):
    """Without an address of keys the OpenID configuration of the issuer has it."""
    clock = Clock()
    backend = OAuth2Backend(
        OAuth2Settings(resource_server_id="rabbitmq", issuer=issuer.url), clock.now, clock.wall
    )

    assert "ann" == (await backend.log_in("", Password(token(iss=issuer.url)))).name


async def _ignore(_message):
    """Take a message."""


@pytest.mark.parametrize(
    ("caching", "seconds"),
    [
        ("", 3600),
        ("public, max-age=7200", 7200),
        ("MAX-AGE=600,public", 600),
        ('max-age="600"', 600),
        ("s-maxage=10", 3600),
        ("max-age=0", 60),
        ("no-cache", 60),
        ("private, no-store, max-age=7200", 60),
        ("max-age=99999999", 86400),
        ("max-age=" + "9" * 5000, 86400),
        ("max-age=-1", 3600),
        ("max-age=x", 3600),
    ],
)
def test_the_issuer_says_how_long_keys_are_good(caching, seconds):
    """`max-age` counts within a minute and a day; an hour without it."""
    assert seconds == good_for(caching)


async def test_keys_are_fetched_again_when_the_issuer_says_so(issuer):
    """After the time of `Cache-Control` the keys are fetched again, and not before."""
    issuer.headers = {"cache-control": "max-age=600"}
    clock = Clock()
    backend = OAuth2Backend(_settings(issuer), clock.now, clock.wall)
    for later, asked in ((0, 1), (599, 1), (2, 2)):
        clock.seconds += later
        await backend.log_in("", Password(token(exp=NOW + 9000)))
        assert asked == issuer.asked

"""Sessions of the web page that are renewed by a refresh token of the identity provider."""

import http.client
import json
from dataclasses import replace
from typing import Any

import pytest
from doubles.identity_provider import BACK, VERIFIER, Provider, code_of, providing, settings
from processes.waiting import wait_until

import leveret
from leveret.broker.auth.backends import issuer
from leveret.broker.auth.backends.backend import BackendError
from leveret.broker.auth.backends.issuer import SessionRenewal
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.sessions import AGAIN_SECONDS, Renewal, Sessions, renewal_of
from leveret.broker.auth.users import BackendUser, LoginRefusedError
from leveret.broker.management import login

DEADLINE = 60.0
IDLE = 10_000.0
ANN = BackendUser("ann", "", ("management",), expires=1000.0)
CANARY = "canary-refresh-token"


class Audit(list[dict[str, Any]]):
    def record(self, event: str, *, outcome: str = "ok", **facts: object) -> None:
        self.append({"event": event, "outcome": outcome, **facts})


class Accounts:
    """The users, all of them of backends."""

    def current(self, user: Any) -> Any:
        return user


class World:
    """A broker with one session, and a provider whose answers a test chooses."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.audit = Audit()
        self.sessions = Sessions(Accounts(), IDLE)
        self.token = self.sessions.begin(ANN, 0.0, renewal_of(ANN.expires, Password(CANARY), "192.0.2.1", 0))
        self.asked: list[bytes] = []
        self.answer: Any = None
        self.renewal = SessionRenewal(
            self.sessions, self.audit, lambda: self.seconds, lambda: int(self.seconds * 1000), self._renewed
        )

    def user(self) -> Any:
        return self.sessions.find(self.token, self.seconds)

    async def _renewed(self, secret: Password, user: BackendUser, peer: str) -> Any:
        assert ("ann", "192.0.2.1") == (user.name, peer)
        self.asked.append(secret.octets())
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def world() -> World:
    """A session whose login ends after 1,000 seconds."""
    return World()


async def test_a_login_is_renewed_a_minute_before_it_ends(world):
    """Not earlier; then by the refresh token of the answer. Both are in the audit log, without a token."""
    world.answer = (replace(ANN, tags=("monitoring",), expires=3000.0), Password("second"))
    for world.seconds in (0.0, 939.0, 940.0, 941.0, 2939.0, 2940.0):
        await world.renewal.look()

    assert [CANARY.encode(), b"second"] == world.asked
    assert ("monitoring",) == world.user().tags
    assert [("session.renew", "ok", "ann")] * 2 == [
        (each["event"], each["outcome"], each["actor"]) for each in world.audit
    ]
    assert CANARY not in repr(world.audit) + repr(world.sessions.renewable(0.0))


async def test_a_refusal_ends_the_session(world, caplog):
    """At once, with an entry that has the reason."""
    world.answer = LoginRefusedError("the identity provider refuses the refresh token")
    world.seconds = 940.0
    await world.renewal.look()

    assert world.user() is None
    assert ["refused"] == [each["outcome"] for each in world.audit]
    assert "refuses the refresh token" in caplog.text
    assert CANARY not in caplog.text


async def test_a_provider_that_is_down_is_asked_again_until_the_login_ends(world):
    """The session lasts as long as its login, and no longer; attempts are seconds apart."""
    world.answer = BackendError("timeout")
    for world.seconds in range(940, 1000):
        await world.renewal.look()
    assert 60 / AGAIN_SECONDS == len(world.asked)
    assert world.user() is ANN
    assert [] == world.audit

    world.seconds = 1000.0
    assert 1 == await world.renewal.look()
    assert 0 == await world.renewal.look()
    assert world.user() is None


async def test_a_session_that_ends_meanwhile_is_not_begun_again(world):
    """A logout is final, also while the provider is asked."""
    world.answer = (replace(ANN, expires=3000.0), Password("second"))
    asked = world._renewed

    async def logged_out(*args: Any) -> Any:
        world.sessions.end(world.token)
        return await asked(*args)

    world.renewal.renewed = logged_out
    world.seconds = 940.0
    await world.renewal.look()

    assert (None, 0, []) == (world.user(), len(world.sessions), world.audit)


async def test_an_idle_session_is_not_renewed(world):
    """It ends, and the provider is not asked."""
    world.seconds = IDLE + 1
    assert 0 == await world.renewal.look()

    assert ([], 0) == (world.asked, len(world.sessions))


def test_short_logins_are_renewed_after_three_quarters():
    """But no two attempts are nearer than some seconds; a login without an end, or without a token, is not."""
    secret = Password(CANARY)

    assert [30.0, AGAIN_SECONDS] == [renewal_of(end, secret, "", 0).due for end in (40.0, 2.0)]
    assert [None, None] == [renewal_of(None, secret, "", 0), renewal_of(40.0, None, "", 0)]


@pytest.fixture
def provider():
    with providing() as started:
        started.refresh = True
        yield started


class Browser:
    """A client of the API with a cookie."""

    def __init__(self, broker: Any) -> None:
        self.address = broker.management_url.rpartition("@")[2]
        self.cookie = ""

    def send(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection(self.address, timeout=DEADLINE)
        headers = {"x-requested-with": "page", "content-type": "application/json", "cookie": self.cookie}
        try:
            connection.request(method, path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            given = answer.headers.get("set-cookie")
            if given:
                self.cookie = given.partition(";")[0]
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def log_in(self, provider: Provider) -> None:
        body = {"code": code_of(provider), "code_verifier": VERIFIER, "redirect_uri": BACK}
        status, text = self.send("POST", "/api/leveret/oauth", body)
        assert 200 == status
        assert "eyJ" not in text + self.cookie


@pytest.fixture
def at_once(monkeypatch):
    """Logins that are renewed all the time."""
    monkeypatch.setattr(issuer, "TICK_SECONDS", 0.01)

    def due_now(_expires: Any, secret: Any, peer: str, _wall: int) -> Renewal | None:
        return None if secret is None else Renewal(secret, 0.0, peer)

    monkeypatch.setattr(issuer, "renewal_of", due_now)
    monkeypatch.setattr(login, "renewal_of", due_now)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("change", [{"refresh": False}, {"user": "bob"}], ids=["revoked", "other user"])
def test_the_broker_renews_the_session_of_a_login(provider, change):
    """Each refresh token is used once; a refusal, and the token of somebody else, end the session."""
    with leveret.Broker(management=True, config=settings(provider)) as broker:
        browser = Browser(broker)
        browser.log_in(provider)
        wait_until(lambda: len(provider.exchanged) > 3)
        assert 200 == browser.send("GET", "/api/whoami")[0]
        used = [form["refresh_token"] for form in tuple(provider.exchanged) if "refresh_token" in form]
        assert len(used) == len(set(used))
        for name, value in change.items():
            setattr(provider, name, value)
        wait_until(lambda: 401 == browser.send("GET", "/api/whoami")[0])

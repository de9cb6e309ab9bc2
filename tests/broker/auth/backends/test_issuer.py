"""Login by an identity provider, as the broker sees it: exchanges, failures, configuration and API."""

import base64
from typing import Any

import pytest
from doubles.fakes import Node, configure
from doubles.identity_provider import BACK, VERIFIER, code_of, providing
from services.api import Api

from leveret.broker.auth.backends.backend import BackendError
from leveret.broker.auth.backends.issuer import FAILED_SECONDS, CodeLogin
from leveret.broker.auth.backends.settings import CodeLoginSettings, OAuth2Settings
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.config.config import ConfigError, load

CANARY = "canary-secret"


@pytest.fixture
def provider():
    with providing() as started:
        yield started


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def login_by(provider: Any, clock: Clock, **more: str) -> CodeLogin:
    settings = CodeLoginSettings(enabled=True, client_id="page", provider_url=provider.url, **more)
    return CodeLogin(settings, OAuth2Settings(resource_server_id="rabbitmq"), clock)


async def test_a_code_is_a_token_once(provider, clock):
    """Together with the secret that the provider knows the hash of, and only the first time."""
    login = login_by(provider, clock)
    code = code_of(provider)

    assert (await login.tokens(code, VERIFIER, BACK)).access.startswith("eyJ")
    with pytest.raises(LoginRefusedError, match="refuses the code"):
        await login.tokens(code, VERIFIER, BACK)


@pytest.mark.parametrize(
    ("verifier", "back"), [("w" * 43, BACK), (VERIFIER, f"{BACK}other")], ids=["secret", "address"]
)
async def test_a_stolen_code_is_worth_nothing(provider, clock, verifier, back):
    """Without the secret of the window that has begun, or for another address."""
    with pytest.raises(LoginRefusedError, match="refuses the code"):
        await login_by(provider, clock).tokens(code_of(provider), verifier, back)


@pytest.mark.parametrize(
    "values",
    [("", VERIFIER, BACK), ("x" * 5000, VERIFIER, BACK), ("c", "short", BACK), ("c", "v" * 42 + "\n", BACK)],
)
async def test_values_that_cannot_be_right_are_not_sent(provider, clock, values):
    """The provider is not asked about them."""
    with pytest.raises(LoginRefusedError, match="not complete"):
        await login_by(provider, clock).tokens(*values)

    assert [] == provider.exchanged


@pytest.mark.parametrize(
    ("methods", "in_form"), [(None, False), (["client_secret_basic"], False), (["client_secret_post"], True)]
)
async def test_the_secret_of_the_client_is_shown_as_the_provider_wants_it(provider, clock, methods, in_form):
    """In a header, or in the form if it takes no headers."""
    provider.secret = CANARY
    provider.metadata = {} if methods is None else {"token_endpoint_auth_methods_supported": methods}
    login = login_by(provider, clock, client_secret=CANARY)

    assert (await login.tokens(code_of(provider), VERIFIER, BACK)).access.startswith("eyJ")
    assert in_form == ("client_secret" in provider.exchanged[0])


@pytest.mark.parametrize(
    "metadata",
    [{"token_endpoint": "http://other.test/token"}, {"authorization_endpoint": "javascript:alert(1)"},
     {"token_endpoint": None}, {"authorization_endpoint": "https://[broken"}],
)  # fmt: skip
async def test_addresses_that_others_could_read_are_refused(provider, clock, metadata):
    """A browser is sent, and a code given, to addresses with https only; those of this host are for tests."""
    provider.metadata = metadata
    with pytest.raises(BackendError):
        await login_by(provider, clock).endpoints()


async def test_a_provider_that_is_down_is_not_asked_all_the_time(provider, clock, caplog):
    """After a failure there is no other attempt for a moment; then there is."""
    login = login_by(provider, clock)
    right, login.provider_url = login.provider_url, "http://127.0.0.1:9"
    for _ in range(3):
        with pytest.raises(BackendError):
            await login.endpoints()
    assert 1 == caplog.text.count("does not answer")

    login.provider_url = right
    clock.seconds += FAILED_SECONDS
    assert f"{provider.url}/authorize" == (await login.endpoints()).authorization


def with_provider(**more: Any) -> Node:
    """Return a broker that knows a provider, which is not there."""
    node = Node()
    login = CodeLoginSettings(
        enabled=True,
        client_id="page",
        client_secret=CANARY,
        provider_url="https://idp.test",
        scopes="a b",
        **more,
    )

    class Backends:
        code_login = CodeLogin(login, OAuth2Settings(resource_server_id="rabbitmq"), Clock())

    node.backends = Backends()
    return node


def test_the_ways_to_log_in_are_rabbitmqs():
    """`/api/auth` has its keys; the secret of the client is not among them."""
    answer = Api(with_provider(), "").request("GET", "auth")

    assert {
        "oauth_enabled": True,
        "oauth_disable_basic_auth": True,
        "oauth_client_id": "page",
        "oauth_provider_url": "https://idp.test",
        "oauth_scopes": "a b",
        "oauth_metadata_url": "",
        "oauth_resource_id": "rabbitmq",
    } == answer.body


def test_other_sites_cannot_begin_a_session():
    """A page of another site cannot log a visitor in as somebody else."""
    body = {"code": "c", "code_verifier": VERIFIER, "redirect_uri": BACK}
    node = with_provider()

    answer = Api(node, "").request("POST", "leveret/oauth", body, **{"sec-fetch-site": "cross-site"})

    assert (401, 0) == (answer.status, len(node.sessions))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_without_a_provider_there_is_no_such_login(method):
    """As for any path that does not exist."""
    assert 404 == Api(Node(), "").request(method, "leveret/oauth", {}).status


def test_names_and_passwords_can_be_refused():
    """With `management.disable_basic_auth`, in RabbitMQ's words; neither the form takes them."""
    node = Node()
    configure(node, "management", disable_basic_auth=True)
    header = base64.b64encode(b"guest:guest").decode()

    for answer in (
        Api(node, "").request("GET", "whoami", authorization=f"Basic {header}"),
        Api(node, "").request("POST", "login", b"username=guest&password=guest"),
    ):
        assert (401, {"error": "not_authorised", "reason": "HTTP access denied: basic auth disabled"}) == (
            answer.status,
            answer.body,
        )


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ({"auth_backends.1": "internal"}, "needs the backend that takes tokens"),
        ({"management.oauth_client_id": ""}, "oauth_client_id is missing"),
        ({"auth_oauth2.issuer": ""}, "oauth_provider_url or auth_oauth2.issuer is missing"),
        ({"management.oauth_provider_url": "http://idp.test"}, "must begin with https://"),
        ({"management.oauth_initiated_logon_type": "idp_initiated"}, "must be sp_initiated"),
    ],
)
def test_a_login_that_cannot_work_is_a_configuration_error(lines, problem):
    """Nobody could log in, or what protects the login would be missing."""
    values = {
        "auth_backends.1": "oauth2",
        "auth_oauth2.resource_server_id": "rabbitmq",
        "auth_oauth2.jwks_uri": "https://idp.test/keys",
        "auth_oauth2.issuer": "https://idp.test",
        "management.oauth_enabled": "true",
        "management.oauth_client_id": "page",
    } | lines
    with pytest.raises(ConfigError) as caught:
        load(settings=[f"{name}={value}" for name, value in values.items() if value])

    assert any(problem in each for each in caught.value.problems)

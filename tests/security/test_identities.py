"""SEC-35, SEC-36, SEC-43: secrets of the broker's own clients, at an identity provider and at brokers of shovels; tokens."""

import base64
import json
import time

import pytest
from doubles.fakes import Node
from services.api import Api

from leveret.broker.auth.backends.issuer import CodeLogin
from leveret.broker.auth.backends.settings import CodeLoginSettings, OAuth2Settings
from leveret.broker.auth.backends.tokens import Rules, TokenError, keys_of, verified
from leveret.broker.config.config import effective, load

CANARY = "canary-secret"


def test_sec_35_the_secret_of_the_client_is_told_nobody():
    """Neither in the ways to log in, which everybody may read, nor in the effective configuration."""
    settings = CodeLoginSettings(
        enabled=True, client_id="page", client_secret=CANARY, provider_url="https://idp.test"
    )

    class Backends:
        code_login = CodeLogin(settings, OAuth2Settings(resource_server_id="rabbitmq"), time.monotonic)

    node = Node()
    node.backends = Backends()
    lines = effective(load(settings=[f"management.oauth_client_secret={CANARY}"]))

    assert CANARY not in json.dumps(Api(node, "").request("GET", "auth").body)
    assert CANARY not in "\n".join(map(str, lines))


def test_sec_36_logins_of_shovels_are_for_administrators():
    """Users who may see shovels, because they monitor or set policies, see no login of another broker."""
    node = Node()
    operator = Api(node, "guest:guest")
    value = {
        "src-uri": "amqp://",
        "dest-uri": f"amqp://u:{CANARY}@other.test",
        "src-queue": "a",
        "dest-queue": "b",
    }
    assert 201 == operator.request("PUT", "parameters/shovel/%2f/s", {"value": value}).status
    for tag in ("monitoring", "policymaker"):
        node.administration.users.put(None, tag, tags=(tag,), password="x")
        node.administration.users.set_permissions(None, "/", tag, configure=".*", write=".*", read=".*")
        user = Api(node, f"{tag}:x")
        for path in ("parameters", "parameters/shovel/%2f/s", "definitions"):
            text = json.dumps(user.request("GET", path).body)
            assert CANARY not in text, path
            assert base64.b64encode(CANARY.encode()).decode() not in text
    assert CANARY in json.dumps(operator.request("GET", "parameters/shovel/%2f/s").body)


@pytest.mark.parametrize("claim", ["exp", "nbf"])
@pytest.mark.parametrize(
    "value",
    [
        "1" + "0" * 400,
        "-1" + "0" * 400,
        "NaN",
        "Infinity",
        "-Infinity",
        "1e999",
        '"1"',
        "[1]",
        "{}",
        "null",
        "true",
    ],
)
def test_sec_43_times_of_tokens_are_checked(claim, value):
    """A signed token whose `exp` or `nbf` is no time is refused like any other bad token."""
    pytest.importorskip("jwt", reason="tokens need leveret[oauth2]")
    from doubles import issuing

    rules = Rules(("RS256",), None, "")
    payload = f'{{"sub": "ann", "{claim}": {value}}}'
    token = issuing.signed({"alg": "RS256", "kid": "k1"}, payload)
    with pytest.raises(TokenError, match=f"its claim {claim} is no time"):
        verified(token, keys_of({"keys": [issuing.jwk("k1")]}), "", rules, issuing.NOW)

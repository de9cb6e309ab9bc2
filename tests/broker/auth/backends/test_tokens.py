"""Bad tokens are refused, each for its own reason, and good ones are taken."""

import pytest

pytest.importorskip("jwt", reason="tokens need leveret[oauth2]")

from doubles.issuing import NOW, claims, hmac_signed, jwk, part, pem, signed, token

from leveret.broker.auth.backends.oauth2 import Scopes, scopes_of
from leveret.broker.auth.backends.tokens import (
    Rules,
    TokenError,
    UnknownKeyError,
    key_of_pem,
    keys_of,
    verified,
)
from leveret.broker.auth.permissions import Question

RULES = Rules(("RS256", "ES256", "PS256"), frozenset({"rabbitmq", "second"}), "https://issuer.test")
KEYS = keys_of(
    {"keys": [jwk("k1"), jwk("ec1"), jwk("ps", alg="PS256"), {"kty": "oct", "k": "AAAA", "kid": "o"}]}
)
RS = {"alg": "RS256", "kid": "k1"}


def _changed(text: str, at: int) -> str:
    """Return a token with another character."""
    return text[:at] + ("A" if text[at] != "A" else "B") + text[at + 1 :]


BAD = {
    "empty": "",
    "a password": "guest",
    "two parts": "a.b",
    "four parts": f"{token()}.x",
    "not base64": f"!!.{part(claims())}.AA",
    "header no JSON": f"{part('{')}.{part(claims())}.AA",
    "header no object": signed([], claims()),
    "claims no object": signed(RS, [1]),
    "claims no JSON": signed(RS, "{"),
    "claims not UTF-8": signed(RS, b'{"sub": "\xff"}'),
    "claims nested deep": signed(RS, "[" * 5000),
    "header nested deep": signed("[" * 5000, claims()),
    "claim twice": signed(RS, '{"aud": "rabbitmq", "aud": "x", "iss": "https://issuer.test"}'),
    "algorithm twice": signed('{"alg": "none", "alg": "RS256", "kid": "k1"}', claims()),
    "alg none": f"{part({'alg': 'none', 'kid': 'k1'})}.{part(claims())}.",
    "alg NONE": f"{part({'alg': 'NONE', 'kid': 'k1'})}.{part(claims())}.",
    "alg missing": signed({"kid": "k1"}, claims()),
    "alg a number": signed({"alg": 1, "kid": "k1"}, claims()),
    "alg none, signed": signed({"alg": "none", "kid": "k1"}, claims()),
    "HS256 with the public key": hmac_signed({"alg": "HS256", "kid": "k1"}, claims(), pem("k1")),
    "HS256 with a symmetric key": hmac_signed({"alg": "HS256", "kid": "o"}, claims(), b"\0\0\0"),
    "HS256 that says RS256": hmac_signed(RS, claims(), pem("k1")),
    "algorithm not allowed": token(algorithm="RS512"),
    "RS256 with an elliptic key": signed({"alg": "RS256", "kid": "ec1"}, claims()),
    "ES256 with an RSA key": signed({"alg": "ES256", "kid": "k1"}, claims()),
    "RS256 with a key for PS256": token("ps", algorithm="RS256"),
    "no signature": token().rpartition(".")[0] + ".",
    "changed signature": _changed(token(), -20),
    "changed claims": _changed(token(), 150),
    "signed by another": signed(RS, claims(), "other"),
    "unknown key": token("k2"),
    "kid a path": signed({"alg": "RS256", "kid": "../../dev/null"}, claims()),
    "kid a list": signed({"alg": "RS256", "kid": ["k1"]}, claims()),
    "key in the header": signed({"alg": "RS256", "kid": "x", "jwk": jwk("other")}, claims(), "other"),
    "critical extension": signed({**RS, "crit": ["exp"]}, claims()),
    "expired": token(exp=NOW - 1),
    "expires now": token(exp=NOW),
    "exp a text": signed(RS, claims(exp="9999999999")),
    "exp infinite": signed(RS, '{"aud": "rabbitmq", "iss": "https://issuer.test", "exp": 1e999}'),
    "exp true": signed(RS, claims(exp=True)),
    "not yet": token(nbf=NOW + 1),
    "other audience": token(aud="other"),
    "audience missing": token(aud=None),
    "audience inside": token(aud="rabbitmq2"),
    "two resource servers": token(aud=["rabbitmq", "second"]),
    "audience an object": signed(RS, claims(aud={"rabbitmq": 1})),
    "other issuer": token(iss="https://issuer.test.evil"),
    "issuer missing": token(iss=None),
    "too long": token(more="x" * 20_000),
    "not ASCII": token() + "é",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_token_is_refused(name):
    """Nothing but a token error comes of it, and its text has nothing of the token."""
    with pytest.raises(TokenError) as caught:
        verified(BAD[name], KEYS, "", RULES, NOW)

    assert len(str(caught.value)) < 80
    assert isinstance(caught.value, UnknownKeyError) is (
        name in {"unknown key", "kid a path", "key in the header"}
        or ("key" in name and "with" in name and "HS" not in name)
        or name == "RS256 with a key for PS256"
    )


@pytest.mark.parametrize(
    "text",
    [
        token(),
        token(aud="x rabbitmq"),
        token("ec1", "ES256"),
        token("ps", "PS256"),
        token("k1", "PS256"),
        token(headers={"kid": ""}),
        token(exp=NOW + 0.5, nbf=NOW),
        token(exp=None),
        token(headers={"typ": "at+jwt"}),
    ],
)
def test_a_good_token_is_taken(text):
    """Keys without an algorithm are good for any of their kind, and tokens without a key are tried with all."""
    assert "ann" == verified(text, KEYS, "", RULES, NOW)["sub"]


def test_a_token_that_never_expires_is_refused_on_request():
    """`auth_oauth2.require_exp` refuses tokens without the claim; others are taken as before."""
    verified(token(), KEYS, "", RULES._replace(require_exp=True), NOW)
    for_ever = signed(RS, {name: value for name, value in claims().items() if name != "exp"})
    verified(for_ever, KEYS, "", RULES, NOW)

    with pytest.raises(TokenError, match="it never expires"):
        verified(for_ever, KEYS, "", RULES._replace(require_exp=True), NOW)


def test_the_key_of_a_file_is_that_of_tokens_without_one():
    """A signing key of the configuration, named as the default key, verifies tokens that name none."""
    keys = [key_of_pem("file", pem("other")), *KEYS]

    assert "ann" == verified(token("other", headers={"kid": ""}), keys, "file", RULES, NOW)["sub"]
    with pytest.raises(TokenError, match="signature"):
        verified(token("k1", headers={"kid": ""}), keys, "file", RULES, NOW)


@pytest.mark.parametrize(
    ("scope", "kind", "vhost", "name", "key", "is_allowed"),
    [
        ("read:*/*", "read", "v", "q", None, True),
        ("read:*/*", "write", "v", "q", None, False),
        ("read:v/q", "read", "v", "q", None, True),
        ("read:v/q", "read", "v", "q2", None, False),
        ("read:v/q", "read", "w", "q", None, False),
        ("write:%2F/a%2Fb*", "write", "/", "a/bc", None, True),
        ("write:%2F/%2A", "write", "/", "x", None, False),
        ("write:v/*a*b", "write", "v", "xaxxb", None, True),
        ("write:v/*a*b", "write", "v", "b", None, False),
        ("write:v/ab*ba", "write", "v", "aba", None, False),
        ("write:v/amq.default", "write", "v", "", None, True),
        ("write:v/x", "write", "v", "x", "any.key", True),
        ("write:v/x/a.*", "write", "v", "x", "a.b", True),
        ("write:v/x/a.*", "write", "v", "x", "b", False),
        ("write:v/x/a.*", "write", "v", "x", None, True),
        ("write:v/x/a/b", "write", "v", "x", None, False),
        ("write:v", "write", "v", "x", None, False),
        ("delete:v/x", "delete", "v", "x", None, False),
        ("read:v/.*", "read", "v", "q", None, False),
    ],
)
def test_a_scope_gives_what_it_says(scope, kind, vhost, name, key, is_allowed):
    """Asterisks match any text, parts are percent-encoded, and patterns are no regular expressions."""
    assert is_allowed is Scopes([scope]).may(vhost, Question(kind, "queue", name, key))


def test_scopes_come_from_several_claims():
    """The claim scope and further ones, texts and lists and objects, without those for others; aliases stand for more."""
    found = scopes_of(
        {
            "scope": ["rabbitmq.tag:a x", "admin"],
            "extra": {"rabbitmq": ["rabbitmq.tag:b"], "other": ["rabbitmq.tag:no"]},
            "deep": {"in": {"side": "rabbitmq.tag:c other.tag:no"}},
        },
        resource="rabbitmq",
        prefix="rabbitmq.",
        additional=("extra", "deep.in.side", "missing.claim"),
        aliases={"admin": ("rabbitmq.tag:administrator", "rabbitmq.read:*/*")},
    )

    assert ("a", "b", "c", "administrator") == found.tags
    assert found.may_access("any")
    with pytest.raises(ValueError, match="more than 200 scopes"):
        scopes_of({"scope": "s " * 201}, resource="", prefix="", aliases={})

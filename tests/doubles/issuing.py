"""An issuer of tokens: keys of its own, a web service that has the public ones, and tokens good and bad."""

import base64
import hashlib
import hmac
import json
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

NOW = 1_800_000_000


@cache
def rsa_key(name: str) -> rsa.RSAPrivateKey:
    del name
    return rsa.generate_private_key(65537, 2048)


@cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    del name
    return ec.generate_private_key(ec.SECP256R1())


def pem(name: str) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return rsa_key(name).public_key().public_bytes(serialization.Encoding.PEM, form)


def jwk(name: str, **more: str) -> dict[str, Any]:
    """Return the public key of that name as a JSON Web Key; names that begin with `ec` are elliptic."""
    if name.startswith("ec"):
        found = ECAlgorithm.to_jwk(ec_key(name).public_key(), as_dict=True)
    else:
        found = RSAAlgorithm.to_jwk(rsa_key(name).public_key(), as_dict=True)
    return {**found, "kid": name, "use": "sig"} | more


def claims(**more: Any) -> dict[str, Any]:
    """Return claims of a good token; None removes one."""
    found = {
        "iss": "https://issuer.test",
        "aud": ["other", "rabbitmq"],
        "sub": "ann",
        "exp": NOW + 60,
        "scope": "rabbitmq.read:*/* rabbitmq.write:%2F/own-* rabbitmq.configure:%2F/own-* rabbitmq.tag:management x",
    } | more
    return {name: value for name, value in found.items() if value is not None}


def token(
    key: str = "k1", algorithm: str = "RS256", headers: dict[str, Any] | None = None, **more: Any
) -> str:
    private = ec_key(key) if key.startswith("ec") else rsa_key(key)
    return jwt.encode(claims(**more), private, algorithm, {"kid": key} | (headers or {}))


def part(value: Any) -> str:
    """Return an object as a part of a token; text and octets as they are."""
    octets = (
        value
        if isinstance(value, bytes)
        else (value if isinstance(value, str) else json.dumps(value)).encode()
    )
    return base64.urlsafe_b64encode(octets).rstrip(b"=").decode()


def signed(header: Any, payload: Any, key: str = "k1") -> str:
    """Return a token with an RS256 signature that is right, whatever is in it."""
    text = f"{part(header)}.{part(payload)}"
    signature = RSAAlgorithm(RSAAlgorithm.SHA256).sign(text.encode(), rsa_key(key))
    return f"{text}.{part(signature)}"


def hmac_signed(header: Any, payload: Any, secret: bytes) -> str:
    """Return a token with an HMAC."""
    text = f"{part(header)}.{part(payload)}"
    return f"{text}.{part(hmac.new(secret, text.encode(), hashlib.sha256).digest())}"


class Keys:
    """The web service of the issuer."""

    def __init__(self) -> None:
        self.keys = [jwk("k1")]
        self.asked = 0
        self.status = 200
        self.headers: dict[str, str] = {}
        self.url = ""


@asynccontextmanager
async def issuing():
    """Run the web service of the issuer on a free port."""
    keys = Keys()

    async def answer(_request: web.Request) -> web.Response:
        keys.asked += 1
        return web.json_response({"keys": keys.keys}, status=keys.status, headers=keys.headers)

    async def configuration(_request: web.Request) -> web.Response:
        return web.json_response({"issuer": keys.url, "jwks_uri": f"{keys.url}/keys"})

    application = web.Application()
    application.router.add_get("/keys", answer)
    application.router.add_get("/.well-known/openid-configuration", configuration)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    keys.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield keys
    finally:
        await runner.cleanup()

"""An identity provider for the login to the web page, in threads of its own: authorization code flow with PKCE."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from doubles.issuing import jwk, token

SCOPES = "rabbitmq.tag:administrator rabbitmq.read:*/* rabbitmq.write:*/* rabbitmq.configure:*/*"
VERIFIER = "v" * 43
"""A secret of a window that begins a login."""
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
BACK = "http://127.0.0.1/"
"""Address that a browser comes back to."""


class Provider:
    """The provider, and what it has been asked.

    Attributes:
        url: its address.
        scopes: the scopes of its tokens.
        seconds: time for which they are good.
        secret: the secret that the client has to show; '' for none.
        error: what it says instead of a code; '' for a code.
        asked: the queries of browsers that were sent here.
        exchanged: forms of exchanges.
        metadata: what differs in its OpenID configuration.
        refresh: True if it gives refresh tokens, each good once.
        user: the name in its tokens.

    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.scopes = SCOPES
        self.seconds = 3600
        self.secret = self.error = ""
        self.asked: list[dict[str, str]] = []
        self.exchanged: list[dict[str, str]] = []
        self.metadata: dict[str, Any] = {}
        self.refresh = False
        self.user = "ann"
        self._refresh_tokens: set[str] = set()
        self._codes: dict[str, dict[str, str]] = {}

    def configuration(self) -> dict[str, Any]:
        """Return its OpenID configuration."""
        return {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
        } | self.metadata

    def back(self, query: dict[str, str]) -> str:
        """Return the address to which a browser is sent back."""
        self.asked.append(query)
        if self.error:
            answer = {"error": self.error, "error_description": f"<b>{self.error}</b>"}
        else:
            code = secrets.token_urlsafe()
            self._codes[code] = query
            answer = {"code": code}
        return f"{query['redirect_uri']}?{urlencode({**answer, 'state': query['state']})}"

    def exchange(self, form: dict[str, str], authorization: str) -> tuple[int, dict[str, Any]]:
        """Return the answer to an exchange of a code, which is good once."""
        self.exchanged.append(form)
        if form.get("grant_type") == "refresh_token":
            if not self.refresh or form.get("refresh_token") not in self._refresh_tokens:
                return 400, {"error": "invalid_grant"}
            self._refresh_tokens.remove(form["refresh_token"])
            return 200, self._tokens()
        begun = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        both = f"{form.get('client_id')}:{quote(self.secret)}"
        shown = f"Basic {base64.b64encode(both.encode()).decode()}"
        if (
            begun is None
            or form.get("grant_type") != "authorization_code"
            or (begun["code_challenge_method"], begun["code_challenge"]) != ("S256", challenge)
            or any(begun[name] != form.get(name) for name in ("redirect_uri", "client_id"))
            or (self.secret and self.secret != form.get("client_secret") and shown != authorization)
        ):
            return 400, {"error": "invalid_grant"}
        return 200, self._tokens()

    def _tokens(self) -> dict[str, Any]:
        made = token(exp=int(time.time()) + self.seconds, iss=self.url, sub=self.user, scope=self.scopes)
        answer = {"access_token": made, "token_type": "Bearer", "expires_in": self.seconds}
        if self.refresh:
            answer["refresh_token"] = secrets.token_urlsafe()
            self._refresh_tokens.add(answer["refresh_token"])
        return answer


def code_of(provider: Provider, challenge: str = CHALLENGE) -> str:
    query = {"client_id": "page", "redirect_uri": BACK, "state": "s"}
    address = provider.back({**query, "code_challenge": challenge, "code_challenge_method": "S256"})
    return address.partition("code=")[2].partition("&")[0]


class _Handler(BaseHTTPRequestHandler):
    provider: Provider

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = dict(parse_qsl(parts.query))
        if parts.path == "/authorize":
            self._answer(
                200, "text/html", f'<a id="sign-in" href="/sign-in?{urlencode(query)}">Sign in</a>'.encode()
            )
        elif parts.path == "/sign-in":
            self.send_response(302)
            self.send_header("location", self.provider.back(query))
            self.send_header("content-length", "0")
            self.end_headers()
        elif parts.path == "/keys":
            self._json(200, {"keys": [jwk("k1")]})
        elif parts.path == "/.well-known/openid-configuration":
            self._json(200, self.provider.configuration())
        else:
            self._json(404, {})

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"]))
        form = dict(parse_qsl(content.decode()))
        self._json(*self.provider.exchange(form, self.headers.get("authorization", "")))

    def _json(self, status: int, value: Any) -> None:
        self._answer(status, "application/json", json.dumps(value).encode())

    def _answer(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def providing() -> Iterator[Provider]:
    handler = type("Handler", (_Handler,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.provider = Provider(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield handler.provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def settings(provider: Provider, **more: str) -> dict[str, str]:
    """Return the configuration of a broker whose page uses a provider."""
    return {
        "auth_backends.1": "oauth2",
        "auth_backends.2": "internal",
        "auth_oauth2.resource_server_id": "rabbitmq",
        "auth_oauth2.issuer": provider.url,
        "management.oauth_enabled": "true",
        "management.oauth_client_id": "page",
        "management.oauth_scopes": "openid rabbitmq.*",
        "auth.failure_delay": "0",
    } | {name.replace("__", "."): value for name, value in more.items()}

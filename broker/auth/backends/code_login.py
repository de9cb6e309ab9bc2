"""Login to the web page by an identity provider: authorization code flow with PKCE, RFC 6749 and 7636 (driver).

Theory. The page makes a secret (the verifier) and sends the browser to the provider with its hash. The browser comes
back with a code, which the page gives to the broker together with the verifier; the broker changes both into a token at
the provider. So no script ever has the token, the provider need not answer scripts of other origins, and a secret of
the client, if there is one, stays here. The token is then a login like any other (`oauth2.OAuth2Backend`). A refresh
token, if the provider gives one, is in the session, which is renewed by it (`session_renewal.SessionRenewal`).
"""

import asyncio
import base64
import json
import logging
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp

from leveret.broker.auth.backends.backend import BackendError
from leveret.broker.auth.backends.guarded import CALLER
from leveret.broker.auth.backends.issuer import DISCOVERY
from leveret.broker.auth.backends.settings import CodeLoginSettings, OAuth2Settings, is_protected
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.process.shares import Shares
from leveret.broker.tls.named_certificates import client_context

log = logging.getLogger("leveret.management")

OLD_SECONDS: Final = 3600.0
"""Age at which the addresses of the provider are fetched again."""
FAILED_SECONDS: Final = 5.0
"""Time after a failed attempt in which there is no other."""
FETCH_SECONDS: Final = 5.0
"""Maximum duration of an exchange with the provider."""
AT_ONCE: Final = 16
"""Codes that are exchanged at once; further ones are refused."""
MOST_OCTETS: Final = 64 * 1024
"""Maximum length of an answer of the provider."""
_LONGEST: Final = 4096
"""Characters of the longest code, of the longest refresh token, and of the longest address to come back to."""
_VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_REFUSED: Final = frozenset({400, 401, 403})


class Endpoints(NamedTuple):
    """Addresses of the provider.

    Attributes:
        authorization: where the browser is sent.
        token: where a code is exchanged.
        methods: ways in which a client may show its secret there; () if the provider does not say.

    """

    authorization: str
    token: str
    methods: tuple[str, ...] = ()


class Tokens(NamedTuple):
    """Tokens of the provider, for a code or for a refresh token.

    Attributes:
        access: the token that is a login.
        refresh: a token for further ones; None if there is none.

    """

    access: str
    refresh: Password | None = None


class CodeLogin:
    """The login by an identity provider.

    Args:
        settings: its settings.
        oauth2: settings of the backend that takes the tokens.
        now: seconds of a monotonic clock.

    Raises:
        OSError: the file of certificates cannot be used.

    """

    def __init__(self, settings: CodeLoginSettings, oauth2: OAuth2Settings, now: Callable[[], float]) -> None:
        self.settings = settings
        self.resource = oauth2.resource_server_id
        self.provider_url = settings.provider_url or oauth2.issuer
        self._now = now
        self._tls = client_context(oauth2.cacertfile)
        self._found: Endpoints | None = None
        self._old_at = self._failed_at = float("-inf")
        self._lock = asyncio.Lock()
        self._places = Shares.of_addresses(AT_ONCE)

    async def endpoints(self) -> Endpoints:
        """Return the addresses of the provider; raises BackendError if it does not tell."""
        async with self._lock:
            now = self._now()
            if now >= self._old_at and now - self._failed_at >= FAILED_SECONDS:
                try:
                    self._found = _endpoints(await self._asked("GET", self._metadata_url))
                    self._old_at = self._now() + OLD_SECONDS
                except BackendError as error:
                    self._failed_at = self._now()
                    log.error("OAuth 2: the identity provider of the web page does not answer: %s", error)  # noqa: TRY400
            if self._found is None:
                raise BackendError("the identity provider does not answer")
            return self._found

    @property
    def _metadata_url(self) -> str:
        return self.settings.metadata_url or self.provider_url.rstrip("/") + DISCOVERY

    async def tokens(self, code: str, verifier: str, redirect_uri: str) -> Tokens:
        """Exchange a code for a token, and one to renew it if the provider gives that.

        Args:
            code: the code.
            verifier: the secret whose hash the provider knows.
            redirect_uri: the address to which the browser has come back.

        Raises:
            LoginRefusedError: the provider refuses, or a value cannot be right.
            BackendError: the provider does not answer.

        """
        if not 0 < len(code) <= _LONGEST or len(redirect_uri) > _LONGEST or not _VERIFIER.fullmatch(verifier):
            raise LoginRefusedError("the identity provider's answer is not complete")
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "client_id": self.settings.client_id,
            "code_verifier": verifier,
        }
        return await self._exchanged(form)

    async def renewed(self, refresh: Password) -> Tokens:
        """Exchange a refresh token for a token; the refresh token stays if the provider gives no other.

        Raises:
            LoginRefusedError: the provider refuses.
            BackendError: the provider does not answer.

        """
        form = {
            "grant_type": "refresh_token",
            "refresh_token": refresh.octets().decode(),
            "client_id": self.settings.client_id,
        }
        found = await self._exchanged(form)
        return found._replace(refresh=found.refresh or refresh)

    async def _exchanged(self, form: dict[str, str]) -> Tokens:
        address, _ = CALLER.get()
        if not self._places.acquire(address):
            raise BackendError("too many logins by the identity provider at once")
        try:
            endpoints = await self.endpoints()
            headers = self._authenticated(endpoints, form)
            answer = await self._asked("POST", endpoints.token, form, headers)
        finally:
            self._places.release(address)
        token, refresh = answer.get("access_token"), answer.get("refresh_token")
        if not isinstance(token, str) or str(answer.get("token_type", "bearer")).lower() != "bearer":
            raise LoginRefusedError("the identity provider gives no token")
        if not isinstance(refresh, str) or not 0 < len(refresh) <= _LONGEST or not refresh.isascii():
            return Tokens(token)
        return Tokens(token, Password(refresh))

    def _authenticated(self, endpoints: Endpoints, form: dict[str, str]) -> dict[str, str]:
        """Return the headers of a request of this client, whose secret may be in the form instead."""
        secret = self.settings.client_secret
        if not secret:
            return {}
        if endpoints.methods and "client_secret_basic" not in endpoints.methods:
            form["client_secret"] = secret
            return {}
        both = f"{quote(self.settings.client_id, safe='')}:{quote(secret, safe='')}"
        return {"authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}

    async def _asked(
        self,
        method: str,
        address: str,
        form: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """Return an answer of the provider, a JSON object."""
        connector = aiohttp.TCPConnector(limit=1, ssl=self._tls)
        try:
            async with (
                asyncio.timeout(FETCH_SECONDS),
                aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
                session.request(
                    method,
                    address,
                    data=form,
                    headers={"accept": "application/json", **(headers or {})},
                    allow_redirects=False,
                ) as response,
            ):
                octets = b""
                while len(octets) <= MOST_OCTETS and (piece := await response.content.read(65536)):
                    octets += piece
                status = response.status
        except TimeoutError:
            raise BackendError("timeout") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise BackendError(type(error).__name__) from None
        if form is not None and status in _REFUSED:
            kind = "code" if "code" in form else "refresh token"
            raise LoginRefusedError(f"the identity provider refuses the {kind}")
        if status != 200 or len(octets) > MOST_OCTETS:  # noqa: PLR2004 - OK
            raise BackendError(f"status {status}, {len(octets)} bytes")
        try:
            document = json.loads(octets)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise BackendError("its answer is no object")
        return document


def _endpoints(document: dict[str, Any]) -> Endpoints:
    """Return the addresses in the OpenID configuration of a provider; raises BackendError."""
    found = [document.get(name) for name in ("authorization_endpoint", "token_endpoint")]
    for each in found:
        if not isinstance(each, str) or not _is_usable(each):
            raise BackendError("its configuration has no addresses with https")
    methods = document.get("token_endpoint_auth_methods_supported")
    names = methods if isinstance(methods, list) else []
    return Endpoints(str(found[0]), str(found[1]), tuple(each for each in names if isinstance(each, str)))


def _is_usable(address: str) -> bool:
    try:
        return is_protected(address) and not urlsplit(address).fragment
    except ValueError:
        return False

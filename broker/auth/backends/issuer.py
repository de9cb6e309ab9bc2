"""The issuer of tokens, which is asked for its keys, and for tokens of users who log in to the web page (driver).

Theory of the keys. They are fetched when they are first needed, when they have become old, and when a token names one
that is not among them: that at most once a minute, or tokens with made-up keys would make the broker flood the issuer.
While the issuer does not answer, the last keys stay good.

Theory of the login: authorization code flow with PKCE, RFC 6749 and 7636. The page makes a secret (the verifier) and
sends the browser to the provider with its hash. The browser comes back with a code, which the page gives to the broker
together with the verifier; the broker changes both into a token at the provider. So no script ever has the token, the
provider need not answer scripts of other origins, and a secret of the client, if there is one, stays here. The token is
then a login like any other (`oauth2.OAuth2Backend`). A refresh token, if the provider gives one, is in the session, in
memory only, and no script has it; the session is renewed by it (`SessionRenewal`).
"""

import asyncio
import base64
import json
import logging
import re
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import aiohttp

from leveret.broker.auth.backends.backend import BackendError, UnreachableError
from leveret.broker.auth.backends.guarded import CALLER
from leveret.broker.auth.backends.http import octets_of
from leveret.broker.auth.backends.settings import CodeLoginSettings, OAuth2Settings, is_protected
from leveret.broker.auth.backends.tokens import Key, keys_of
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.sessions import AGAIN_SECONDS, Renewal, Sessions, renewal_of
from leveret.broker.auth.users import BackendUser, LoginRefusedError
from leveret.broker.process.audit_log import AuditLog
from leveret.broker.process.shares import Shares
from leveret.broker.tls.context import client_context

log = logging.getLogger("leveret.connection")
page_log = logging.getLogger("leveret.management")

OLD_SECONDS: Final = 3600.0
"""Age at which keys are fetched again, if the issuer does not say how long they are good (`Cache-Control`), and its
addresses."""
LEAST_SECONDS, MOST_SECONDS = 60.0, 86400.0  # bounds of what the issuer says
UNKNOWN_SECONDS: Final = 60.0  # least time between two attempts because of unknown keys
FAILED_SECONDS: Final = 5.0  # time after a failed attempt in which there is no other
FETCH_SECONDS: Final = 5.0  # maximum duration of an attempt
MOST_OCTETS: Final = 256 * 1024  # maximum length of a document of the issuer
MOST_ANSWER: Final = 64 * 1024  # maximum length of an answer about a login
AT_ONCE: Final = 16  # codes that are exchanged at once; further ones are refused
_MAX_AGE: Final = re.compile(r'(?:^|[\s,])max-age\s*=\s*"?(\d{1,12})')
_UNCACHED: Final = re.compile(r"(?:^|[\s,])no-(?:cache|store)")
_LONGEST: Final = 4096
"""Characters of the longest code, of the longest refresh token, and of the longest address to come back to."""
_VERIFIER: Final = re.compile(r"[A-Za-z0-9._~-]{43,128}")
_OK: Final = 200
_REFUSED: Final = frozenset({400, 401, 403})


class _Answer(NamedTuple):
    status: int
    octets: bytes
    caching: str


async def _asked(
    method: str,
    address: str,
    tls: ssl.SSLContext | bool,
    most: int,
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
) -> _Answer:
    """Return an answer, or so much of it that it is longer than `most`."""
    connector = aiohttp.TCPConnector(limit=1, ssl=tls)
    async with (
        aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session,
        session.request(method, address, data=form, headers=headers, allow_redirects=False) as response,
    ):
        octets = await octets_of(response, most)
        return _Answer(response.status, octets, ",".join(response.headers.getall("cache-control", ())))


class Issuer:
    """The keys of an issuer, and `fixed` ones, good without it. Raises OSError: a file of certificates is unusable."""

    def __init__(self, settings: OAuth2Settings, fixed: list[Key], now: Callable[[], float]) -> None:
        self._settings = settings
        self._fixed = fixed
        self._now = now
        self._fetched: list[Key] = []
        self._old_at = self._unknown_at = self._failed_at = float("-inf")
        """Times at which the keys are old, of the last attempt because of an unknown one, and of the last failure."""
        self._lock = asyncio.Lock()
        self._tls = client_context(settings.cacertfile) if self._has_address else True

    @property
    def _has_address(self) -> bool:
        return bool(self._settings.jwks_uri or (self._settings.issuer and not self._fixed))

    async def keys(self, *, unknown: bool = False) -> list[Key]:
        """Return the keys; `unknown`: a token has a key that is not among those that were returned before.

        Raises UnreachableError: there are none, because the issuer does not answer.
        """
        if self._has_address:
            async with self._lock:
                is_answered = await self._refresh(unknown=unknown)
            if not (is_answered or self._fetched or self._fixed):
                raise UnreachableError("the issuer of tokens does not answer")
        return [*self._fixed, *self._fetched]

    async def _refresh(self, *, unknown: bool) -> bool:
        """Fetch the keys if that is due; returns whether they were fetched."""
        now = self._now()
        is_due = now >= self._old_at
        if unknown and now - self._unknown_at >= UNKNOWN_SECONDS:
            self._unknown_at = now
            is_due = True
        if not is_due or now - self._failed_at < FAILED_SECONDS:
            return False
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                found, seconds = await self._fetch()
        except (BackendError, TimeoutError, ValueError, OSError) as error:
            self._failed_at = self._now()
            reason = str(error) or "timeout"
            log.error("OAuth 2: cannot fetch the keys of the issuer: %s; those of before are used", reason)  # noqa: TRY400
            return False
        self._fetched, self._old_at = found, self._now() + seconds
        log.info("OAuth 2: fetched %d keys of the issuer, good for %d s", len(found), seconds)
        return True

    async def _fetch(self) -> tuple[list[Key], float]:
        """Return the keys, and the seconds for which they are good."""
        document, caching = await self._document(self._settings.jwks_uri or await self._discovered())
        return keys_of(document), good_for(caching)

    async def _discovered(self) -> str:
        """Return the address of the keys in the OpenID configuration of the issuer."""
        document, _ = await self._document(self._settings.discovery_url(self._settings.issuer))
        address = document.get("jwks_uri") if isinstance(document, dict) else None
        if not isinstance(address, str) or document.get("issuer") != self._settings.issuer:
            raise BackendError("its configuration has no keys, or is another issuer's")
        return address

    async def _document(self, address: str) -> tuple[Any, str]:
        """Return a document, and its header `Cache-Control`."""
        try:
            answer = await _asked("GET", address, self._tls, MOST_OCTETS)
        except aiohttp.ClientError as error:
            raise BackendError(type(error).__name__) from None
        if answer.status != _OK:
            raise BackendError(f"status {answer.status}")
        if len(answer.octets) > MOST_OCTETS:
            raise BackendError("its answer is too long")
        return json.loads(answer.octets), answer.caching


def good_for(caching: str) -> float:
    """Return the seconds for which keys are good, by the header `Cache-Control` of the answer that they came in."""
    words = caching.lower()
    if _UNCACHED.search(words):
        return LEAST_SECONDS
    found = _MAX_AGE.search(words)
    return OLD_SECONDS if found is None else min(max(float(found[1]), LEAST_SECONDS), MOST_SECONDS)


class Endpoints(NamedTuple):
    """Addresses of the provider."""

    authorization: str  # where the browser is sent
    token: str  # where a code is exchanged
    methods: tuple[str, ...] = ()  # ways to show a client's secret there; () if the provider does not say


class Tokens(NamedTuple):
    """The token that is a login, and one for further ones; None if there is none."""

    access: str
    refresh: Password | None = None


class CodeLogin:
    """The login to the web page by an identity provider; `oauth2` is the settings of the backend that takes the tokens.

    Raises OSError: the file of certificates cannot be used.
    """

    def __init__(self, settings: CodeLoginSettings, oauth2: OAuth2Settings, now: Callable[[], float]) -> None:
        self.settings = settings
        self.resource = oauth2.resource_server_id
        self.provider_url = settings.provider_url or oauth2.issuer
        self._discovery_url = oauth2.discovery_url
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
                    page_log.error(
                        "OAuth 2: the identity provider of the web page does not answer: %s", error
                    )
            if self._found is None:
                raise BackendError("the identity provider does not answer")
            return self._found

    @property
    def _metadata_url(self) -> str:
        return self.settings.metadata_url or self._discovery_url(self.provider_url)

    async def tokens(self, code: str, verifier: str, redirect_uri: str) -> Tokens:
        """Exchange a code for a token, and one to renew it if the provider gives that.

        The provider knows the hash of the `verifier`. Raises LoginRefusedError: the provider refuses, or a value cannot
        be right; BackendError: it does not answer.
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
        """Exchange a refresh token for a token, as `tokens`; it stays if the provider gives no other."""
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
        self, method: str, address: str, form: dict[str, str] | None = None, headers: Mapping[str, str] = {}
    ) -> dict[str, Any]:
        headers = {"accept": "application/json", **headers}
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                answer = await _asked(method, address, self._tls, MOST_ANSWER, form=form, headers=headers)
        except TimeoutError:
            raise BackendError("timeout") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise BackendError(type(error).__name__) from None
        if form is not None and answer.status in _REFUSED:
            kind = "code" if "code" in form else "refresh token"
            raise LoginRefusedError(f"the identity provider refuses the {kind}")
        if answer.status != _OK or len(answer.octets) > MOST_ANSWER:
            raise BackendError(f"status {answer.status}, {len(answer.octets)} bytes")
        try:
            document = json.loads(answer.octets)
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


# -- sessions of the web page -----------------------------------------------------------------------------------------

TICK_SECONDS: Final = 1.0  # time between two looks at the sessions
RENEWED_AT_ONCE: Final = 4  # sessions that are renewed at once


@dataclass(slots=True)
class SessionRenewal:
    """The renewal of the sessions of one broker, before the logins of their users end.

    Theory. An access token is good for minutes, a session of the page for hours. One task looks once a second at the
    sessions that have a refresh token, and exchanges it when most of the time of the login has passed. A provider that
    refuses ends the session; one that does not answer is asked again until the login ends. The table of sessions is the
    bound: of memory, and of the exchanges.

    `renewed` exchanges a refresh token (`AccessControl.renewed_by`); `now` is seconds of a monotonic clock, `wall`
    milliseconds since the epoch.
    """

    sessions: Sessions
    audit: AuditLog
    now: Callable[[], float]
    wall: Callable[[], int]
    renewed: Callable[[Password, BackendUser, str], Awaitable[tuple[BackendUser, Password | None]]]

    async def run(self) -> None:
        """Renew sessions until none is left that can be renewed."""
        while await self.look():  # noqa: ASYNC110 - logins end by the clock, not by an event
            await asyncio.sleep(TICK_SECONDS)

    async def look(self) -> int:
        """Renew the sessions that are due; returns the number of those that can be renewed."""
        now = self.wall() / 1000
        found = self.sessions.renewable(self.now())
        due = [(key, *each) for key, each in found.items() if now >= each[1].due]
        places = asyncio.Semaphore(RENEWED_AT_ONCE)

        async def renew(key: bytes, user: BackendUser, before: Renewal) -> None:
            async with places:
                await self._renew(key, user, before)

        await asyncio.gather(
            *[renew(key, user, before) for key, user, before in due if isinstance(user, BackendUser)]
        )
        return len(found)

    async def _renew(self, key: bytes, user: BackendUser, before: Renewal) -> None:
        facts = {"actor": user.name, "peer": before.peer, "protocol": "http", "mechanism": "refresh_token"}
        try:
            new, secret = await self.renewed(before.secret, user, before.peer)
        except (LoginRefusedError, BackendError) as error:
            wall = self.wall()
            if isinstance(error, BackendError) and not user.is_over(wall):
                later = before._replace(due=wall / 1000 + AGAIN_SECONDS)
                self.sessions.renew(key, before, user, later)
            elif self.sessions.renew(key, before, None, None):
                page_log.warning("the session of a user from %s ends: %s", before.peer, error)
                self.audit.record("session.renew", outcome="refused", reason=str(error), **facts)
            return
        wall = self.wall()
        new = new.in_session(wall)
        if self.sessions.renew(key, before, new, renewal_of(new.expires, secret, before.peer, wall)):
            self.audit.record("session.renew", **facts)

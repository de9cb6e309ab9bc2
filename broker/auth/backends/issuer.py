"""The keys of an issuer of tokens, fetched from it and kept (driver).

They are fetched when they are first needed, when they have become old, and when a token names one that is not among
them: that at most once a minute, or tokens with made-up keys would make the broker flood the issuer. While the issuer
does not answer, the last keys stay good.
"""

import asyncio
import json
import logging
import re
from collections.abc import Callable
from typing import Any, Final

import aiohttp

from leveret.broker.auth.backends.backend import BackendError, UnreachableError
from leveret.broker.auth.backends.settings import OAuth2Settings
from leveret.broker.auth.backends.tokens import Key, keys_of
from leveret.broker.tls.named_certificates import client_context

log = logging.getLogger("leveret.connection")

OLD_SECONDS: Final = 3600.0
"""Age at which keys are fetched again, if the issuer does not say how long they are good (`Cache-Control`)."""
LEAST_SECONDS, MOST_SECONDS = 60.0, 86400.0
"""Bounds of what the issuer says."""
UNKNOWN_SECONDS: Final = 60.0
"""Least time between two attempts because of unknown keys."""
FAILED_SECONDS: Final = 5.0
"""Time after a failed attempt in which there is no other."""
FETCH_SECONDS: Final = 5.0
"""Maximum duration of an attempt."""
MOST_OCTETS: Final = 256 * 1024
"""Maximum length of an answer of the issuer."""
_MAX_AGE: Final = re.compile(r'(?:^|[\s,])max-age\s*=\s*"?(\d{1,12})')
_UNCACHED: Final = re.compile(r"(?:^|[\s,])no-(?:cache|store)")
DISCOVERY: Final = "/.well-known/openid-configuration"


class Issuer:
    """The keys of an issuer.

    Args:
        settings: has the addresses.
        fixed: keys of files, which are good without the issuer.
        now: seconds of a monotonic clock.

    Raises:
        OSError: the file of certificates cannot be used.

    """

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
        """Return the keys.

        Args:
            unknown: True if a token has a key that is not among those that were returned before.

        Raises:
            UnreachableError: there are none, because the issuer does not answer.

        """
        if self._has_address:
            async with self._lock:
                await self._refresh(unknown=unknown)
        return [*self._fixed, *self._fetched]

    async def _refresh(self, *, unknown: bool) -> None:
        now = self._now()
        is_due = now >= self._old_at
        if unknown and now - self._unknown_at >= UNKNOWN_SECONDS:
            self._unknown_at = now
            is_due = True
        if not is_due or now - self._failed_at < FAILED_SECONDS:
            if not self._fetched and not self._fixed:
                raise UnreachableError("the issuer of tokens does not answer")
            return
        try:
            async with asyncio.timeout(FETCH_SECONDS):
                found, seconds = await self._fetch()
        except (BackendError, TimeoutError, ValueError, OSError) as error:
            self._failed_at = self._now()
            reason = str(error) or "timeout"
            log.error("OAuth 2: cannot fetch the keys of the issuer: %s; those of before are used", reason)  # noqa: TRY400
            if not self._fetched and not self._fixed:
                raise UnreachableError("the issuer of tokens does not answer") from None
            return
        self._fetched, self._old_at = found, self._now() + seconds
        log.info("OAuth 2: fetched %d keys of the issuer, good for %d s", len(found), seconds)

    async def _fetch(self) -> tuple[list[Key], float]:
        """Return the keys, and the seconds for which they are good."""
        connector = aiohttp.TCPConnector(limit=1, ssl=self._tls)
        try:
            async with aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar()
            ) as session:
                address = self._settings.jwks_uri or await self._discovered(session)
                document, caching = await _document(session, address)
                return keys_of(document), good_for(caching)
        except aiohttp.ClientError as error:
            raise BackendError(type(error).__name__) from None

    async def _discovered(self, session: Any) -> str:
        """Return the address of the keys in the OpenID configuration of the issuer."""
        document, _ = await _document(session, self._settings.issuer.rstrip("/") + DISCOVERY)
        address = document.get("jwks_uri") if isinstance(document, dict) else None
        if not isinstance(address, str) or document.get("issuer") != self._settings.issuer:
            raise BackendError("its configuration has no keys, or is another issuer's")
        return address


async def _document(session: Any, address: str) -> tuple[Any, str]:
    """Return a document, and its header `Cache-Control`."""
    async with session.get(address, allow_redirects=False) as response:
        if response.status != 200:  # noqa: PLR2004 - OK
            raise BackendError(f"status {response.status}")
        octets = b""
        while len(octets) <= MOST_OCTETS and (piece := await response.content.read(65536)):
            octets += piece
    if len(octets) > MOST_OCTETS:
        raise BackendError("its answer is too long")
    return json.loads(octets), ",".join(response.headers.getall("cache-control", ()))


def good_for(caching: str) -> float:
    """Return the seconds for which keys are good, by the header `Cache-Control` of the answer that they came in."""
    words = caching.lower()
    if _UNCACHED.search(words):
        return LEAST_SECONDS
    found = _MAX_AGE.search(words)
    return OLD_SECONDS if found is None else min(max(float(found[1]), LEAST_SECONDS), MOST_SECONDS)

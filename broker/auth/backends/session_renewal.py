"""Sessions of the web page whose login by an identity provider is renewed before it ends (driver).

Theory. An access token is good for minutes, a session of the page for hours. The provider may have given a refresh
token with it: the session has that, in memory only, and no script does. One task looks once a second at the sessions
that have one, and exchanges it when most of the time of the login has passed. A provider that refuses ends the session;
one that does not answer is asked again until the login ends. The table of sessions is the bound: of memory, and of the
exchanges.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Protocol

from leveret.broker.auth.backends.backend import BackendError
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.sessions import AGAIN_SECONDS, Renewal, Sessions, renewal_of
from leveret.broker.auth.users import BackendUser, LoginRefusedError
from leveret.broker.process.audit_log import AuditLog

log = logging.getLogger("leveret.management")

TICK_SECONDS: Final = 1.0
"""Time between two looks at the sessions."""
AT_ONCE: Final = 4
"""Sessions that are renewed at once."""


class SessionBroker(Protocol):
    """The broker whose sessions they are (`broker.server.server.Server`)."""

    sessions: Sessions
    audit: AuditLog

    def now(self) -> float:
        """Return seconds of a monotonic clock."""

    def wall_clock(self) -> int:
        """Return milliseconds since the epoch."""


@dataclass(slots=True)
class SessionRenewal:
    """The renewal of the sessions of one broker; `renewed` exchanges a refresh token (`AccessControl.renewed_by`)."""

    broker: SessionBroker
    renewed: Callable[[Password, BackendUser, str], Awaitable[tuple[BackendUser, Password | None]]]

    async def run(self) -> None:
        """Renew sessions until none is left that can be renewed."""
        while await self.look():  # noqa: ASYNC110 - logins end by the clock, not by an event
            await asyncio.sleep(TICK_SECONDS)

    async def look(self) -> int:
        """Renew the sessions that are due; returns the number of those that can be renewed."""
        broker = self.broker
        now = broker.wall_clock() / 1000
        found = broker.sessions.renewable(broker.now())
        due = [(key, *each) for key, each in found.items() if now >= each[1].due]
        places = asyncio.Semaphore(AT_ONCE)

        async def renew(key: bytes, user: BackendUser, before: Renewal) -> None:
            async with places:
                await self._renew(key, user, before)

        await asyncio.gather(
            *[renew(key, user, before) for key, user, before in due if isinstance(user, BackendUser)]
        )
        return len(found)

    async def _renew(self, key: bytes, user: BackendUser, before: Renewal) -> None:
        broker = self.broker
        facts = {"actor": user.name, "peer": before.peer, "protocol": "http", "mechanism": "refresh_token"}
        try:
            new, secret = await self.renewed(before.secret, user, before.peer)
        except (LoginRefusedError, BackendError) as error:
            wall = broker.wall_clock()
            if isinstance(error, BackendError) and not user.is_over(wall):
                later = before._replace(due=wall / 1000 + AGAIN_SECONDS)
                broker.sessions.renew(key, before, user, later)
            elif broker.sessions.renew(key, before, None, None):
                log.warning("the session of a user from %s ends: %s", before.peer, error)
                broker.audit.record("session.renew", outcome="refused", reason=str(error), **facts)
            return
        wall = broker.wall_clock()
        new = new.in_session(wall)
        if broker.sessions.renew(key, before, new, renewal_of(new.expires, secret, before.peer, wall)):
            broker.audit.record("session.renew", **facts)

"""The servers that a URL of PostgreSQL lists: connects to the one that has replaced the others (driver).

A primary that another server has replaced may come back beside it, and then takes connections for writing, too. libpq
takes the first server in the list that does. So all are asked for their timeline, which rises with each promotion.
"""

import asyncio
import logging
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any, Final, NamedTuple

import psycopg

from leveret.broker.replication.postgresql_schema import TIMELINE

log = logging.getLogger("leveret.replication")

CONNECT_SECONDS: Final = 5  # time for a server to take a connection, and then to tell its timeline
OTHERS_SECONDS: Final = 0.5  # time for the other servers to answer, once one has
_ASK: Final = f"select case when pg_is_in_recovery() then 0 else {TIMELINE} end"


class Connected(NamedTuple):
    """A connection, and the timeline of its server."""

    connection: Any
    timeline: int


class Servers:
    """The servers of a URL, as libpq takes it."""

    def __init__(self, url: str) -> None:
        self._each = single_servers(url)
        if far := [host for each in self._each for host in _unverified(each)]:
            log.warning(
                "replication: the server %s is not verified: anybody on the way to it can read and change all "
                "messages; set sslmode=verify-full in replication.url",
                ", ".join(far),
            )
        self.newest = 0  # the highest timeline that was seen; 0 with one server, which is not asked

    @property
    def are_several(self) -> bool:
        """True if the URL lists more than one."""
        return len(self._each) > 1

    async def connect(self) -> Connected:
        """Return an autocommit connection to the newest within reach; else raises psycopg.Error, TimeoutError."""
        if not self.are_several:
            return Connected(await _opened(self._each[0]), 0)
        first, *others = await self._answering()
        await _close(others)
        return first

    async def look(self) -> None:
        """Look for a newer server: `newest` has its timeline then."""
        try:
            found = await self._answering()
        except (psycopg.Error, TimeoutError):
            return
        await _close(found)

    async def _answering(self) -> list[Connected]:
        """Return connections to the servers that can be reached, those of the highest timeline first."""
        tasks = [asyncio.create_task(_asked(url)) for url in self._each]
        try:
            await _until_one_answers(tasks)
        finally:
            for task in tasks:
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        found = sorted(
            [each for each in done if isinstance(each, Connected)], key=lambda each: -each.timeline
        )
        if not found:
            raise next(each for each in done if isinstance(each, BaseException))
        self.newest = max(self.newest, found[0].timeline)
        return found


async def _until_one_answers(tasks: Sequence["asyncio.Task[Connected]"]) -> None:
    """Wait until a server has answered, and the others have, too, or have had a moment more; or until all failed."""
    left = set(tasks)
    while left:
        done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
        if any(not each.cancelled() and each.exception() is None for each in done):
            break
    if left:
        await asyncio.wait(left, timeout=OTHERS_SECONDS)


async def _asked(url: str) -> Connected:
    connection = await _opened(url)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):  # a pooler takes connections for a server that is gone
            cursor = await connection.execute(_ASK)
            (timeline,) = await cursor.fetchone()
    except BaseException:
        await connection.close()
        raise
    return Connected(connection, timeline)


async def _opened(url: str) -> Any:
    return await psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=CONNECT_SECONDS)


async def _close(found: Sequence[Connected]) -> None:
    for each in found:
        await each.connection.close()


def _unverified(url: str) -> list[str]:
    """Return the host of the server that a URL of one server names, if it is another one and its owner is unknown."""
    given = {each.keyword.decode(): each.val for each in psycopg.pq.Conninfo.parse(url.encode())}
    for each in psycopg.pq.Conninfo.get_defaults():  # of the environment, too
        name = each.keyword.decode()
        given[name] = given.get(name) or each.val
    host = (given["hostaddr"] or given["host"] or b"").decode()
    is_verified = given["sslmode"] in {b"verify-ca", b"verify-full"} or given["channel_binding"] == b"require"
    if is_verified or not host or host.startswith(("/", "@")) or host == "localhost":
        return []
    try:
        return [] if ip_address(host).is_loopback else [host]
    except ValueError:
        return [host]


def single_servers(url: str) -> list[str]:
    """Return what connects to each of the servers that a URL lists."""
    given = psycopg.conninfo.conninfo_to_dict(url)
    lists = {name: str(given[name]).split(",") for name in ("host", "hostaddr", "port") if given.get(name)}
    count = max([1, *map(len, lists.values())])
    if count == 1:
        return [url]
    found = []
    for at in range(count):
        one: dict[str, Any] = {name: (each * count)[at] for name, each in lists.items()}
        found.append(psycopg.conninfo.make_conninfo(**{**given, **one}))
    return found


_TIMEOUTS = {  # parameters of libpq by which a connection without its other end breaks within seconds
    "application_name": "leveret",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}


def with_timeouts(url: str) -> str:
    """Return what connects to a URL, with time limits of the connection that it does not set itself.

    Raises ValueError: libpq does not understand the URL; the text does not contain it.
    """
    try:
        given = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ValueError("libpq does not understand it") from None
    if not all(port.isdecimal() for port in str(given.get("port") or "").split(",") if port):
        # libpq would say so with the text, which is a part of the password if that has a slash.
        raise ValueError("its port is no number: special characters in the password need quoting, as %2F")
    more = {name: value for name, value in _TIMEOUTS.items() if name not in given}
    joined: str = psycopg.conninfo.make_conninfo(url, **more)
    return joined

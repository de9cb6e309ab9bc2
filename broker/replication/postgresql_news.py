"""News on a connection to PostgreSQL: another session has given the lease back (driver).

The server sends a notification at once, also while no request is under way. The event loop watches the socket then:
whatever comes, or its end, is a reason to make the next request, with which it is read.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from leveret.broker.replication import postgresql_schema as sql


class News:
    """The news of one connection.

    Args:
        told: called, in the event loop, when there may be something new.

    """

    def __init__(self, told: Callable[[], object]) -> None:
        self._told = told
        self._watched = -1
        """Descriptor of the socket that is watched; negative for none."""

    async def begin(self, connection: Any) -> None:
        """Have the server notify a new connection."""
        connection.add_notify_handler(lambda _: self._told())  # those that come with the answer to a request
        await connection.execute(sql.LISTEN)

    def watch(self, connection: Any) -> None:
        """Watch the socket of a connection without a request under way."""
        self._watched = connection.fileno()
        asyncio.get_running_loop().add_reader(self._watched, self._heard)

    def rest(self) -> None:
        """Watch nothing: before each request, which reads from the socket, and before the connection is closed."""
        if self._watched >= 0:
            asyncio.get_running_loop().remove_reader(self._watched)
            self._watched = -1

    def _heard(self) -> None:
        self.rest()
        self._told()

"""A virtual host of one test: created with a user of its own, removed with everything in it (driver)."""

import itertools
import logging
import re
from typing import Final, Self

from leveret.broker.embedded.recording import listed
from leveret.broker.embedded.synchronous import Broker, VHost
from leveret.broker.embedded.vhost import AsyncVHost

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_TITLE_LENGTH: Final = 80
_numbers: Final = itertools.count(1)


class _Errors(logging.Handler):
    """Collects what the broker logs as a warning or an error."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class OwnVHost(VHost):
    """A virtual host of a broker that exists between `open` and `close`; `with` does both.

    It has the API of `Broker` within its virtual host. Clock and faults are those of the whole broker; they run again,
    and end, with `close`.

    Args:
        broker: the broker.
        title: part of the name of the virtual host, as the name of a test.

    Attributes:
        clock: the clock of the broker.
        faults: the faults of the broker.
        user: name of the user, and its password; it may do everything in this virtual host, and nothing elsewhere.
    """

    def __init__(self, broker: Broker, title: str = "test") -> None:
        number = next(_numbers)
        self._core = broker._core  # noqa: SLF001 - of the same package
        name = f"{_UNSAFE.sub('_', title)[:_TITLE_LENGTH]}-{number}"
        super().__init__(AsyncVHost(self._core, name), broker._call)  # noqa: SLF001 - of the same package
        self.user = f"user-{number}"
        self.clock = broker.clock
        self.faults = broker.faults
        self._broker = broker
        self._errors = _Errors()

    def open(self) -> Self:
        """Create the virtual host and its user; start the broker if the last user of it has stopped it."""
        if not self._core.is_running:
            self._broker.start()
        self._call(self._create)
        logging.getLogger("leveret").addHandler(self._errors)
        return self

    def close(self) -> None:
        """Disconnect the clients, and remove the virtual host with everything in it, unless the broker was stopped."""
        logging.getLogger("leveret").removeHandler(self._errors)
        if self._core.is_running:
            self._call(self._remove)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _create(self) -> None:
        server = self._core.server
        administration = server.administration
        administration.vhosts.put(None, self.vhost)
        administration.users.put(None, self.user, tags=("management",), password=self.user)
        administration.users.set_permissions(
            None, self.vhost, self.user, configure=".*", write=".*", read=".*"
        )
        server.loop.run_turn()
        await server.stored()

    async def _remove(self) -> None:
        server = self._core.server
        await self._target.forget_published()
        self._core.faults.clear_in_loop()
        self._core.clock.resume()
        if self.vhost in server.vhosts:  # a restart of a broker in memory has removed it
            server.administration.vhosts.delete(None, self.vhost)
            server.administration.users.delete(None, self.user)
        server.loop.run_turn()
        await server.loop.finish_jobs()

    async def _queues(self) -> list[tuple[str, int, int, int]]:
        listed = self._core.server.administration.listings.queues(None, self.vhost)
        return [(each.name, each.ready_count, each.unacked_count, each.consumer_count) for each in listed]

    @property
    def url(self) -> str:
        """URL for clients with the user of this virtual host. Raises ClosedBrokerError."""
        return self._core.url_of(self.vhost, (self.user, self.user))

    def report(self) -> str:
        """Return the queues with their depths and last messages, and the errors that the broker has logged."""
        lines = [f"vhost {self.vhost} ({self.url})"]
        queues = self._call(self._queues)
        lines += ["queues:" if queues else "no queues"]
        for name, ready, unacked, consumers in queues:
            lines.append(f"  {name}: {ready} ready, {unacked} unacked, {consumers} consumers")
            lines[-1] += listed(self.queue(name).messages)
        if self._errors.lines:
            lines += ["errors:", *(f"  {line}" for line in self._errors.lines)]
        return "\n".join(lines)

"""The broker of a node that waits to lead: the definitions of its copy in memory, to be looked at (driver)."""

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from leveret.broker.administration.access import Cluster
from leveret.broker.config.config import Config
from leveret.broker.config.sections import EventsConfig, ExportConfig
from leveret.broker.server.server import Server


class WaitingBroker(Server):
    """A broker that is never started: it has no clients, no messages, and changes nothing.

    It may be made in any thread.

    Args:
        config: the configuration.
        rows: the rows of the definitions.
        cluster: the cluster.
        obstacle: returns the reason for which clients may not connect: where the leader is.
        former: one that this one replaces: what it knows of logins, listeners and certificates goes on.

    Raises what `Server.load_definitions` raises.
    """

    def __init__(
        self,
        config: Config,
        rows: Iterable[tuple[bytes, bytes]],
        cluster: Cluster,
        obstacle: Callable[[], str],
        former: "WaitingBroker | None" = None,
    ) -> None:
        self._obstacle = obstacle
        alone = msgspec.structs.replace(
            config,
            listeners=(),
            tls_listeners=(),
            export=ExportConfig(),
            events=EventsConfig(),
            definitions=Path(),  # so that an empty copy has no default user, either
        )
        super().__init__(alone)
        self.load_definitions(rows)
        self.config = config
        self.cluster = cluster
        if former is not None:
            self._take_over(former)

    def _take_over(self, former: "WaitingBroker") -> None:
        self.loop.attach(former.loop.running)
        self.audit = former.audit
        self.login_throttle = former.login_throttle
        self.login_sources = former.login_sources
        self.http_logins = former.http_logins
        self.refusal_log = former.refusal_log
        self.listeners = former.listeners
        self.certificates = former.certificates

    @property
    def obstacle(self) -> str:
        """Reason why clients may not connect."""
        return self._obstacle()

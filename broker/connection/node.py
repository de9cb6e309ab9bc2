"""The interface through which connections use the server."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from leveret.broker.auth.login_throttle import LoginSources, LoginThrottle
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import Decision, Rights
from leveret.broker.auth.users import BackendUser, LoginRefusedError, Users
from leveret.broker.channel.channel import Channel
from leveret.broker.channel.settings import Compatibility, Limits
from leveret.broker.connection.connection_tracking import ConnectionTracking
from leveret.broker.connection.publish_limits import Buckets, PublishLimits
from leveret.broker.process.audit_log import AuditLog
from leveret.broker.process.log_limit import LogLimit
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.scheduling.turn import Turn
from leveret.broker.tls.options import CertificateLogin
from leveret.broker.vhost.object_limits import ObjectLimits
from leveret.broker.vhost.vhost import VHost


class CommitNotifier(Protocol):
    """Calls back when declarations are on disk (`storage.journal.journal.Journal`)."""

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back after the commit of everything journaled so far: True, or False if the disk was full.

        At once if nothing is pending. Otherwise in the event loop, and the caller of the callback runs a turn
        afterwards.
        """

    def when_all_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back also after the bodies that are being written to files of their own."""


class Backends(Protocol):
    """The backends of authentication and authorisation (`broker.auth.backends.access_control.AccessControl`).

    All of them answer later: `done` is called in a step of the loop, and never before the call returns.
    """

    def log_in(
        self,
        name: str,
        password: Password | None,
        peer: str,
        done: Callable[[BackendUser | LoginRefusedError], object],
    ) -> None:
        """Authenticate a user; without a password, one whom a certificate or the configuration has authenticated."""

    def renew(
        self,
        user: BackendUser,
        password: Password,
        peer: str,
        done: Callable[[BackendUser | LoginRefusedError], object],
    ) -> None:
        """Authenticate a user again, by a new secret."""

    def ask_vhost(self, user: BackendUser, vhost: str, peer: str, done: Callable[[Decision], object]) -> None:
        """Ask whether a user may open connections to a vhost."""

    @property
    def counts(self) -> Mapping[str, tuple[Mapping[str, int], float]]:
        """The questions by outcome, and the seconds that they have taken, by the name of the backend."""

    def forget(self) -> None:
        """Forget all decisions."""

    async def close(self) -> None:
        """End all questions, and close the backends."""

    def rights(self, user: BackendUser, vhost: str, peer: str) -> Rights:
        """Return the rights of a user in a vhost, of which none is known yet."""


class Node(Protocol):
    """The part of the server that connections use: settings, users, vhosts and the shared work list."""

    channel_class: Callable[[int, Any], Channel]
    turn: Turn
    context: NodeContext
    time_source: TimeSource
    users: Users
    backends: Backends | None
    """The backends that decide about logins; None if the internal database alone does."""
    clients: ConnectionTracking
    vhosts: dict[str, VHost]
    mechanisms: tuple[str, ...]
    anonymous_user: str
    """Name of the user of clients without credentials, if ANONYMOUS is among the mechanisms."""
    certificate_login: CertificateLogin
    handshake_timeout: float
    auth_failure_delay: float
    initial_frame_max: int
    frame_max: int
    channel_max: int
    heartbeat: int
    consumer_timeout: int
    """Default of the time in ms that a delivery may stay unacked; 0 for no limit."""
    confirm_timeout: float
    """Time in seconds until an unconfirmed publish is nacked; 0 for no limit."""
    object_limits: ObjectLimits
    limits: Limits
    compatibility: Compatibility
    alarm: str
    """Reason why publishers are blocked, in RabbitMQ's words ("low on memory"); empty if they are not."""
    blocked: set[Any]
    """The connections that are blocked."""
    publish_limits: PublishLimits
    """Limits of each connection."""
    publish_buckets: Buckets
    """Limits that connections share."""
    audit: AuditLog
    audited_objects: str
    """Objects whose changes by clients are recorded: durable, all or none."""
    login_throttle: LoginThrottle
    login_sources: LoginSources
    refusal_log: LogLimit
    error_log: LogLimit

    @property
    def start_frame(self) -> bytes:
        """The first frame that a client receives."""

    @property
    def secure_start_frame(self) -> bytes:
        """The first frame that a client with TLS receives, which offers EXTERNAL, too, if that is enabled."""

    @property
    def is_metadata_full(self) -> bool:
        """True if the disk is full and as many changes of metadata wait for it as may."""

    @property
    def journal(self) -> CommitNotifier:
        """The journal of what must be on disk before clients get a reply."""

    def now(self) -> float:
        """Return seconds of a monotonic clock."""

    def deadline(self, connection: Any, seconds: float) -> None:
        """Set the connection's deadline to that many seconds from now."""

    def wake(self, connection: Any, seconds: float) -> None:
        """Schedule the connection's `tick` that many seconds from now."""

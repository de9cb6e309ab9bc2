"""The interface through which connections use the server."""

from collections.abc import Callable
from typing import Any, Protocol

from leveret.broker.auth.login_throttle import LoginThrottle, RefusalLog
from leveret.broker.auth.users import Users
from leveret.broker.channel.channel import Channel
from leveret.broker.connection.connection_tracking import ConnectionTracking
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.scheduling.turn import Turn
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


class Node(Protocol):
    """The part of the server that connections use: settings, users, vhosts and the shared work list."""

    channel_class: Callable[[int, Any], Channel]
    turn: Turn
    context: NodeContext
    time_source: TimeSource
    users: Users
    clients: ConnectionTracking
    vhosts: dict[str, VHost]
    start_frame: bytes
    mechanisms: tuple[str, ...]
    handshake_timeout: float
    auth_failure_delay: float
    initial_frame_max: int
    frame_min: int
    frame_max: int
    channel_max: int
    heartbeat: int
    max_message_size: int
    consumer_max: int | None
    consumer_timeout: int
    """Default of the time in ms that a delivery may stay unacked; 0 for no limit."""
    confirm_timeout: float
    """Time in seconds until an unconfirmed publish is nacked; 0 for no limit."""
    object_limits: ObjectLimits
    topic_max_hash: int
    cc_keys: int
    global_qos: bool
    transient_denied: bool
    passive_is_open: bool
    """True if passive declarations need no permission."""
    alarm: str
    """Reason why publishers are blocked, in RabbitMQ's words ("low on memory"); empty if they are not."""
    blocked: set[Any]
    """The connections that are blocked."""
    login_throttle: LoginThrottle
    refusal_log: RefusalLog

    @property
    def is_metadata_full(self) -> bool:
        """True if the disk is full and as many changes of metadata wait for it as may."""

    @property
    def journal(self) -> CommitNotifier:
        """The journal of what must be on disk before clients get a reply."""

    def deadline(self, connection: Any, seconds: float) -> None:
        """Set the connection's deadline to that many seconds from now."""

    def wake(self, connection: Any, seconds: float) -> None:
        """Schedule the connection's `tick` that many seconds from now."""

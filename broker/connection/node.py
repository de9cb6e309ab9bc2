"""The interface through which connections use the server."""

from collections.abc import Callable
from typing import Any, Protocol

from leveret.broker.auth.login_throttle import Guard, Refusals
from leveret.broker.auth.users import Users
from leveret.broker.connection.connection_tracking import ConnectionTracking
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.object_limits import ObjectLimits
from leveret.broker.vhost.vhost import VHost


class Journal(Protocol):
    """Calls back when what was declared is on disk (`storage.journal.journal.Journal`)."""

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back after the commit of everything journaled so far: True, or False if the disk was full.

        At once if nothing is pending. Otherwise in the loop, and whoever does it runs a turn afterwards.
        """

    def when_all_safe(self, callback: Callable[[bool], object]) -> None:
        """Do so after the bodies, too, that are being written to files of their own."""


class Node(Protocol):
    """What connections need of the server: settings, users, vhosts and the work list they share."""

    turn: Turn
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
    """How many ms a delivery may stay unacked where nothing else is said; 0 for ever."""
    confirm_timeout: float
    """How many seconds a publish may be without a verdict; 0 for ever."""
    object_limits: ObjectLimits
    topic_max_hash: int
    cc_keys: int
    global_qos: bool
    transient_denied: bool
    passive_is_open: bool
    """Whether passive declarations need no permission."""
    alarm: str
    """Why publishers are to be blocked, in RabbitMQ's words ("low on memory"); empty if they are not."""
    blocked: set[Any]
    """The connections that are."""
    guard: Guard
    refusals: Refusals

    @property
    def journal(self) -> Journal:
        """Has what must be on disk before clients are told."""

    def now(self) -> float:
        """Seconds of a monotonic clock."""

    def deadline(self, connection: Any, seconds: float) -> None:
        """Set the connection's deadline that many seconds from now."""

    def wake(self, connection: Any, seconds: float) -> None:
        """Have the connection look at its clock that many seconds from now."""

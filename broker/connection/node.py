"""The node: what connections share of their broker. `broker.server.server.Server` is one, and gives it its parts."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from leveret import __version__
from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Connection as Wire, make
from leveret.broker.amqp.sasl import ANONYMOUS, EXTERNAL, mechanisms
from leveret.broker.amqp.tables import typed
from leveret.broker.auth.login_throttle import Logins
from leveret.broker.auth.users import Users
from leveret.broker.channel.channel import Channel
from leveret.broker.config.sections import Config
from leveret.broker.connection.connection_tracking import ConnectionTracking
from leveret.broker.connection.publish_limits import Buckets, PublishLimits
from leveret.broker.process.audit_log import AuditLog
from leveret.broker.process.shares import LogLimit
from leveret.broker.scheduling.loop import Loop
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.time_source import TimeSource
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.object_limits import ObjectLimits
from leveret.broker.vhost.vhost import VHost

if TYPE_CHECKING:
    from leveret.broker.auth.backends.access_control import AccessControl

HELD_OCTETS = 1024 * 1024  # bytes of incomplete publishes that a connection may hold while memory is short


def server_properties(cluster_name: str, version: str) -> dict[str, object]:
    """Return the server properties that `connection.start` sends; `version` is that of a RabbitMQ."""
    return {
        "capabilities": {
            "publisher_confirms": True,
            "exchange_exchange_bindings": True,
            "basic.nack": True,
            "consumer_cancel_notify": True,
            "connection.blocked": True,
            "consumer_priorities": True,
            "authentication_failure_close": True,
            "per_consumer_qos": True,
            "direct_reply_to": True,
        },
        "cluster_name": cluster_name,
        "copyright": "Copyright (c) the Leveret authors",
        "information": "Licensed under the Apache License 2.0",
        "platform": "Python",
        "product": "RabbitMQ",
        "version": version,
        "leveret_version": __version__,
    }


class CommitNotifier(Protocol):
    """Calls back when declarations are on disk (`storage.journal.journal.Journal`)."""

    def when_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back after the commit of everything journaled so far: True, or False if the disk was full.

        At once if nothing is pending. Otherwise in the event loop, and the caller of the callback runs a turn
        afterwards.
        """

    def when_all_safe(self, callback: Callable[[bool], object]) -> None:
        """Call back also after the bodies that are being written to files of their own."""


class Node:
    """Settings, users, vhosts, limits and the shared work list."""

    channel_class: Callable[[int, Any], Channel] = Channel
    config: Config  # the configuration; the settings of clients are read from it
    loop: Loop
    # turn, context, time_source: those of the loop; read for each read from a socket
    turn: Turn
    context: NodeContext
    time_source: TimeSource
    users: Users
    backends: "AccessControl | None"  # decide about logins; None if the internal database alone does
    clients: ConnectionTracking
    vhosts: dict[str, VHost]
    object_limits: ObjectLimits
    alarm: str  # reason why publishers are blocked, in RabbitMQ's words ("low on memory"); '' if they are not
    blocked: set[Any]  # the connections that are blocked
    publish_limits: PublishLimits  # limits of each connection
    publish_buckets: Buckets  # limits that connections share
    audit: AuditLog
    logins: Logins
    error_log: LogLimit
    journal: CommitNotifier  # what must be on disk before clients get a reply
    is_open: bool  # true once clients may connect
    is_stopping: bool  # true once no more sockets are let in
    _start_frames: tuple[str | None, bytes, bytes] = None, b"", b""
    """The name of the cluster, and the first frames with it, without and with TLS."""

    @property
    def is_metadata_full(self) -> bool:
        """True if the disk is full and as many changes of metadata wait for it as may."""
        return False

    def wait_for_disk(
        self,
        callback: Callable[[], object],
        *,
        publishes: bool = True,
        declares: bool = False,
        is_light: bool = False,
    ) -> bool:
        """Return whether a connection must wait because of the backlog of the disk; if so it is called back.

        Connections that write nothing wait only while a commit is held, because any method may defer queues; so do, on
        a full disk, those that only declare: they may have consumers, which free space. A light publisher may exceed
        the limit for others.
        """
        del callback, publishes, declares, is_light
        return False

    @property
    def obstacle(self) -> str:
        """Reason why clients may not connect; '' if they may."""
        if self.is_stopping:
            return "the broker is stopping"
        return "" if self.is_open else "the broker is starting"

    @property
    def cluster_name(self) -> str:
        """The name of the cluster, which clients see."""
        return ""

    @property
    def start_frame(self) -> bytes:
        """The first frame that a client receives."""
        return self._named_start_frames()[1]

    @property
    def secure_start_frame(self) -> bytes:
        """The first frame that a client with TLS receives, which offers EXTERNAL, too, if that is enabled."""
        return self._named_start_frames()[2]

    def _named_start_frames(self) -> tuple[str | None, bytes, bytes]:
        name = self.cluster_name
        if self._start_frames[0] != name:
            properties = typed(server_properties(name, self.config.compatibility.version))
            plain, secure = (
                encode_method(
                    0,
                    make(
                        Wire.Start, 0, 9, properties, mechanisms(self.config.auth_mechanisms, more), "en_US"
                    ),
                )
                for more in ((ANONYMOUS,), (ANONYMOUS, EXTERNAL))
            )
            self._start_frames = name, plain, secure
        return self._start_frames

    def set_alarm(self, reason: str) -> None:
        """Block connections that publish from now on, for this reason; with an empty one, unblock all."""
        self.alarm = reason
        if not reason:
            blocked, self.blocked = self.blocked, set()
            for connection in blocked:
                connection.unblock()

    def free_memory(self, octets: int) -> None:
        """Close connections with incomplete publishes, the largest first, until that many bytes are freed."""
        for held, connection in self.clients.with_unfinished(HELD_OCTETS):
            if octets <= 0:
                break
            connection.close_for_memory(held)
            octets -= held

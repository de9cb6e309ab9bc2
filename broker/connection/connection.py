"""The server side of one connection: handles what it receives, and its closing. No socket and no clock.

Theory. The states are in `broker.connection.state`. `enter` replaces `_scan` with each change: the handshake's, the
open connection's (`broker.connection.receive_loop`), `_scan_closing` once the broker has sent `connection.close`,
`_discard` after the end. However a connection ends, `_release` gives back everything it holds exactly once.
"""
# ruff: noqa: C901, PLR0912 - one case after the other, as the specification has them
# ruff: noqa: PLR2004 - offsets and numbers of the format are named beside them

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leveret.broker.amqp.codec import decode_method, encode_method, method_ids
from leveret.broker.amqp.commands import Basic, Channel as ChannelMethods, Connection as Wire, make
from leveret.broker.amqp.errors import MalformedMethod, MethodTooLarge, UnknownMethod
from leveret.broker.amqp.fastpath import FRAME_END, FRAME_OVERHEAD, HEARTBEAT, TYPE_METHOD, unpack_frame
from leveret.broker.auth.login_throttle import shown
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import Decision, Question, Rights
from leveret.broker.auth.users import BackendUser, LoginRefusedError, User
from leveret.broker.channel.channel import Channel
from leveret.broker.connection.handshake import Handshake
from leveret.broker.connection.node import Node
from leveret.broker.connection.pending_reply import ConnectionDriver, PendingReply
from leveret.broker.connection.publish_limits import PublishPace, publish_limits
from leveret.broker.connection.receive_loop import ReceiveLoop, malformed
from leveret.broker.connection.state import CLOSED, CLOSING, HANDSHAKE, LOST, OPEN, OPENING, STATES
from leveret.broker.connection.topology_audit import TopologyAudit
from leveret.broker.counters.totals import ChannelCounts, ConnectionCounts, added
from leveret.broker.errors import (
    AMQPError,
    FrameError,
    NotYet,
    ReplyCode,
    Subscribe,
    UnansweredError,
    no_disk_space,
    not_allowed,
    precondition_failed,
)
from leveret.broker.methods import HANDLERS
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import INTERNAL
from leveret.broker.scheduling.outbox import Outbox
from leveret.broker.vhost.vhost import VHost

if TYPE_CHECKING:
    from leveret.broker.tls.certificate import Peer

log = logging.getLogger("leveret.connection")
channel_log = logging.getLogger("leveret.channel")

CLOSE_TIMEOUT = 30.0  # maximum wait for close-ok, in seconds
FATAL_DELAY = 3.0  # seconds until a socket with broken framing is dropped (RabbitMQ's SILENT_CLOSE_DELAY)

SILENT_TICKS = 4  # half intervals without input until a client is disconnected: two to three intervals
SILENT_TICKS_UNREAD = 8  # half intervals while the client is not read, as in an alarm; RabbitMQ waits forever

EXPIRED = "credential expired"
"""Reason of the end of a connection whose token has expired; RabbitMQ's words where it ends one for that."""
TOPOLOGY_CLASSES = (40, 50)  # exchange and queue: the classes of methods that write metadata
TOOK_EFFECT = "the change took effect, and will be stored when there is space again"
_CLOSE = (10 << 16 | 50).to_bytes(4, "big")
_CLOSE_OK = (10 << 16 | 51).to_bytes(4, "big")


class _ClosedDriver:
    """The driver of a connection that has ended: it does nothing."""

    reading = False
    unsent = 0

    def is_heard(self) -> bool:
        return False

    def _ignore(self, *_: object) -> None:
        pass

    flush = admitted = close = pause_reading = resume_reading = process_buffered = limit_reads = _ignore


_CLOSED_DRIVER = _ClosedDriver()


def _discard(data: bytes, at: int) -> int:
    del at
    return len(data)


class Connection(ReceiveLoop):
    """One AMQP connection; `peer` and `local` are the client's address and ours, `now` is of a monotonic clock."""

    __slots__ = (
        "_deadline",
        "_has_waited",
        "_is_tracked",
        "_last_input_at",
        "_silent_ticks",
        "_tick_due",
        "auth_mechanism",
        "bucket",
        "capabilities",
        "channel_max",
        "channels_gone",
        "client_properties",
        "close_reason",
        "compatibility",
        "connected_at",
        "driver",
        "exclusive_queues",
        "frame_max",
        "heartbeat",
        "is_own",
        "limits",
        "local",
        "notifies_cancel",
        "octets_in",
        "octets_out",
        "outbox",
        "pace",
        "paused_at",
        "peer",
        "reads",
        "sent",
        "tls",
    )

    def __init__(
        self, node: Node, driver: ConnectionDriver, peer: tuple[str, int], local: tuple[str, int], now: float
    ) -> None:
        super().__init__(node, f"{peer[0]}:{peer[1]} -> {local[0]}:{local[1]}")
        # per process
        self.limits = node.config.limits
        self.compatibility = node.config.compatibility
        # per connection
        self.driver = driver
        self.peer = peer
        self.local = local
        self.outbox = Outbox(node.turn, driver)
        self.exclusive_queues: dict[str, Queue] = {}
        self.client_properties = b""
        self.auth_mechanism = ""
        self.is_own = False  # True for one of a shovel of this broker, which says itself what is wrong
        self.tls: Peer | None = None  # facts about its TLS; None without
        self.connected_at = 0  # time at which it was opened, milliseconds since the epoch
        self.capabilities: frozenset[str] = frozenset()
        self.notifies_cancel = False
        self.frame_max = 0
        self.channel_max = 0
        self.heartbeat = 0
        self.close_reason = ""
        self.paused_at = float("-inf")
        """Time at which it was last paused for flow control; infinite while it waits for the disk."""
        self.pace: PublishPace | None = None  # the pace of its publishes; None until there is a limit
        self.sent = 0  # number of flushes so far that had something to send
        self.channels_gone = ChannelCounts()  # counters of its closed channels
        self.reads = 0
        self.octets_in = 0
        self.octets_out = 0
        self.bucket = -1  # position of this connection in the server's timer wheel; used only there
        self._silent_ticks = 0
        self._last_input_at = 0.0
        self._tick_due = 0.0
        self._has_waited = False  # True if the next method has waited for the queues deferred when it came
        self._is_tracked = False
        self._deadline: float | None = now + node.config.handshake_timeout
        self._scan = Handshake(self).scan

    def enter(self, state: str) -> None:
        """Change the state; further input is scanned accordingly."""
        self.state = state
        if state not in HANDSHAKE:
            self._scan = (
                self._scan_open if state == OPEN else self._scan_closing if state == CLOSING else _discard
            )

    def counts(self) -> ConnectionCounts:
        """Return the connection's counters, also after it was closed."""
        return ConnectionCounts(self.octets_in, self.octets_out, self.reads, self.sent)

    # -- methods ------------------------------------------------------------------------------------------------------

    def _method(self, number: int, data: bytes, at: int, end: int) -> None:
        """Execute any method but a publish or a plain ack."""
        if self.node.turn.run() and not self._has_waited:  # earlier input takes effect first
            self._resume_at = at
            self.stalled = self._has_waited = True
            return
        self._has_waited = False
        self._current = (0, 0)
        try:
            method = decode_method(data, at + 7, end - 1)
        except (UnknownMethod, MalformedMethod) as error:
            raise self._undecodable(number, error) from None
        self._current = method_ids(method)
        if number == 0:
            self._connection_method(method)
            return
        channel = self.channels.get(number)
        if channel is None:
            if isinstance(method, ChannelMethods.Open) and number not in self._closing_channels:
                self._open_channel(number)
            else:
                self._no_channel(number, type(method))
            return
        if channel.missing:
            self._unexpected_frame(channel)
        handler = HANDLERS.get(type(method))
        if handler is not None:
            changes_topology = self._current[0] in TOPOLOGY_CLASSES
            if changes_topology and self.node.is_metadata_full:
                self.not_stored(
                    number, *self._current, "declarations and deletions are refused until there is some"
                )
                return
            if end - at > self.node.object_limits.argument_octets:
                self.node.object_limits.check_arguments(method)
            audited = self._audited(channel, method) if changes_topology and self.node.audit.is_on else None
            try:
                self._execute(handler, channel, method, audited)
            except NotYet as wait:
                self._resume_at = at
                PendingReply(self, number, self._current).until(wait.subscribe)
            if changes_topology and self.pending_reply is None and self.node.turn.is_backlogged():
                # without a reply to wait for, nothing else would bound what the client has written
                self.stalled = self.has_declared = True
        elif isinstance(method, ChannelMethods.Close):
            channel.flush_confirms()
            self.run_in_slices(
                number, self._drop_channel(channel), encode_method(number, ChannelMethods.CloseOk())
            )
        elif isinstance(method, ChannelMethods.Open):
            raise AMQPError(ReplyCode.CHANNEL_ERROR, "second 'channel.open' seen")
        else:
            raise AMQPError(ReplyCode.COMMAND_INVALID, "unimplemented method")

    def _undecodable(self, number: int, error: UnknownMethod | MalformedMethod) -> AMQPError:
        """Return the error for a method of a channel that is unknown or cannot be decoded."""
        is_crash = isinstance(error, UnknownMethod) or not error.explanation
        if is_crash and self.compatibility.protocol_errors == "4.3":
            return UnansweredError(str(error))
        if isinstance(error, UnknownMethod):
            text = "unimplemented method"
            return AMQPError(ReplyCode.COMMAND_INVALID, text, error.class_id, error.method_id)
        if number == 0 and error.class_id and not isinstance(error, MethodTooLarge):
            return AMQPError(ReplyCode.INTERNAL_ERROR)
        return malformed(error, has_channel=number in self.channels)

    def _execute(
        self,
        handler: Callable[[Channel, Any], object],
        channel: Channel,
        method: Any,
        audited: TopologyAudit | None,
    ) -> None:
        context = self.node.context
        context.actor = self.user.name
        try:
            handler(channel, method)
        finally:
            context.actor = INTERNAL
        if audited is not None:
            audited.executed(self.user.name, self.peer[0])

    def _audited(self, channel: Channel, method: Any) -> TopologyAudit | None:
        objects = self.node.config.audit.objects
        if objects == "none" or self.is_trusted:
            return None
        return TopologyAudit(self.node.audit, objects, channel, method)

    def reply_when_safe(
        self, number: int, reply: bytes, *, files: bool = False, after: Subscribe | None = None
    ) -> None:
        """Send frames of a channel after the commit; see `ChannelHost.reply_when_safe`."""
        journal = self.node.journal
        safe = journal.when_all_safe if files else journal.when_safe
        pending = PendingReply(self, number, self._current, reply)
        pending.until(safe if after is None else lambda settled: after(lambda: safe(settled)))

    def not_stored(self, number: int, class_id: int, method_id: int, effect: str = TOOK_EFFECT) -> None:
        """Report a full disk; `effect` says what that means for the method."""
        channel = self.channels.get(number)
        if channel is not None:
            self._close_channel(channel, no_disk_space(effect), class_id, method_id)

    def _open_channel(self, number: int) -> None:
        opened = len(self.channels)
        self._current = (0, 0)
        if self.channel_max and opened >= self.channel_max:
            text = f"number of channels opened ({opened}) has reached the negotiated channel_max ({self.channel_max})"
            raise not_allowed(text)
        self.node.clients.check_channel_limits(self.user)
        self.channels[number] = self.node.channel_class(number, self)
        self.node.clients.channel_opened(self.user)
        self.node.context.tell("channel_created", self.vhost.name, self.name, self, number)
        self.outbox.send(encode_method(number, make(ChannelMethods.OpenOk, "")))

    def _no_channel(self, number: int, method: type) -> None:
        """Handle a method on a channel that is not open: ignored while close-ok is awaited, else an error."""
        if number in self._closing_channels:
            if method is ChannelMethods.CloseOk:
                self._closing_channels.discard(number)
            elif method is ChannelMethods.Close:  # crossed with the broker's own close
                self.outbox.send(encode_method(number, ChannelMethods.CloseOk()))
            return
        if number == 0:
            raise AMQPError(ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running")
        raise AMQPError(ReplyCode.CHANNEL_ERROR, "expected 'channel.open'")

    def _connection_method(self, method: Any) -> None:
        if type(method) not in STATES[self.state].accepts:
            raise AMQPError(ReplyCode.CHANNEL_ERROR, "unexpected method in connection state running")
        if isinstance(method, Wire.Close):
            self.close_reason = method.reply_text or "closed by the client"
            self.enter(CLOSED)
            self._release(partial(self._send_last, encode_method(0, Wire.CloseOk())))
        elif self.rights is not None:
            self._update_secret(self.rights, method)
        else:  # passwords never expire, unlike OAuth secrets; RabbitMQ's internal backend accepts any
            self.outbox.send(encode_method(0, Wire.UpdateSecretOk()))

    def _update_secret(self, rights: Rights, method: Any) -> None:
        """Log the user in again by a new secret, whose rights hold from now on."""
        backends, user = self.node.backends, rights.user
        assert backends is not None  # noqa: S101 - they have let the user in
        pending = PendingReply(self, 0, self._current)

        def answered(found: BackendUser | LoginRefusedError) -> None:
            if self.pending_reply is not pending:
                return
            pending.end()
            if isinstance(found, LoginRefusedError):
                self._log_error(
                    log, "connection %s: new secret of user '%s' refused: %s", self.name, user.name, found
                )
                self._current = method_ids(method)
                self._fail(not_allowed("New secret was refused by one of the backends"))
                return
            log.info(
                "connection %s: user '%s' updated secret, reason: %s", self.name, user.name, method.reason
            )
            self.user = found
            rights.renew(found)
            self.forget_routes()
            self.outbox.send(encode_method(0, Wire.UpdateSecretOk()))
            self._review(rights)

        secret = Password(method.new_secret)
        pending.until(lambda _settled: backends.renew(user, secret, self.peer[0], answered))

    def _review(self, rights: Rights) -> None:
        """Ask the backends again about everything that is in use, and revoke what the user may no longer do."""
        backends, vhost, peer = self.node.backends, self.vhost.name, self.peer[0]
        assert backends is not None  # noqa: S101 - they have let the user in
        user, refused = rights.user, dict[str, Decision]()
        names = iter(
            dict.fromkeys(
                consumer.queue.name
                for channel in self.channels.values()
                for consumer in channel.consumers.values()
                if consumer is not channel.reply_consumer
            )
        )

        def following() -> None:
            if self.state != OPEN or rights.user is not user:
                return  # closed, or under review again
            name = next(names, None)
            if name is None:
                self.node.turn.slices.add(self._revoked(refused), f"rights of connection {self.name}")
            else:
                rights.fetch(Question("read", "queue", name), partial(decided, name))

        def decided(name: str, decision: Decision) -> None:
            if not decision.is_allowed:
                refused[name] = decision
            following()

        def admitted(access: Decision) -> None:
            if self.state == OPEN and not access.is_allowed:
                self.force_close(f"access to vhost '{vhost}' refused for user '{user.name}'{access.fault}")
            following()

        backends.ask_vhost(user, vhost, peer, admitted)

    def _check_rights(self, rights: Rights) -> None:
        if rights.expire():
            self.forget_routes()
        if self.state == OPEN and rights.user.is_over(self.node.time_source.wall()):
            log.warning(
                "closing connection %s: the credentials of user '%s' have expired", self.name, self.user.name
            )
            self.force_close(EXPIRED)

    # -- closing ----------------------------------------------------------------------------------------------------

    def _fail(self, error: AMQPError) -> None:
        """Convert an error into a Close; the only place where that happens."""
        if self.state == CLOSED:
            return
        if error.code is ReplyCode.ACCESS_REFUSED and self.state == OPEN and not self.is_trusted:
            self.node.audit.record_repeatable(
                "access",
                self.node.time_source.now(),
                outcome="refused",
                actor=self.user.name,
                peer=self.peer[0],
                vhost=self.vhost.name,
                reason=error.explanation,
            )
        class_id, method_id = (error.class_id, error.method_id) if error.class_id else self._current
        if isinstance(error, FrameError) or (
            error.code is ReplyCode.INTERNAL_ERROR and not error.explanation
        ):
            class_id = method_id = 0
        self._current = (0, 0)
        # a soft error closes the channel of the frame that ended at `_resume_at`
        channel = None if error.is_hard else self.channels.get(self._number)
        if channel is None:
            self.refuse(error, class_id, method_id)
        else:
            self._close_channel(channel, error, class_id, method_id)

    def _close_channel(self, channel: Channel, error: AMQPError, class_id: int, method_id: int) -> None:
        """Send `channel.close`; further input on that channel is ignored until close-ok."""
        text = "error on connection %s, channel %d: %s"
        self._log_error(channel_log, text, self.name, channel.number, error.reply_text)
        self.node.turn.run()
        channel.flush_confirms()
        self.channels.pop(channel.number, None)
        self._closing_channels.add(channel.number)
        close = make(ChannelMethods.Close, int(error.code), error.reply_text, class_id, method_id)
        self.outbox.send(encode_method(channel.number, close))
        steps = self._cleanup(self._drop_channel(channel))
        if self.pending_reply is None:
            self.run_in_slices(channel.number, steps)
        else:
            self.pending_reply.channel_closed(channel.number)
            next(steps, None)  # its consumers get no more deliveries, however late the next step runs
            self.node.turn.slices.add(steps, f"close of a channel of connection {self.name}")

    def _log_error(self, logger: logging.Logger, text: str, *values: object) -> None:
        """Log an error of the client, unless its user has made too many from its address within a second."""
        if self.is_own:
            logger.debug(text, *values)
            return
        who = "somebody" if self.state in HANDSHAKE else f"user '{shown(self.user.name)}'"
        if self.node.error_log.admit(f"{who} from {self.peer[0]}", self.node.time_source.now()):
            logger.error(text, *values)

    def refuse(self, error: AMQPError, class_id: int, method_id: int) -> None:
        """Send `connection.close` and wait for close-ok."""
        self._log_error(log, "error on connection %s: %s", self.name, error.reply_text)
        self.close_reason = error.reply_text
        if self.blocked:  # or its close-ok would not be read
            self.blocked = False
            self.node.blocked.discard(self)
            self.driver.resume_reading()
        if self.pending_reply is not None:  # for the same reason
            self.pending_reply.end()
        close = b""
        if not isinstance(error, UnansweredError):
            close = encode_method(0, make(Wire.Close, int(error.code), error.reply_text, class_id, method_id))
        if isinstance(error, FrameError):
            self.enter(CLOSED)
            self._release(partial(self._send_fatal_close, close))
        else:
            self.enter(CLOSING)
            self._release(partial(self._send_last, close))

    def _send_last(self, frame: bytes) -> None:
        """Send `connection.close`, or close-ok: the client answers, or closes the socket (spec 1.4.2.5), in time."""
        # RabbitMQ waits as long. Clients such as lapin treat an end of file that arrives together with close-ok as an
        # error.
        self.outbox.send(frame)
        seconds = min(float(self.heartbeat) or CLOSE_TIMEOUT, CLOSE_TIMEOUT)
        self.set_deadline(self.node.time_source.now() + seconds)
        self.node.loop.wake(self, seconds)

    def _send_fatal_close(self, close: bytes) -> None:
        """Send `connection.close` to a client whose framing is broken; it cannot answer."""
        self.outbox.send(close)
        self.end(FATAL_DELAY)

    def _scan_closing(self, data: bytes, at: int) -> int:
        """Scan for close-ok and close after `connection.close` was sent; everything else is ignored."""
        size, at = len(data), self._skip_frame(data, at)
        while size - at >= 7:
            kind, number, length = unpack_frame(data, at)
            end = at + length + FRAME_OVERHEAD
            if length > self.frame_limit or (end <= size and data[end - 1] != FRAME_END):
                self.end(0.0)
                return size
            if end > size:
                break
            if kind == TYPE_METHOD and number == 0 and length >= 4:
                if data[at + 7 : at + 11] == _CLOSE:
                    self.outbox.send(encode_method(0, Wire.CloseOk()))
                elif data[at + 7 : at + 11] == _CLOSE_OK:
                    self.end(0.0)
                    return size
            at = end
        return at

    def run_in_slices(self, number: int, steps: Iterator[None], reply: bytes = b"") -> None:
        """Run the steps of a method of that channel, executing nothing else before; then send the reply."""
        slices = self.node.turn.slices
        for _ in steps:
            if slices.is_over():
                pending = PendingReply(self, number, self._current, reply)
                pending.until(
                    lambda settled: slices.add(
                        self._remaining_steps(steps, settled), f"method of connection {self.name}"
                    )
                )
                return
        if reply:
            self.outbox.send(reply)

    def _remaining_steps(self, steps: Iterator[None], settled: Callable[[], object]) -> Iterator[None]:
        """Run the remaining steps of a method, then release the wait; errors are handled as in `receive`."""
        try:
            yield from steps
        except Exception as error:
            if not isinstance(error, AMQPError):  # a bug in the broker
                log.exception("internal error on connection %s", self.name)
                error = AMQPError(ReplyCode.INTERNAL_ERROR)
            if self.state == OPEN:  # or it is being closed already
                self._fail(error.with_traceback(None))
        settled()

    def _drop_channel(self, channel: Channel) -> Iterator[None]:
        self.channels.pop(channel.number, None)
        self.forget_routes()
        channel.missing = 0
        channel.parts = []
        try:
            yield from channel.closing()
        finally:
            self.node.clients.channel_closed(self.user, channel)
            self.node.context.tell("channel_closed", self.vhost.name, self.name, self, channel.number)
            self.channels_gone = added(self.channels_gone, channel.counts())

    def _cleanup(self, steps: Iterator[None]) -> Iterator[None]:
        """Run cleanup steps to the end: a bug in one of them must not keep the following ones from running."""
        try:
            yield from steps
        except Exception:
            log.exception(
                "internal error on connection %s: some of its resources were not released", self.name
            )

    def _release(self, after: Callable[[], object] | None = None) -> None:
        """Close all channels and delete exclusive queues: nothing of the connection stays in its vhost. Idempotent."""
        # If there are many, this takes several steps. `after` is called after the last one unless the socket has
        # closed by then, and nothing is read before: if the client closed first, the last reply would be lost.
        turn = self.node.turn
        turn.run()
        if after is None:
            turn.slices.add(self._release_steps(None), f"cleanup of connection {self.name}")
        else:
            for channel in self.channels.values():
                channel.flush_confirms()
            self.run_in_slices(0, self._release_steps(after))
        turn.run()

    def _release_steps(self, after: Callable[[], object] | None) -> Iterator[None]:
        while self.channels:
            yield from self._cleanup(self._drop_channel(next(iter(self.channels.values()))))
            yield
        self._closing_channels.clear()
        queues = list(self.exclusive_queues.values())
        self.exclusive_queues.clear()
        if queues:  # a refused connection has no vhost
            yield from self._cleanup(self.vhost.delete_queues(queues))
        if self.state == LOST:
            if self._is_tracked:
                self._is_tracked = False
                self.node.clients.connection_closed(self)
        elif after is not None:
            after()

    def end(self, delay: float) -> None:
        """Stop reading; the socket is closed once the outbox is written and `delay` seconds have passed."""
        self.enter(CLOSED)
        self.driver.close(delay)

    def force_close(self, reason: str) -> None:
        """Close with 320 CONNECTION_FORCED, as for a shutdown or by an administrator."""
        if self.state == OPEN:
            self._current = (0, 0)
            self._fail(AMQPError(ReplyCode.CONNECTION_FORCED, reason))
        elif self.state in HANDSHAKE or self.state == CLOSED:
            self.end(0.0)

    def close_for_memory(self, octets: int) -> None:
        """Close with 506 RESOURCE_ERROR, because memory is short and the connection buffers that many bytes."""
        if self.state == OPEN:
            self._current = (0, 0)
            text = f"low on memory: incomplete publishes of this connection use {octets} bytes"
            self._fail(AMQPError(ReplyCode.RESOURCE_ERROR, text))

    @property
    def unfinished(self) -> int:
        """Number of bytes buffered for incomplete publishes."""
        return sum([channel.unfinished for channel in self.channels.values()])

    def enforce_rights(self) -> Iterator[None]:
        """Return a job (`time_slices`) that revokes what the user may no longer do after a change of permissions.

        Without access to the vhost the connection is closed. Consumers of queues that may no longer be read are
        cancelled; if the client does not support that, their channel is closed. Later requests are checked when they
        arrive.
        """
        if self.state != OPEN or self.is_trusted:
            return
        if self.rights is not None:
            if self.rights.is_local:
                self.rights.forget()
                self._review(self.rights)
            return
        self._refresh()
        name, vhost = self.user.name, self.vhost.name
        if not self.node.users.may_access(name, vhost):
            self.force_close(f"access to vhost '{vhost}' refused for user '{name}'")
            return
        yield from self._revoked(None)

    def _revoked(self, refused: Mapping[str, Decision] | None) -> Iterator[None]:
        """Return a job that cancels consumers of queues that may no longer be read; `refused`: by backends."""
        cancelled, name = 0, self.user.name
        for channel in list(self.channels.values()):
            yield
            for consumer in list(channel.consumers.values()):
                refusal = channel.consume_refusal(consumer, refused)
                if refusal is not None:
                    cancelled += 1
                    if not self.notifies_cancel:
                        self._close_channel(channel, refusal, 0, 0)
                        break
                    channel.cancel(consumer)
                    channel.send(Basic.Cancel(consumer.tag, True))
                yield
        if cancelled:
            text = "connection %s: cancelled %d consumers of queues that user '%s' may no longer read"
            log.warning(text, self.name, cancelled, name)

    def lost(self) -> None:
        """Handle the loss of the socket. Idempotent."""
        if self.state != LOST:
            self.enter(LOST)
            self.pending_reply = None
            self.node.blocked.discard(self)
            self.outbox.full = self.outbox.transport_full = True  # no more deliveries
            if self._is_tracked:
                self._release()
            else:
                self.node.context.tell("connection_closed", "", self.name, self)
            self._chunks.clear()
            self._open_frame = None
            self.forget_routes()
            self._demands.clear()
            self._heads.clear()
            # break all cycles: the garbage collector would free them late, because it runs rarely to avoid pauses
            self.published_to = ()  # may include queues that have this connection as their owner
            self.driver = _CLOSED_DRIVER
            self.outbox.detach(_CLOSED_DRIVER)

    # -- the handshake's side ---------------------------------------------------------------------------------------

    def tuned(self, heartbeat: int) -> None:
        """Wait for `connection.open`; from now on the client expects heartbeats, however long backends take then."""
        self.heartbeat = heartbeat
        self.enter(OPENING)
        if heartbeat and self._deadline is not None:
            left = max(0.0, self._deadline - self.node.time_source.now())
            self.node.loop.wake(self, min(heartbeat / 2, left))

    def opened(self, user: User, vhost: VHost) -> None:
        """Complete the handshake."""
        self.user = user
        self.vhost = vhost
        if isinstance(user, BackendUser):
            assert self.node.backends is not None  # noqa: S101 - they have let the user in
            self.rights = self.node.backends.rights(user, vhost.name, self.peer[0])
            self.permissions, self.topic_permissions = self.rights.permissions, self.rights.topics
        self.notifies_cancel = "consumer_cancel_notify" in self.capabilities
        self.enter(OPEN)
        self._deadline = None
        self._is_tracked = True
        self.node.clients.connection_opened(self)
        self.driver.admitted()
        if self.heartbeat:
            self.node.loop.wake(self, self.heartbeat / 2)

    @property
    def consumes(self) -> bool:
        """True if it has consumers, or deliveries to settle."""
        return any(channel.consumers or channel.unacked for channel in self.channels.values())

    # -- publish limits -----------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        has_new_limits = self._seen_users != self.node.users.generation and not self.is_trusted
        super()._refresh()
        if has_new_limits:
            self._set_pace()

    def refresh_limits(self) -> None:
        """Take over limits that have changed while the connection is not read."""
        if self.state == OPEN and self._seen_users != self.node.users.generation:
            self._refresh()

    @property
    def published_count(self) -> int:
        """Number of messages that were published so far."""
        return self.channels_gone.published + sum([channel.published for channel in self.channels.values()])

    def _set_pace(self) -> None:
        node, user, vhost = self.node, self.user.name, self.vhost.name
        of_user = publish_limits(node.users.user_limits(user))
        of_vhost = publish_limits(node.users.vhost_limits(vhost))
        if self.pace is None:
            if not (node.publish_limits or of_user or of_vhost):
                return
            self.pace = PublishPace(self.published_count, self.octets_in)
        now, buckets = node.loop.now(), node.publish_buckets
        shared = {
            f"user '{user}'": buckets.of("user", user, of_user, now),
            f"vhost '{vhost}'": buckets.of("vhost", vhost, of_vhost, now),
        }
        self.pace.limit(node.publish_limits, shared, now)
        self.driver.limit_reads(self.pace)

    def tell_pace(self) -> None:
        """Tell the client that it is read slowly, or that this is over, by RabbitMQ's extension."""
        pace = self.pace
        if pace is None or self.state != OPEN:
            return
        if pace.is_told:
            log.info(
                "connection %s: publishes faster than the limit of %s", self.name, " and ".join(pace.names)
            )
        if "connection.blocked" in self.capabilities and not self.blocked:
            reason = f"publish limit of {' and '.join(pace.names)}"
            method = make(Wire.Blocked, reason[:255]) if pace.is_told else Wire.Unblocked()
            self.outbox.send(encode_method(0, method))
            self.driver.flush()

    # -- alarms -----------------------------------------------------------------------------------------------------

    def _block(self, reason: str) -> None:
        """Stop reading a connection that has published while a resource is short, and tell the client."""
        if self.blocked or self.state != OPEN:
            return
        self.blocked = True
        self._needed = 0  # the buffered input may be complete
        self.node.blocked.add(self)
        if "connection.blocked" in self.capabilities:
            self.outbox.send(encode_method(0, make(Wire.Blocked, reason)))
        self.driver.pause_reading()

    def unblock(self) -> None:
        """Resume reading once the resource alarm has cleared."""
        if self.blocked:
            self.blocked = False
            self.received = True  # what arrived meanwhile has not been read
            if self.state == OPEN:
                if "connection.blocked" in self.capabilities:
                    self.outbox.send(encode_method(0, Wire.Unblocked()))
                self.driver.process_buffered()  # including what was read together with the publish that blocked it

    # -- time -------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> float | None:
        """Do what is due; returns the time of the next call (monotonic seconds), or None for never.

        A heartbeat is due at each half interval from tune-ok on, whatever else was sent: clients such as Netty's time
        out after one interval without input, and a tick cannot tell whether the last output is half an interval old.
        """
        if self.state == LOST:
            return None
        deadline = self._deadline
        if deadline is not None and now < deadline:
            if self.state == OPENING and self.heartbeat:
                self.outbox.send(HEARTBEAT)
                deadline = min(deadline, now + self.heartbeat / 2)
            return deadline
        if deadline is not None:
            if self.state in HANDSHAKE and self.node.logins.refusal_log.admit(self.peer[0], now):
                log.warning("closing connection %s: handshake_timeout", self.name)
            self.end(0.0)
            return None
        if not self.heartbeat:
            return None
        if self.received or (not self.driver.reading and self.driver.is_heard()):
            self.received = False
            self._silent_ticks = 0
            self._last_input_at = now
        else:
            self._silent_ticks += 1
        due = self._last_input_at + 2 * self.heartbeat  # spec 4.2.7; its bytes may have come before that tick
        is_silent = self._silent_ticks >= (SILENT_TICKS if self.driver.reading else SILENT_TICKS_UNREAD)
        if is_silent and now >= due:
            log.warning(
                "closing connection %s: missed heartbeats from client, timeout: %ds",
                self.name,
                self.heartbeat,
            )
            self.close_reason = "missed heartbeats"
            self._release()
            self.end(0.0)
            return None
        self.outbox.send(HEARTBEAT)
        half = self.heartbeat / 2
        following = self._tick_due + half  # from when it was due, or lateness would accumulate
        self._tick_due = due if is_silent else following if following > now else now + half
        return self._tick_due

    def close_overdue(self, now: float) -> None:
        """Close channels with an overdue delivery, or cancel its consumer, and nack overdue publishes, every second."""
        if self.rights is not None:
            self._check_rights(self.rights)
        if self.pending_reply is not None:  # a channel's reply may be on its way
            return
        confirm_timeout = self.node.config.confirm_timeout
        for channel in list(self.channels.values()):
            if confirm_timeout:
                channel.nack_overdue(now, confirm_timeout)
            late = channel.overdue(now, round(self.node.config.consumer_timeout * 1000))
            if late and self.compatibility.consumer_timeout == "closes-channel":
                self._timed_out(channel, *late[0])
            elif late:
                self._cancel_timed_out(channel, late)

    def _cancel_timed_out(self, channel: Channel, late: list[tuple[int, int]]) -> None:
        firsts = {channel.unacked[tag][0]: (tag, timeout) for tag, timeout in reversed(late)}
        cancelled = channel.cancel_overdue(tag for tag, _ in late)
        for consumer in cancelled:
            channel_log.warning(
                "%r on channel %d has timed out waiting for an acknowledgement of delivery tag %d, sent more than %d "
                "ms ago: sent basic.cancel, and requeued its late messages; it gets none before it has settled these",
                consumer,
                channel.number,
                *firsts[consumer],
            )
        if not cancelled:
            tag, timeout = late[0]
            # RabbitMQ 4.3 does not know the timeout there.
            self._timed_out(channel, tag, -1 if self.compatibility.consumer_timeout == "4.3" else timeout)

    def _timed_out(self, channel: Channel, delivery_tag: int, timeout: int) -> None:
        channel_log.warning(
            "%r on channel %d has timed out waiting for an acknowledgement of delivery tag %d",
            channel.unacked[delivery_tag][0],
            channel.number,
            delivery_tag,
        )
        text = (
            f"delivery acknowledgement on channel {channel.number} timed out. Timeout value used: {timeout} ms. "
            "This timeout value can be configured, see consumers doc guide to learn more"
        )
        self._close_channel(channel, precondition_failed(text), 0, 0)

    def set_deadline(self, at: float) -> None:
        """End the connection at that time unless its state changes before."""
        self._deadline = at

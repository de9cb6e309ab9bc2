"""The handshake: from the protocol header to `connection.open-ok`, safe against any input.

Theory. The states, and what each accepts, are in `broker.connection.state`. Before `open` frames are limited to
`initial_frame_max` octets and all input together to a small total. A client that fails gets as little information as
from RabbitMQ: bad credentials get 403 if it announced `authentication_failure_close`, tune and open errors get their
530, everything else gets no reply and, after a delay, a closed socket, so that guessing is slow. The delay occupies one
of the places for clients that have not logged in, even if the client disconnects, and grows with its failures
(`broker.auth.login_throttle`); no other client is delayed.
"""
# ruff: noqa: C901, PLR0911 - one case after the other, as the specification has them

# ruff: noqa: S101 - asserts tell the type checker what always holds; no input is checked by them

import logging
from collections.abc import Callable
from typing import Any

from leveret.broker.amqp.codec import decode_method, encode_method, frame_text, method_ids
from leveret.broker.amqp.commands import Connection as Wire
from leveret.broker.amqp.errors import MalformedResponse, UnknownMechanism, WireError
from leveret.broker.amqp.fastpath import FRAME_END, FRAME_OVERHEAD, TYPE_HEARTBEAT, TYPE_METHOD, unpack_frame
from leveret.broker.amqp.sasl import ANONYMOUS, EXTERNAL, read_response
from leveret.broker.amqp.tables import Table, encode_table
from leveret.broker.auth.login_throttle import shown
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.permissions import ALLOWED, Decision
from leveret.broker.auth.users import BackendUser, LoginRefusedError, User
from leveret.broker.connection.pending_reply import ClientConnection, PendingReply
from leveret.broker.connection.state import HANDSHAKE, HEADER, OPEN, STARTING, STATES, TUNING
from leveret.broker.errors import AMQPError, ReplyCode, not_allowed
from leveret.broker.tls.certificate import CertificateError, Peer, login_name
from leveret.broker.tls.options import CertificateLogin
from leveret.broker.vhost.vhost import VHost

log = logging.getLogger("leveret.connection")

PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
_HEADER_4 = b"AMQP\x03\x01\x00\x00"
"""That of AMQP 1.0 with SASL, which is not spoken here: the answer of RabbitMQ 4.3 to unknown headers."""
_HEADERS = (PROTOCOL_HEADER, b"AMQP\x01\x01\x00\x09", b"AMQP\x01\x01\x09\x01")
_TOTAL_LIMIT = 65536
_HTTP = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT")
_TLS_RECORD = b"\x16\x03"  # how a handshake of TLS begins


def certificate_user(peer: Peer, login: CertificateLogin) -> str:
    """Return the name of the user whose certificate a client has presented; the user need not exist.

    Raises LoginRefusedError with RabbitMQ's texts: no certificate, none from a CA of the configuration, or no such
    name.
    """
    if not peer.is_verified:
        raise LoginRefusedError("TLS configuration is unsafe: ssl_options.verify must be verify_peer")
    if not peer.der:
        raise LoginRefusedError("connection peer presented no TLS (x.509) certificate")
    try:
        name = login_name(peer.der, login)
    except CertificateError as error:
        raise LoginRefusedError(f"the certificate cannot be read: {error}") from None
    if not name:
        raise LoginRefusedError(f"no name found: the certificate has no {login.source.replace('_', ' ')}")
    return name


class Handshake:
    """The handshake of one connection."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._node = connection.node
        self._total = 0
        self._user: User | None = None

    def scan(self, data: bytes, at: int) -> int:
        """Process input; returns how far it was consumed. Passes the rest to the connection once that is open."""
        connection = self._connection
        if connection.state == HEADER:
            header = data[at : at + len(PROTOCOL_HEADER)]
            if len(header) < len(PROTOCOL_HEADER) and PROTOCOL_HEADER[:4].startswith(header[:4]):
                return at
            if header not in _HEADERS:
                return self._wrong_header(data)
            connection.enter(STARTING)
            node = self._node
            connection.outbox.send(node.start_frame if connection.tls is None else node.secure_start_frame)
            at += len(PROTOCOL_HEADER)
        size = len(data)
        while (
            connection.state in HANDSHAKE and size - at >= FRAME_OVERHEAD and connection.pending_reply is None
        ):
            kind, number, length = unpack_frame(data, at)
            end = at + length + FRAME_OVERHEAD
            if length > self._node.config.initial_frame_max:
                return self._close_silently(size, f"frame of {length} bytes before connection.open")
            if end > size:
                return at
            self._total += end - at
            if self._total > _TOTAL_LIMIT or data[end - 1] != FRAME_END:
                return self._close_silently(size, "malformed frames before connection.open")
            if kind != TYPE_HEARTBEAT or number:
                if number and STATES[connection.state].reports_errors:
                    release = self._node.config.compatibility.protocol_errors
                    text = frame_text(kind, data[at + 7 : end - 1], release)
                    connection.refuse(AMQPError(ReplyCode.UNEXPECTED_FRAME, text), 0, 0)
                    return size
                if kind != TYPE_METHOD or number:
                    return self._close_silently(size, "unexpected frame before connection.open")
                self._method(data, at + 7, end - 1)
            at = end
        return at if connection.state in HANDSHAKE or connection.state == OPEN else size

    def _method(self, data: bytes, at: int, end: int) -> None:
        state = STATES[self._connection.state]
        try:
            method: Any = decode_method(data, at, end)
        except WireError as error:
            # without its text, which may quote a payload with a password in it
            self._close_silently(0, f"{type(error).__name__} before connection.open")
            return
        ids = method_ids(method)
        if type(method) not in state.accepts:
            if state.reports_errors:
                text = "unexpected method in connection state opening"
                self._connection.refuse(AMQPError(ReplyCode.CHANNEL_ERROR, text), *ids)
            else:
                self._close_silently(0, f"unexpected {method.name} before connection.open")
            return
        if isinstance(method, Wire.StartOk):
            self._start_ok(method)
            return
        try:
            if isinstance(method, Wire.TuneOk):
                self._tune_ok(method)
            else:
                self._open(method)
        except AMQPError as error:
            if state.reports_errors:
                self._connection.refuse(error, *ids)
            else:
                self._close_silently(0, f"failed to negotiate connection parameters: {error.explanation}")

    def _wait(self, ask: Callable[[Callable[[Any], object]], object], then: Callable[[Any], object]) -> None:
        """Read nothing more until backends have answered; nothing happens then if the client has left."""
        connection = self._connection
        pending = PendingReply(connection, 0, (0, 0))

        def answered(answer: Any) -> None:
            if connection.pending_reply is pending:
                pending.end()
                then(answer)

        pending.until(lambda _settled: ask(answered))

    def _start_ok(self, method: Any) -> None:
        connection = self._connection
        properties: Table = method.client_properties
        capabilities = properties.get("capabilities", ("void", None))[1]
        if isinstance(capabilities, dict):
            connection.capabilities = frozenset(
                name for name, (kind, value) in capabilities.items() if kind == "bool" and value
            )
        connection.client_properties = encode_table(properties)
        try:
            name, password = self._credentials(method)
        except (UnknownMechanism, MalformedResponse) as error:
            self._close_silently(0, str(error))
            return
        except LoginRefusedError as error:
            self._login_failed(method.mechanism, "", error)
            return
        node, mechanism, address = self._node, method.mechanism, connection.peer[0]
        try:
            node.logins.throttle.check(address, name, node.time_source.now)
        except LoginRefusedError as error:
            self._login_failed(mechanism, name, error)
            return
        backends = node.backends
        if backends is not None:
            self._wait(
                lambda answered: backends.log_in(name, password, address, answered),
                lambda user: self._judged(mechanism, name, user),
            )
            return
        try:
            user: User | LoginRefusedError = node.users.authenticate(name, password, address)
        except LoginRefusedError as error:
            user = error
        self._judged(mechanism, name, user)

    def _judged(self, mechanism: str, name: str, user: User | LoginRefusedError) -> None:
        """Go on with a user who was let in, or refuse the login for the reason given instead."""
        connection, node = self._connection, self._node
        address = connection.peer[0]
        if isinstance(user, LoginRefusedError):
            self._login_failed(mechanism, name, user)
            return
        self._user = user
        node.logins.throttle.succeeded(address, name)
        node.audit.record("login", actor=name, peer=address, protocol="amqp", mechanism=mechanism)
        connection.auth_mechanism = mechanism
        node.context.tell("auth_succeeded", "", name, connection, mechanism)
        node.context.totals.auth_succeeded += 1
        node.logins.sources.count(address, name, "amqp091", ok=True)
        connection.enter(TUNING)
        connection.outbox.send(
            encode_method(0, Wire.Tune(node.config.channel_max, node.config.frame_max, node.config.heartbeat))
        )

    def _credentials(self, method: Any) -> tuple[str, Password | None]:
        """Return the user's name and password; raises as `read_response`, and LoginRefusedError."""
        if method.mechanism == ANONYMOUS and ANONYMOUS in self._node.config.auth_mechanisms:
            config = self._node.config
            return config.anonymous_user, Password(config.anonymous_pass) if config.anonymous_pass else None
        if method.mechanism != EXTERNAL:
            return read_response(method.mechanism, method.response, self._node.config.auth_mechanisms)
        tls = self._connection.tls
        if tls is None or EXTERNAL not in self._node.config.auth_mechanisms:
            raise UnknownMechanism(f"invalid authentication mechanism '{EXTERNAL}'")
        from leveret.broker.connection.handshake import certificate_user  # noqa: PLC0415 - only if it is used

        return certificate_user(tls, self._node.config.certificate_login), None

    def _login_failed(self, mechanism: str, name: str, error: LoginRefusedError) -> None:
        node, address = self._node, self._connection.peer[0]
        delay = node.config.auth_failure_delay * node.logins.throttle.failed(
            address, name, node.time_source.now()
        )
        node.context.totals.auth_failed += 1
        node.logins.sources.count(address, name, "amqp091", ok=False)
        reason = str(error).replace(name, shown(name)) if name else str(error)
        subject = self._connection, mechanism, reason
        node.context.note("auth_failed", "", shown(name), *subject, peer=address, mechanism=mechanism)
        node.audit.record(
            "login",
            outcome="refused",
            actor=name,
            peer=address,
            reason=reason,
            protocol="amqp",
            mechanism=mechanism,
        )
        self._refuse_login(mechanism, reason, delay)

    def _refuse_login(self, mechanism: str, reason: str, delay: float) -> None:
        """Reply 403 if the client supports that, else nothing; the socket is closed after a delay either way."""
        connection = self._connection
        self._log("connection %s: %s login refused: %s", mechanism, reason)
        if "authentication_failure_close" in connection.capabilities:
            text = (
                f"Login was refused using authentication mechanism {mechanism}. "
                "For details see the broker logfile."
            )
            error = AMQPError(ReplyCode.ACCESS_REFUSED, text)
            close = Wire.Close(int(error.code), error.reply_text, 0, 0)
            connection.outbox.send(encode_method(0, close))
        connection.end(delay)

    def _tune_ok(self, method: Any) -> None:
        node, connection = self._node, self._connection
        least = node.config.compatibility.frame_min
        if 0 < method.frame_max < least:
            raise not_allowed(
                f"negotiated frame_max = {method.frame_max} is lower than the minimum allowed value ({least})"
            )
        for name, asked, limit in (
            ("frame_max", method.frame_max, node.config.frame_max),
            ("channel_max", method.channel_max, node.config.channel_max),
        ):
            if limit and (asked == 0 or asked > limit):
                shown = "0 (no limit)" if asked == 0 else str(asked)
                raise not_allowed(
                    f"negotiated {name} = {shown} is higher than the maximum allowed value ({limit})"
                )
        connection.frame_max = method.frame_max
        connection.frame_limit = method.frame_max or 1 << 31
        connection.channel_max = method.channel_max
        connection.tuned(method.heartbeat)

    def _open(self, method: Any) -> None:
        node, user, name = self._node, self._user, method.virtual_host
        assert user is not None
        if not isinstance(user, BackendUser):
            self._opened(user, node.clients.admit(user, name))
            return
        node.clients.admit(user, name, ALLOWED)  # what needs no backend comes first
        backends, peer = node.backends, self._connection.peer[0]
        assert backends is not None

        def decided(access: Decision) -> None:
            try:
                self._opened(user, node.clients.admit(user, name, access))
            except AMQPError as error:
                self._connection.refuse(error, *method_ids(method))

        self._wait(lambda answered: backends.ask_vhost(user, name, peer, answered), decided)

    def _opened(self, user: User, vhost: VHost) -> None:
        self._connection.opened(user, vhost)
        self._connection.outbox.send(encode_method(0, Wire.OpenOk()))

    def _wrong_header(self, data: bytes) -> int:
        """Answer a header other than AMQP 0-9-1 with the supported one, and close (spec 2.2.4)."""
        connection = self._connection
        if data[:2] == _TLS_RECORD:
            self._log(
                "closing connection %s: a client with TLS on a port without: let it use the port of TLS, or amqp://"
            )
        elif data[:8].partition(b" ")[0] in _HTTP:
            self._log(
                "closing connection %s: an HTTP client on the port of AMQP: the web page and the management API are on "
                "the port of management.tcp.port, 15672 by default"
            )
        else:
            self._log("closing connection %s: bad protocol header %r", data[:8])
        is_later = data[:6] == PROTOCOL_HEADER[:6] and data[6:7] >= b"\x09"
        answers = self._node.config.compatibility.protocol_errors
        is_known = is_later or data[:8] == _HEADER_4 or answers == "3.13"
        connection.outbox.send(PROTOCOL_HEADER if is_known else _HEADER_4)
        connection.end(0.0)
        return len(data)

    def _close_silently(self, at: int, reason: str) -> int:
        self._log("closing connection %s: handshake error: %s", reason)
        self._connection.end(self._node.config.auth_failure_delay)
        return at

    def _log(self, text: str, *values: object) -> None:
        connection = self._connection
        if self._node.logins.refusal_log.admit(connection.peer[0], self._node.time_source.now()):
            log.error(text, connection.name, *values)

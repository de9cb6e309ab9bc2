"""A small blocking AMQP 0-9-1 client for tests: it can send anything and shows what came back, frame by frame."""

import socket
import struct
import time
from collections import deque
from typing import Any

from conformance.codec import (
    BODY,
    BY_NAME,
    FRAME_END,
    HEADER,
    METHOD,
    PROTOCOL_HEADER,
    Message,
    decode_header,
    decode_method,
    encode_header,
    encode_method,
    frame,
)


class ClosedError(Exception):
    """The broker ended the channel, the connection, or the socket."""

    def __init__(self, level: str, client: "Client", close: Message | None = None) -> None:
        """`level` is "channel", "connection" or "socket"; `close` the method that said so."""
        super().__init__(f"{level} closed: {close.fields if close else 'without a method'}")
        self.level, self.client, self.close = level, client, close


class QuietError(Exception):
    """No frame came in time."""


ALL_CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}


class Client:
    """One TCP connection to a broker."""

    def __init__(
        self, address: tuple[str, int], timeout: float = 5.0, source: tuple[str, int] | None = None
    ) -> None:
        """Connect the socket only, from `source`; `timeout` seconds is the longest any wait takes."""
        self.timeout = timeout
        self.socket = socket.create_connection(address, timeout=timeout, source_address=source)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._inbox: deque[Message] = deque()
        self._content: dict[int, tuple[Message, int]] = {}
        self.tune: dict[str, Any] = {}
        self.start: dict[str, Any] = {}

    def close_socket(self) -> None:
        """Drop the connection without a word."""
        self.socket.close()

    # --- sending -----------------------------------------------------------------------------------------------------

    def raw(self, data: bytes) -> None:
        """Send octets as they are."""
        self.socket.sendall(data)

    def frame(self, kind: int, channel: int, payload: bytes, end: int = FRAME_END) -> None:
        """Send one frame."""
        self.raw(frame(kind, channel, payload, end))

    def send(self, channel: int, method: str, **fields: Any) -> None:
        """Send one method without waiting for anything."""
        self.frame(METHOD, channel, encode_method(method, **fields))

    def publish(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        body: bytes = b"",
        *,
        mandatory: bool = False,
        immediate: bool = False,
        **properties: Any,
    ) -> None:
        """Send a whole message in one write."""
        method = encode_method(
            "basic.publish",
            exchange=exchange,
            routing_key=routing_key,
            mandatory=mandatory,
            immediate=immediate,
        )
        room = self.tune.get("frame_max", 131072) - 8
        parts = [
            frame(METHOD, channel, method),
            frame(HEADER, channel, encode_header(len(body), **properties)),
        ]
        parts += [frame(BODY, channel, body[i : i + room]) for i in range(0, len(body), room)]
        self.raw(b"".join(parts))

    # --- receiving ---------------------------------------------------------------------------------------------------

    def read_octets(self, count: int, deadline: float) -> bytes:
        """Exactly `count` octets; ClosedError at the end of the stream, QuietError at the deadline."""
        while len(self._buffer) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise QuietError
            self.socket.settimeout(left)
            try:
                data = self.socket.recv(65536)
            except TimeoutError:
                raise QuietError from None
            except ConnectionError:
                data = b""
            finally:
                self.socket.settimeout(self.timeout)
            if not data:
                level = "socket"
                raise ClosedError(level, self)
            self._buffer += data
        result, self._buffer = self._buffer[:count], self._buffer[count:]
        return result

    def read_frame(self, timeout: float | None = None) -> tuple[int, int, bytes]:
        """The next frame: its type, channel and payload."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        kind, channel, size = struct.unpack(">BHI", self.read_octets(7, deadline))
        payload = self.read_octets(size + 1, deadline)
        assert payload[-1] == FRAME_END, "the broker sent a frame without its end octet"
        return kind, channel, payload[:-1]

    def read_rest(self, timeout: float | None = None) -> bytes:
        """Everything until the broker closes the socket; QuietError if it does not in time."""
        deadline = time.monotonic() + (self.timeout if timeout is None else timeout)
        out = b""
        try:
            while True:
                out += self.read_octets(1, deadline)
        except ClosedError:
            return out

    def _next(self, timeout: float | None) -> Message:
        """The next whole method (with its content) from the socket; heartbeats are skipped."""
        while True:
            kind, channel, payload = self.read_frame(timeout)
            if kind == METHOD:
                message = decode_method(channel, payload)
                if not BY_NAME[message.name].content:
                    return message
                self._content[channel] = (message, -1)
            elif kind == HEADER:
                message, _ = self._content[channel]
                size, message.properties = decode_header(payload)
                self._content[channel] = (message, size)
            elif kind == BODY:
                message, size = self._content[channel]
                message.body += payload
            else:
                continue
            message, size = self._content[channel]
            if size == len(message.body):
                del self._content[channel]
                return message

    def receive(self, channel: int | None = None, *names: str, timeout: float | None = None) -> Message:
        """The next method on `channel` (None: on any) with one of the names (none given: any).

        A close that was not asked for raises ClosedError; other methods wait in the inbox for a later call.
        """
        for message in self._inbox:
            if channel in {None, message.channel} and (not names or message.name in names):
                self._inbox.remove(message)
                return message
            if message.name == "channel.close" and channel == message.channel:
                self._inbox.remove(message)
                level = "channel"
                raise ClosedError(level, self, message)
        while True:
            message = self._next(timeout)
            if channel in {None, message.channel} and (not names or message.name in names):
                return message
            if message.name == "connection.close":
                level = "connection"
                raise ClosedError(level, self, message)
            if message.name == "channel.close" and channel in {None, message.channel}:
                level = "channel"
                raise ClosedError(level, self, message)
            self._inbox.append(message)

    def quiet(self, channel: int | None = None, *names: str, timeout: float = 0.15) -> bool:
        """Return whether nothing of that kind comes within `timeout` seconds."""
        try:
            self.receive(channel, *names, timeout=timeout)
        except QuietError:
            return True
        return False

    def call(self, channel: int, method: str, **fields: Any) -> Message:
        """Send a method and wait for its ``-ok`` (or ``get-empty``)."""
        self.send(channel, method, **fields)
        answers = {"basic.get": ("basic.get-ok", "basic.get-empty")}
        return self.receive(channel, *answers.get(method, (method + "-ok",)))

    # --- handshake ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Send the protocol header and read connection.start."""
        self.raw(PROTOCOL_HEADER)
        self.start = self.receive(0, "connection.start").fields

    def start_ok(
        self,
        user: str = "guest",
        password: str = "guest",
        *,
        mechanism: str = "PLAIN",
        response: bytes | None = None,
        capabilities: dict[str, bool] | None = None,
    ) -> None:
        """Send connection.start-ok with these credentials."""
        if response is None:
            response = b"\0" + user.encode() + b"\0" + password.encode()
        self.send(
            0,
            "connection.start-ok",
            client_properties={
                "product": "conformance",
                "capabilities": ALL_CAPABILITIES if capabilities is None else capabilities,
            },
            mechanism=mechanism,
            response=response,
            locale="en_US",
        )

    def tune_ok(self, **changes: int) -> None:
        """Read connection.tune and answer with the server's values, changed as given."""
        self.tune = self.receive(0, "connection.tune").fields
        self.tune = {**self.tune, "heartbeat": 0, **changes}
        self.send(0, "connection.tune-ok", **self.tune)

    def open(self, virtual_host: str = "/") -> None:
        """Open the virtual host."""
        self.call(0, "connection.open", virtual_host=virtual_host)

    def login(
        self,
        user: str = "guest",
        password: str = "guest",
        virtual_host: str = "/",
        capabilities: dict[str, bool] | None = None,
        **tune: int,
    ) -> "Client":
        """The whole handshake."""
        self.begin()
        self.start_ok(user, password, capabilities=capabilities)
        self.tune_ok(**tune)
        self.open(virtual_host)
        return self

    def channel(self, number: int = 1) -> "Channel":
        """Open a channel."""
        self.call(number, "channel.open")
        return Channel(self, number)


class Channel:
    """A channel of a client, so that scripts need not repeat its number."""

    def __init__(self, client: Client, number: int) -> None:
        """Speak on channel `number` of `client`, opened or not."""
        self.client, self.number = client, number

    def call(self, method: str, **fields: Any) -> Message:
        """Send a method and wait for its answer."""
        return self.client.call(self.number, method, **fields)

    def send(self, method: str, **fields: Any) -> None:
        """Send a method and wait for nothing."""
        self.client.send(self.number, method, **fields)

    def publish(self, exchange: str, routing_key: str, body: bytes = b"", **rest: Any) -> None:
        """Send a whole message."""
        self.client.publish(self.number, exchange, routing_key, body, **rest)

    def receive(self, *names: str, timeout: float | None = None) -> Message:
        """The next method on this channel with one of the names."""
        return self.client.receive(self.number, *names, timeout=timeout)

    def quiet(self, *names: str, timeout: float = 0.15) -> bool:
        """Return whether nothing of that kind comes."""
        return self.client.quiet(self.number, *names, timeout=timeout)

    def sync(self) -> None:
        """Wait until the broker has processed everything sent so far, by a question that needs no permission."""
        self.call("channel.flow", active=True)

    def queue(self, name: str = "", **fields: Any) -> str:
        """Declare a queue; its name."""
        return str(self.call("queue.declare", queue=name, **fields).queue)

    def exchange(self, name: str, kind: str = "direct", **fields: Any) -> str:
        """Declare an exchange; its name."""
        self.call("exchange.declare", exchange=name, type=kind, **fields)
        return name

    def ready(self, queue: str, expected: int = 0, *, within: float = 1) -> int:
        """Return the number of ready messages of a queue, asked passively.

        RabbitMQ answers this before it handles publishes it has just received: up to a second is given to reach
        `expected`, or `within` seconds. For what a message must not reach, use `drain`, which is answered in order.
        """
        deadline = time.monotonic() + within
        while True:
            count = int(self.call("queue.declare", queue=queue, passive=True).message_count)
            if count == expected or time.monotonic() > deadline:
                return count
            time.sleep(0.003)

    def put(self, key: str, *bodies: bytes, exchange: str = "", **properties: Any) -> list[str]:
        """Publish bodies, one by one, and wait until the queues have each: a second channel has them confirmed.

        The names of the answers, "basic.ack" or "basic.nack".
        """
        beside = self.client.channel(self.number + 1000)
        beside.call("confirm.select")
        answers = []
        for body in bodies:
            beside.publish(exchange, key, body, **properties)
            answers.append(beside.receive("basic.ack", "basic.nack").name)
        beside.call("channel.close", reply_code=200)
        return answers

    def lapse(self, milliseconds: int) -> None:
        """Wait until this time has passed by the broker's clock, which the expiry of a message shows."""
        name = self.queue(exclusive=True, arguments={"x-message-ttl": milliseconds})
        self.put(name, b"")
        while self.ready(name, within=10):
            pass

    def drain(self, queue: str) -> int:
        """Take all messages out of a queue; how many there were."""
        count = 0
        while self.get(queue) is not None:
            count += 1
        return count

    def get(self, queue: str, *, no_ack: bool = True) -> bytes | None:
        """The body of the next message, None when there is none."""
        message = self.call("basic.get", queue=queue, no_ack=no_ack)
        return message.body if message.name == "basic.get-ok" else None

    def consume(self, queue: str, tag: str = "ct", **fields: Any) -> str:
        """Start a consumer; its tag."""
        return str(self.call("basic.consume", queue=queue, consumer_tag=tag, **fields).consumer_tag)

    def deliver(self, timeout: float | None = None) -> Message:
        """The next delivery."""
        return self.receive("basic.deliver", timeout=timeout)

    def deliveries(self) -> int:
        """Return the number of deliveries until it is quiet."""
        self.sync()
        count = 0
        while not self.quiet("basic.deliver"):
            count += 1
        return count

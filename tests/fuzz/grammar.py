"""Sessions that are valid from the first octet to the last, made at random by a grammar.

A `Script` is what one client sends, frame by frame, and what it must get for it. It is open-loop: delivery tags and
message counts are worked out beforehand, from queues that only this session can reach. In a *loose* script some
phrases are not strict: they use names that all sessions share, so nothing can be said about the answers.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from conformance.codec import (
    BODY,
    HEADER,
    HEARTBEAT,
    METHOD,
    PROTOCOL_HEADER,
    SPECS,
    T,
    encode_header,
    encode_method,
    frame,
    table as encode_table,
)

USER, PASSWORD = "fuzzer", "fuzzer-secret"
STRICT_VHOST, LOOSE_VHOST = "strict", "loose"

SHARED_QUEUES = tuple(f"shared{i}" for i in range(8))
BUSY_QUEUES = tuple(f"busy{i}" for i in range(4))
"""Shared, too, and always declared alike: sessions publish to each other through them."""
SHARED_EXCHANGES = tuple(
    f"sx.{kind}{i}" for kind in ("direct", "fanout", "topic", "headers") for i in range(2)
)
CHOOSING = ("x-consistent-hash", "x-local-random", "x-modulus-hash", "x-random")
TYPES = ("direct", "fanout", "topic", "headers", "x-delayed-message", "x-recent-history", *CHOOSING)
KEYS_OF_TYPES = {"x-consistent-hash": "3", "x-local-random": ""}
"""Binding keys of the types that refuse others."""
PREDECLARED = ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match")
REPLY_TO = "amq.rabbitmq.reply-to"

EVERY_TYPE = {
    "bool": T("t", True),
    "byte": T("b", -7),
    "unsignedbyte": T("B", 200),
    "short": T("s", -300),
    "unsignedshort": T("u", 40000),
    "signedint": T("I", -70000),
    "unsignedint": T("i", 3000000000),
    "long": T("l", -(2**40)),
    "long-too": T("L", 2**40),
    "float": T("f", 1.5),
    "double": T("d", -2.25),
    "decimal": T("D", (2, 314)),
    "longstr": T("S", "text \N{SNOWMAN}"),
    "binary": T("x", b"\x00\xff\xce"),
    "array": T("A", [1, "two", T("F", {"three": 3}), T("A", [])]),
    "timestamp": T("T", 1700000000),
    "table": T("F", {"inside": T("F", {"deeper": T("V", None)})}),
    "void": T("V", None),
}
CAPABILITIES = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
QUEUE_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"x-max-length": 1000},
    {"x-max-length-bytes": T("l", 10_000_000), "x-overflow": "drop-head"},
    {"x-message-ttl": 3_600_000},
    {"x-expires": T("I", 3_600_000)},
    {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "nowhere"},
    {"x-max-priority": T("B", 5)},
    {"x-queue-type": "classic", "x-queue-mode": "lazy"},
    EVERY_TYPE,
)
# What arrives together is sorted by priority, so the order there depends on how a stream is cut; what a lazy queue has
# written by the time it comes back is read first, and whatever needs no disk overtakes it.
_IN_ORDER = tuple(
    arguments for arguments in QUEUE_ARGUMENTS if not {"x-max-priority", "x-queue-mode"} & arguments.keys()
)
HEADERS_MATCHES: tuple[dict[str, Any], ...] = (
    {},
    {"x-match": "all", "a": 1},
    {"x-match": "any", "a": 1, "b": T("V", None)},
    {"x-match": "all-with-x", "x-a": "1"},
    {"x-match": "any-with-x", "x-a": "1", "c": T("d", 2.0)},
)
TOPIC_KEYS = ("#", "*", "a.*.c", "a.#.c", "#.#", "..", "a.b.c.d.e.f.g", "", "*.*.#.x")
PROPERTIES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"delivery_mode": 2},
    {"content_type": "text/plain", "content_encoding": "utf-8", "delivery_mode": 1, "priority": 4},
    {"correlation_id": "c-1", "reply_to": "somewhere", "message_id": "m", "type": "t", "app_id": "fuzz"},
    {"expiration": "60000", "timestamp": 1700000000, "cluster_id": "c"},
    {"user_id": USER},
    {"headers": EVERY_TYPE},
    {"headers": {"CC": T("A", ["nowhere-cc"])}},
    {
        "headers": {"x-delay": T("d", -1.5), "BCC": T("A", ["nowhere"])},
        "delivery_mode": 2,
    },  # no delay: all comes in order
    {"headers": {"BCC": T("A", ["nowhere-bcc", "x"]), "a": 1}},
    {"headers": {"a": 1, "b": "two", "x-a": "1"}, "delivery_mode": 2, "priority": 255},
)

# What a client may send once its connection is open, for loose phrases: (name, answer or None).
CLIENT_METHODS = tuple(
    spec.name
    for spec in SPECS.values()
    if spec.name
    in {
        "channel.flow", "channel.flow-ok", "access.request",
        "exchange.declare", "exchange.delete", "exchange.bind", "exchange.unbind",
        "queue.declare", "queue.bind", "queue.unbind", "queue.purge", "queue.delete",
        "basic.qos", "basic.consume", "basic.cancel", "basic.get", "basic.ack", "basic.nack", "basic.reject",
        "basic.recover", "basic.recover-async", "basic.publish",
        "confirm.select", "tx.select", "tx.commit", "tx.rollback",
    }
)  # fmt: skip

# Weights: purging and deleting what is shared keeps the broker from filling up.
_LOOSE_METHODS = (
    *CLIENT_METHODS,
    *("queue.purge", "queue.delete", "exchange.delete") * 2,
    *("basic.publish",) * 3,
)


MOST_OCTETS = 80_000
"""Octets in all bodies of a valid session at most, each of which may be delivered three times.

Its script settles deliveries in the same write in which it causes them. A client may settle only what it has been sent,
and a broker holds deliveries back until it has written those before; ours, when 256 KiB of one step wait.
"""


class _Channel:
    __slots__ = ("number", "tag")

    def __init__(self, number: int) -> None:
        self.number = number
        self.tag = 0


class Script:
    """One session.

    Args:
        rng: all choices come from it.
        name: a name no other session has.
        loose: whether some phrases use shared names (then `expected` means nothing).

    """

    __slots__ = (
        "_channels",
        "_names",
        "_next_number",
        "_octets",
        "expected",
        "first_channel_frame",
        "frame_max",
        "frames",
        "loose",
        "name",
        "published",
        "rng",
    )

    def __init__(self, rng: Random, name: str, *, loose: bool) -> None:
        self.rng = rng
        self.name = name
        self.loose = loose
        self.frames: list[bytes] = []
        self.expected: dict[int, list[str]] = {}
        """Methods that must come, by channel, confirms left out."""
        self.published: dict[int, int] = {}
        """Number of confirms that must come, by channel in confirm mode."""
        self.frame_max = 131072
        self.first_channel_frame = 0
        """Index of the first frame after the handshake; it opens a channel."""
        self._channels: list[_Channel] = []
        self._names = 0
        self._octets = 0
        """Octets in the bodies of a valid session's publishes."""
        self._next_number = 1
        self._write()

    # -- building blocks --------------------------------------------------------------------------------------------

    def send(self, number: int, method: str, answer: str | None = None, **fields: Any) -> None:
        """One method, and what must come back."""
        self.frames.append(frame(METHOD, number, encode_method(method, **fields)))
        if answer:
            self.expect(number, answer)

    def expect(self, number: int, *methods: str) -> None:
        self.expected.setdefault(number, []).extend(methods)

    def either(self, number: int, method: str, **fields: Any) -> None:
        """One method with a `nowait`, which is set at random."""
        nowait = self.rng.random() < 0.4
        answer = None if nowait else method + "-ok"
        self.send(number, method, answer, nowait=nowait, **fields)

    def new_name(self) -> str:
        self._names += 1
        return f"{self.name}.{self._names}"

    def publish(self, number: int, exchange: str, routing_key: str, *, mandatory: bool = False) -> None:
        """A message of any shape."""
        rng = self.rng
        shape = rng.random()
        room = self.frame_max - 8
        if shape < 0.2:
            size = 0
        elif shape < 0.85:
            size = rng.randrange(1, 200)
        elif shape < 0.99:
            size = (
                rng.choice((room - 1, room, room + 1, 4088, 4089, 5000))
                if room < 10000
                else rng.choice((3000, 5000, 9000))
            )
        else:
            size = room + rng.randrange(3) - 1
        if not self.loose:
            if self._octets + size > MOST_OCTETS:
                size = 0
            self._octets += size
        body = self.name.encode().ljust(16, b".") * (size // 16 + 1)
        body = body[:size]
        self.send(number, "basic.publish", exchange=exchange, routing_key=routing_key, mandatory=mandatory)
        self.frames.append(frame(HEADER, number, encode_header(size, **rng.choice(PROPERTIES))))
        piece = room
        if size and rng.random() < 0.3:  # more frames than needed
            piece = min(room, rng.choice((1, 7, 50, 2000)) if size < 100 else max(50, size // 3))
        for at in range(0, size, piece):
            self.frames.append(frame(BODY, number, body[at : at + piece]))
        if number in self.published:
            self.published[number] += 1

    # -- the session ------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._handshake()
        self.first_channel_frame = len(self.frames)
        rng = self.rng
        for _ in range(1 if rng.random() < 0.7 else 2):
            self._open_channel()
        for _ in range(rng.randrange(2, 6)):
            if rng.random() < 0.05:
                self.frames.append(frame(HEARTBEAT, 0, b""))
            if self.loose and rng.random() < 0.4:
                if rng.random() < 0.4:
                    self._traffic(rng.choice(self._channels).number)
                else:
                    self._loose(rng.choice(self._channels).number)
            else:
                self._phrase()(rng.choice(self._channels))
        if rng.random() < 0.3:
            for channel in self._channels:
                self._close_channel(channel)
        if rng.random() < 0.7:
            self.send(0, "connection.close", "connection.close-ok", reply_code=200, reply_text="bye")

    def _handshake(self) -> None:
        rng = self.rng
        self.frames.append(PROTOCOL_HEADER)
        self.expect(0, "connection.start")
        properties: dict[str, Any] = {}
        if rng.random() < 0.8:
            properties = {"product": "fuzz", "capabilities": CAPABILITIES}
            if rng.random() < 0.2:
                properties["every"] = T("F", EVERY_TYPE)
        if rng.random() < 0.75:
            mechanism, response = "PLAIN", f"\0{USER}\0{PASSWORD}".encode()
        else:
            mechanism = "AMQPLAIN"
            response = encode_table({"LOGIN": USER, "PASSWORD": PASSWORD})[4:]
        self.send(
            0,
            "connection.start-ok",
            "connection.tune",
            client_properties=properties,
            mechanism=mechanism,
            response=response,
            locale="en_US",
        )
        self.frame_max = rng.choice((131072, 131072, 131072, 4096, 4096, 8192, 65536))
        self.send(
            0,
            "connection.tune-ok",
            channel_max=rng.choice((2047, 2047, 10, 1000)),
            frame_max=self.frame_max,
            heartbeat=rng.choice((0, 0, 60, 1, 65535)),
        )
        vhost = LOOSE_VHOST if self.loose else STRICT_VHOST
        self.send(0, "connection.open", "connection.open-ok", virtual_host=vhost)
        if rng.random() < 0.05:
            secret = {"new_secret": "s" * rng.randrange(100), "reason": "why not"}
            self.send(0, "connection.update-secret", "connection.update-secret-ok", **secret)

    def _open_channel(self) -> _Channel:
        number = self._next_number
        self._next_number += self.rng.choice((1, 1, 2)) if number < 5 else 1
        self.send(number, "channel.open", "channel.open-ok")
        channel = _Channel(number)
        self._channels.append(channel)
        return channel

    def _close_channel(self, channel: _Channel) -> None:
        close = {"reply_code": 200, "reply_text": "done"}
        self.send(channel.number, "channel.close", "channel.close-ok", **close)

    def _phrase(self) -> Callable[[_Channel], None]:
        return self.rng.choice(self._PHRASES).__get__(self)

    # -- strict phrases: each leaves the session such that any other may follow -----------------------------------------

    def _queue(self, number: int) -> str:
        """Declare a queue that goes with the connection; its name."""
        rng = self.rng
        name = self.new_name()
        self.either(
            number,
            "queue.declare",
            queue=name,
            exclusive=True,
            durable=rng.random() < 0.3,
            auto_delete=rng.random() < 0.1,
            arguments=rng.choice(QUEUE_ARGUMENTS if self.loose else _IN_ORDER),
        )
        return name

    def _filled(self, number: int, count: int) -> str:
        name = self._queue(number)
        for _ in range(count):
            self.publish(number, "", name)
        return name

    def _queue_life(self, channel: _Channel) -> None:
        rng, number = self.rng, channel.number
        name = self._filled(number, rng.randrange(3))
        self.send(number, "queue.declare", "queue.declare-ok", queue=name, passive=True)
        if rng.random() < 0.5:
            self.either(number, "queue.purge", queue=name if rng.random() < 0.7 else "")
            if rng.random() < 0.5:
                self.either(number, "queue.delete", queue=name, if_unused=True, if_empty=True)
                return
        if rng.random() < 0.5:
            self.either(number, "queue.delete", queue=name, if_unused=rng.random() < 0.5)
        elif rng.random() < 0.3:
            self.send(number, "queue.declare", "queue.declare-ok", exclusive=True)  # a name of the server's
            self.send(number, "queue.bind", "queue.bind-ok", exchange="amq.direct")
            self.send(number, "queue.unbind", "queue.unbind-ok", exchange="amq.direct")

    def _bind(self, channel: _Channel) -> None:
        rng, number = self.rng, channel.number
        name = self._queue(number)
        exchange = rng.choice(PREDECLARED)
        key = rng.choice(TOPIC_KEYS) if exchange == "amq.topic" else self.name
        arguments = rng.choice(HEADERS_MATCHES) if exchange in {"amq.headers", "amq.match"} else {}
        binding = {"queue": name, "exchange": exchange, "routing_key": key, "arguments": arguments}
        self.either(number, "queue.bind", **binding)
        for _ in range(rng.randrange(3)):
            self.publish(number, exchange, rng.choice((key, "a.b.c", "", "x" * 255)))
        if rng.random() < 0.6:
            self.send(number, "queue.unbind", "queue.unbind-ok", **binding)

    def _exchanges(self, channel: _Channel) -> None:
        """An exchange of each session's own, which goes with its last binding."""
        rng, number = self.rng, channel.number
        name, queue = self.new_name(), self._queue(number)
        kind = rng.choice(TYPES)
        declared = {
            "exchange": name,
            "type": kind,
            "durable": rng.random() < 0.3,
            "auto_delete": True,
            "internal": rng.random() < 0.1,
            "arguments": rng.choice(({}, {}, {"alternate-exchange": "amq.fanout"}, EVERY_TYPE)),
        }
        if kind == "x-delayed-message":
            behind = rng.choice(("direct", "fanout", "topic", *CHOOSING))
            declared["arguments"] = declared["arguments"] | {"x-delayed-type": behind}
        self.either(number, "exchange.declare", **declared)
        self.send(number, "exchange.declare", "exchange.declare-ok", **declared)
        self.send(number, "exchange.declare", "exchange.declare-ok", exchange=name, passive=True)
        arguments = rng.choice(HEADERS_MATCHES) if kind == "headers" else {}
        key = KEYS_OF_TYPES.get(declared["arguments"].get("x-delayed-type", kind), "key")
        self.either(number, "queue.bind", queue=queue, exchange=name, routing_key=key, arguments=arguments)
        if rng.random() < 0.6:
            binding = {"destination": name, "source": rng.choice(PREDECLARED), "routing_key": self.name}
            self.either(number, "exchange.bind", **binding)
            self.publish(number, binding["source"], self.name)
            self.either(number, "exchange.unbind", **binding)
        if not declared["internal"]:
            self.publish(number, name, rng.choice(("key", "none")))
        ends = rng.random()
        if ends < 0.4:
            self.either(number, "exchange.delete", exchange=name)
        elif ends < 0.7:
            where = {"queue": queue, "exchange": name, "routing_key": key, "arguments": arguments}
            self.send(number, "queue.unbind", "queue.unbind-ok", **where)

    def _get(self, channel: _Channel) -> None:
        rng, number = self.rng, channel.number
        count = rng.randrange(1, 4)
        name = self._filled(number, count)
        for left in range(count, 0, -1):
            if rng.random() < 0.3:
                self.send(number, "basic.get", "basic.get-ok", queue=name, no_ack=True)
                channel.tag += 1
            else:
                self.send(number, "basic.get", "basic.get-ok", queue=name)
                channel.tag += 1
                self._settle(channel, channel.tag)
                if left == 1:
                    return
        if rng.random() < 0.3:
            self.send(number, "queue.purge", "queue.purge-ok", queue=name)
            self.send(number, "basic.get", "basic.get-empty", queue=name)

    def _settle(self, channel: _Channel, tag: int) -> None:
        """Settle one delivery in any way that does not bring it back to a consumer."""
        rng, number = self.rng, channel.number
        way = rng.random()
        if way < 0.4:
            self.send(number, "basic.ack", delivery_tag=tag)
        elif way < 0.6:
            self.send(number, "basic.ack", delivery_tag=tag, multiple=True)
        elif way < 0.8:
            self.send(number, "basic.nack", delivery_tag=tag, multiple=rng.random() < 0.5, requeue=False)
        else:
            self.send(number, "basic.reject", delivery_tag=tag, requeue=False)

    def _consume(self, channel: _Channel) -> None:
        """Deliveries, some of which come again; the queue is the session's only one with a consumer."""
        rng, number = self.rng, channel.number
        count = rng.randrange(4)
        no_ack = rng.random() < 0.3
        name = self._filled(number, count)
        if rng.random() < 0.5:
            global_ = rng.random() < 0.3
            count_ = rng.choice((0, 50, 65535))
            self.send(number, "basic.qos", "basic.qos-ok", prefetch_count=count_, global_=global_)
        tag = self.new_name() + rng.choice(("", "", " \N{SNOWMAN}", "x" * 200))
        consume = {
            "queue": name,
            "consumer_tag": tag,
            "no_ack": no_ack,
            "exclusive": rng.random() < 0.3,
            "arguments": rng.choice(({}, {}, {"x-priority": rng.randrange(-5, 5)}, EVERY_TYPE)),
        }
        self.either(number, "basic.consume", **consume)
        self.expect(number, *["basic.deliver"] * count)
        for _ in range(rng.randrange(3)):
            self.publish(number, "", name)
            self.expect(number, "basic.deliver")
            count += 1
        # once this is answered, what came before it has been delivered
        self.send(number, "channel.flow", "channel.flow-ok", active=True)
        first, channel.tag = channel.tag + 1, channel.tag + count
        if no_ack or not count:
            self.either(number, "basic.cancel", consumer_tag=tag)
            return
        again = rng.random()
        if again < 0.2:  # all come again
            self.send(number, "basic.recover", "basic.recover-ok", requeue=True)
            self.expect(number, *["basic.deliver"] * count)
            self.send(number, "channel.flow", "channel.flow-ok", active=True)
            first, channel.tag = channel.tag + 1, channel.tag + count
        elif again < 0.3:
            self.expect(number, *["basic.deliver"] * count)
            self.send(number, "basic.recover-async", requeue=True)
            self.send(number, "channel.flow", "channel.flow-ok", active=True)
            first, channel.tag = channel.tag + 1, channel.tag + count
        way = rng.random()
        if way < 0.3:
            for delivery in range(first, channel.tag + 1):
                self._settle_alone(channel, delivery)
        elif way < 0.6:
            self.send(number, "basic.ack", delivery_tag=channel.tag, multiple=True)
        if rng.random() < 0.7:
            self.either(number, "basic.cancel", consumer_tag=tag)
            if way >= 0.6:
                self.send(number, "basic.nack", multiple=True, requeue=True)
        elif way >= 0.6:
            self.send(number, "basic.ack", multiple=True)

    def _settle_alone(self, channel: _Channel, tag: int) -> None:
        method = self.rng.choice(("basic.ack", "basic.nack", "basic.reject"))
        self.send(channel.number, method, delivery_tag=tag)

    def _mandatory(self, channel: _Channel) -> None:
        self.publish(channel.number, self.rng.choice(("", "amq.direct")), "nowhere", mandatory=True)
        self.expect(channel.number, "basic.return")

    def _confirms(self, channel: _Channel) -> None:
        del channel
        rng = self.rng
        number = self._open_channel().number
        self.either(number, "confirm.select")
        self.published[number] = 0
        name = self._queue(number)
        for _ in range(rng.randrange(1, 5)):
            kind = rng.random()
            if kind < 0.6:
                self.publish(number, "", name)
            elif kind < 0.8:
                self.publish(number, "amq.topic", "nowhere." + self.name)
            else:
                self._mandatory(self._channels[-1])
        self._leave(number)

    def _transactions(self, channel: _Channel) -> None:
        del channel
        rng = self.rng
        mine = self._open_channel()
        number = mine.number
        self.send(number, "tx.select", "tx.select-ok")
        name = self._queue(number)
        for _ in range(rng.randrange(1, 3)):
            count = rng.randrange(1, 3)
            for _ in range(count):
                self.publish(number, "", name)
            if rng.random() < 0.3:
                self.send(number, "tx.rollback", "tx.rollback-ok")
                continue
            if rng.random() < 0.3:
                self.publish(number, "", "nowhere", mandatory=True)
                self.expect(number, "basic.return")
            self.send(number, "tx.commit", "tx.commit-ok")
            self.send(number, "basic.get", "basic.get-ok", queue=name)
            mine.tag += 1
            self._settle(mine, mine.tag)
            ends = rng.choice(("tx.commit", "tx.commit", "tx.rollback"))
            self.send(number, ends, ends + "-ok")
            if ends == "tx.rollback":
                self.send(number, "basic.reject", delivery_tag=mine.tag, requeue=True)
                self.send(number, "tx.commit", "tx.commit-ok")
        self._leave(number)

    def _leave(self, number: int) -> None:
        """Other phrases count on a plain channel: the special one is closed or left alone."""
        channel = self._channels.pop()
        assert channel.number == number
        if self.rng.random() < 0.5:
            self._close_channel(channel)
        else:
            self.send(number, "access.request", "access.request-ok", realm="/data", active=True)

    def _small_talk(self, channel: _Channel) -> None:
        rng, number = self.rng, channel.number
        self.send(number, "access.request", "access.request-ok", realm="/data", read=True)
        self.send(number, "channel.flow", "channel.flow-ok", active=True)
        count = rng.choice((0, 10, 65535))
        self.send(number, "basic.qos", "basic.qos-ok", prefetch_count=count, global_=rng.random() < 0.3)
        self.send(number, "basic.recover", "basic.recover-ok", requeue=True)
        self.either(number, "basic.cancel", consumer_tag="never there")
        if rng.random() < 0.3:
            self._open_channel()

    def _mistakes(self, channel: _Channel) -> None:
        """A channel that the broker closes for a mistake every client may make, and opens again."""
        del channel
        rng = self.rng
        number = self._open_channel().number
        mistake = rng.randrange(5)
        if mistake == 0:
            self.send(number, "queue.declare", queue=self.new_name(), passive=True)
        elif mistake == 1:
            self.send(number, "exchange.declare", exchange=self.new_name(), passive=True)
        elif mistake == 2:
            self.publish(number, self.new_name(), "key")
        elif mistake == 3:
            self.send(number, "basic.ack", delivery_tag=rng.choice((1, 77, 2**63)))
        else:
            self.send(number, "queue.declare", queue="amq.reserved", nowait=True)
        self.expect(number, "channel.close")
        for _ in range(rng.randrange(3)):  # sent before the close was seen: ignored
            self.publish(number, "amq.direct", "key", mandatory=True)
        self.send(number, "channel.close-ok")
        self.send(number, "channel.open", "channel.open-ok")
        self._leave(number)

    def _replies(self, channel: _Channel) -> None:
        """Send requests by direct reply-to that get no answer."""
        number = channel.number
        tag = self.new_name()
        self.either(number, "basic.consume", queue=REPLY_TO, consumer_tag=tag, no_ack=True)
        name = self._queue(number)
        self.send(number, "basic.publish", routing_key=name)
        self.frames += [
            frame(HEADER, number, encode_header(4, reply_to=REPLY_TO, correlation_id="1")),
            frame(BODY, number, b"ping"),
        ]
        if number in self.published:
            self.published[number] += 1
        self.send(number, "basic.get", "basic.get-ok", queue=name, no_ack=True)
        channel.tag += 1
        self.send(number, "queue.declare", "queue.declare-ok", queue=REPLY_TO, passive=True)
        self.either(number, "basic.cancel", consumer_tag=tag)

    _PHRASES = (
        _queue_life,
        _bind,
        _exchanges,
        _get,
        _get,
        _consume,
        _consume,
        _consume,
        _mandatory,
        _confirms,
        _transactions,
        _small_talk,
        _mistakes,
        _replies,
    )

    # -- loose phrases ------------------------------------------------------------------------------------------------

    def _traffic(self, number: int) -> None:
        """Publish to others, take from others, and settle by guess."""
        rng = self.rng
        queue = rng.choice(BUSY_QUEUES)
        self.send(number, "queue.declare", queue=queue, nowait=rng.random() < 0.5)
        for _ in range(rng.randrange(4)):
            self.publish(number, "", queue)
        if rng.random() < 0.4:
            self.send(number, "basic.qos", prefetch_count=rng.choice((0, 1, 3)), global_=rng.random() < 0.3)
        if rng.random() < 0.7:
            self.send(
                number,
                "basic.consume",
                queue=queue,
                consumer_tag=self.new_name(),
                no_ack=rng.random() < 0.3,
                nowait=rng.random() < 0.3,
            )
        else:
            self.send(number, "basic.get", queue=queue)
        for _ in range(rng.randrange(3)):
            self.publish(number, "", rng.choice(BUSY_QUEUES), mandatory=True)
        if rng.random() < 0.5:
            self.send(number, "channel.flow", active=True)
            multiple = {"multiple": True}  # never wrong with tag 0
            if rng.random() < 0.5:
                self.send(number, "basic.nack", requeue=rng.random() < 0.7, **multiple)
            else:
                self.send(number, "basic.ack", **multiple)

    def _loose(self, number: int) -> None:
        """Any method of a client with plausible values in its fields."""
        rng = self.rng
        method = rng.choice(_LOOSE_METHODS)
        self.frames.append(frame(METHOD, number, random_method(rng, method, self.name)))
        if method == "basic.publish":
            size = rng.choice((0, 1, 10, 100, 4080, 9000))
            self.frames.append(frame(HEADER, number, encode_header(size, **rng.choice(PROPERTIES))))
            if size:
                self.frames += [
                    frame(BODY, number, b"x" * min(size - at, self.frame_max - 8))
                    for at in range(0, size, self.frame_max - 8)
                ]


def random_method(rng: Random, method: str, name: str) -> bytes:
    """The payload of a method with plausible values in its fields; `name` is a name the session uses."""
    fields: dict[str, Any] = {}
    if method in {"queue.purge", "queue.delete"} and rng.random() < 0.5:
        return encode_method(method, queue=rng.choice(BUSY_QUEUES))
    for field_name, kind in _FIELDS[method]:
        if kind == "b":
            # immediate and nowait are rare: what is learnt from them is little, and the answers are needed
            fields[field_name] = rng.random() < (0.03 if field_name == "immediate" else 0.25)
        elif kind == "S":
            fields[field_name] = _text(rng, field_name, name)
        elif kind == "T":
            fields[field_name] = rng.choice(_TABLES)
        elif kind == "L":
            fields[field_name] = rng.choice((0, 1, 1, 2, 3, 2**63, 2**64 - 1))
        elif field_name == "prefetch_size":
            fields[field_name] = rng.choice((0, 0, 0, 1))
        elif kind == "s":
            fields[field_name] = rng.choice((0, 1, 2, 200, 65535))
    return encode_method(method, **fields)


_FIELDS = {spec.name: spec.fields for spec in SPECS.values()}
_TABLES = ({}, {}, {}, EVERY_TYPE, *HEADERS_MATCHES, *QUEUE_ARGUMENTS)


def _text(rng: Random, field_name: str, name: str) -> str:
    if field_name == "queue" or (field_name == "routing_key" and rng.random() < 0.6):
        return rng.choice((*SHARED_QUEUES, *SHARED_QUEUES, f"{name}.1", "", REPLY_TO, REPLY_TO + ".x"))
    if field_name in {"exchange", "source", "destination"}:
        return rng.choice((*SHARED_EXCHANGES, *PREDECLARED, "", f"{name}.1"))
    if field_name == "type":
        return rng.choice((*TYPES, "x-unknown"))
    if field_name == "consumer_tag":
        return rng.choice(("", "tag", f"{name}.2"))
    return rng.choice(TOPIC_KEYS)

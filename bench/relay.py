"""The yardstick: a minimal AMQP relay that shows how fast this machine's interpreter can pass on messages.

Not a broker. It implements just enough of AMQP 0-9-1 for PerfTest and the other benchmarks here (any user, direct,
fanout and the default exchange, prefetch, acknowledgements, immediate confirms) and omits all that makes a broker:
checks, permissions, limits, storage, metrics, flow control. Leveret's rate relative to it, in the same run, shows how
much of the interpreter's speed the features of a broker cost.

    python -m bench.relay PORT
"""

import asyncio
import contextlib
import struct
import sys
from collections import deque
from typing import Any, cast

import uvloop
from pamqp import commands, frame

type_channel_size = struct.Struct(">BHI")
method_at = struct.Struct(">BHII").unpack_from  # type, channel, size, class and method
header_at = struct.Struct(">BHIHHQ").unpack_from  # type, channel, size, class, weight, body size
frame_at = type_channel_size.unpack_from
settle_at = struct.Struct(">Q?").unpack_from
tag_octets = struct.Struct(">Q").pack

PUBLISH = 60 << 16 | 40
DELIVER = 60 << 16 | 60
ACK = 60 << 16 | 80
METHOD, HEADER, BODY = 1, 2, 3
SHORTEST = 12  # size of the method struct; a shorter frame waits for the bytes after it
UNLIMITED = sys.maxsize
PARTIAL, MIXED = 0, -1
FRAME_END = b"\xce"

Message = tuple[bytes, bytes, int]
"""Exchange and routing key of the publish, the content frames, and their channel: all as received."""


class Queue:
    """Messages in order, and the subscriptions that receive them in rotation."""

    __slots__ = ("auto_delete", "name", "next_up", "ready", "subscriptions")

    def __init__(self, name: str, *, auto_delete: bool) -> None:
        self.name, self.auto_delete = name, auto_delete
        self.ready: deque[Message] = deque()
        self.subscriptions: list[Subscription] = []
        self.next_up = 0

    def taker(self) -> "Subscription | None":
        """Return the next subscription in rotation that has credit left."""
        subscriptions = self.subscriptions
        count = len(subscriptions)
        for _ in range(count):
            self.next_up = turn = (self.next_up + 1) % count
            if subscriptions[turn].credit > 0:
                return subscriptions[turn]
        return None

    def put(self, message: Message) -> None:
        """Deliver a message immediately if no other waits before it, otherwise keep it."""
        if not self.ready and (subscription := self.taker()) is not None:
            subscription.send(message)
        else:
            self.ready.append(message)

    def drain(self) -> None:
        """Deliver ready messages while any subscription has credit."""
        while self.ready and (subscription := self.taker()) is not None:
            subscription.send(self.ready.popleft())


class Channel:
    """Delivery tags, unsettled deliveries and partial contents of one channel."""

    __slots__ = (
        "confirmed",
        "confirms",
        "delivery_tag",
        "missing",
        "number",
        "pieces",
        "prefetch",
        "published",
        "unacked",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.prefetch = self.delivery_tag = self.published = self.confirmed = self.missing = 0
        self.confirms = False
        self.unacked: dict[int, Subscription] = {}
        self.pieces: list[bytes] = []


class Subscription:
    """A consumer: its credit and the two cached ends of its deliver frame for every address."""

    __slots__ = ("channel", "credit", "ends", "no_ack", "peer", "queue", "tag")

    def __init__(self, tag: str, queue: Queue, channel: Channel, peer: "Peer", *, no_ack: bool) -> None:
        self.tag, self.queue, self.channel, self.peer, self.no_ack = (
            tag.encode(),
            queue,
            channel,
            peer,
            no_ack,
        )
        self.credit = channel.prefetch if channel.prefetch and not no_ack else UNLIMITED
        self.ends: dict[bytes, tuple[bytes, bytes]] = {}

    def send(self, message: Message) -> None:
        """Add one deliver with its content to the peer's next write."""
        address, content, number = message
        channel, peer = self.channel, self.peer
        channel.delivery_tag = tag = channel.delivery_tag + 1
        ends = self.ends.get(address)
        if ends is None:
            ends = self.ends[address] = self.deliver_ends(address)
        if number != channel.number:
            content = renumbered(content, channel.number)
        peer.out.append(ends[0] + tag_octets(tag) + ends[1] + content)
        if not self.no_ack:
            self.credit -= 1
            channel.unacked[tag] = self
        if not peer.dirty:
            peer.dirty = True
            peer.relay.dirty.append(peer)

    def deliver_ends(self, address: bytes) -> tuple[bytes, bytes]:
        """Return a deliver frame for this address without its tag: the parts before and after it."""
        size = 4 + 1 + len(self.tag) + 8 + 1 + len(address)
        before = (
            type_channel_size.pack(METHOD, self.channel.number, size)
            + DELIVER.to_bytes(4)
            + bytes([len(self.tag)])
        )
        return before + self.tag, b"\0" + address + FRAME_END


class Relay:
    """State shared by all peers: queues, exchanges, bindings and the routes cached from them."""

    __slots__ = ("bindings", "dirty", "exchanges", "named", "queues", "routes")

    def __init__(self) -> None:
        self.queues: dict[str, Queue] = {}
        self.exchanges: dict[str, str] = {"amq.fanout": "fanout"}
        self.bindings: set[tuple[str, str, str]] = set()
        self.routes: dict[bytes, list[Queue]] = {}
        self.dirty: list[Peer] = []
        self.named = 0

    def route(self, address: bytes) -> list[Queue]:
        """Return the queues of a publish's address, cached until the topology changes."""
        exchange, key = address[1 : 1 + address[0]].decode(), address[2 + address[0] :].decode()
        if exchange:
            everything = self.exchanges.get(exchange) == "fanout"
            names = {
                queue
                for source, bound, queue in self.bindings
                if source == exchange and (everything or bound == key)
            }
        else:
            names = {key}
        self.routes[address] = found = [self.queues[name] for name in names if name in self.queues]
        return found

    def declare(self, name: str, *, auto_delete: bool) -> Queue:
        """Return the queue of that name, created if it does not exist."""
        if not name:
            self.named += 1
            name = f"amq.gen-{self.named}"
        if name not in self.queues:
            self.queues[name] = Queue(name, auto_delete=auto_delete)
            self.routes.clear()
        return self.queues[name]

    def delete(self, name: str) -> int:
        """Delete a queue and its bindings; return the number of its messages."""
        self.bindings = {binding for binding in self.bindings if binding[2] != name}
        self.routes.clear()
        queue = self.queues.pop(name, None)
        return len(queue.ready) if queue else 0

    def unsubscribe(self, peer: "Peer", tag: bytes | None = None) -> None:
        """End one subscription of a peer, or all of them, and delete auto-delete queues without others."""
        for queue in list(self.queues.values()):
            kept = [
                one
                for one in queue.subscriptions
                if one.peer is not peer or (tag is not None and one.tag != tag)
            ]
            if len(kept) < len(queue.subscriptions):
                queue.subscriptions, queue.next_up = kept, 0
                if queue.auto_delete and not kept:
                    self.delete(queue.name)

    def flush(self) -> None:
        """Flush all peers with pending output."""
        for peer in self.dirty:
            peer.flush()
        self.dirty.clear()


class Peer(asyncio.Protocol):
    """One client connection: parses whole reads in one loop, responds with one write."""

    def __init__(self, relay: Relay) -> None:
        self.relay = relay
        self.transport: asyncio.Transport
        self.channels: dict[int, Channel] = {}
        self.confirming: list[Channel] = []
        self.out: list[bytes] = []
        self.rest = b""
        self.dirty = self.greeted = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the protocol's signature
        """End the subscriptions of a client that left."""
        self.relay.unsubscribe(self)

    def flush(self) -> None:
        """Write all output collected since the last flush."""
        self.dirty = False
        if self.out:
            self.transport.write(b"".join(self.out))
            self.out.clear()

    def data_received(self, data: bytes) -> None:
        """Handle all complete frames of a read, then send the resulting confirms, deliveries and replies."""
        if self.rest:
            data = self.rest + data
        at = 0
        if not self.greeted:
            if len(data) < 8:
                self.rest = data
                return
            self.greeted, at = True, 8
            capabilities = {"publisher_confirms": True, "basic.nack": True, "consumer_cancel_notify": True}
            properties: dict[str, Any] = {"product": "relay", "version": "1", "capabilities": capabilities}
            self.answer(0, commands.Connection.Start(0, 9, properties, "PLAIN", "en_US"))
        at = self.frames(data, at)
        self.rest = data[at:] if at < len(data) else b""
        for channel in self.confirming:
            if channel.confirmed < channel.published:
                channel.confirmed = channel.published
                head = type_channel_size.pack(METHOD, channel.number, 13) + ACK.to_bytes(4)
                self.out.append(head + tag_octets(channel.published) + b"\x01" + FRAME_END)
        self.flush()
        self.relay.flush()

    def frames(self, data: bytes, at: int) -> int:
        """Handle the frames of `data` from `at` on; return where the first incomplete one starts."""
        channels, routes, size = self.channels, self.relay.routes, len(data)
        while size - at >= SHORTEST:
            kind, number, length, method = method_at(data, at)
            end = at + length + 8
            if end > size:
                break
            if kind == METHOD:
                if method == PUBLISH:
                    channel, address = channels[number], data[at + 13 : end - 2]
                    stop = content_end(data, end, size, number)
                    if stop > 0:
                        queues = routes.get(address)
                        if queues is None:
                            queues = self.relay.route(address)
                        channel.published += 1
                        message = address, data[end:stop], number
                        for queue in queues:
                            queue.put(message)
                        end = stop
                    elif stop == PARTIAL:
                        break
                    else:
                        channel.pieces = [address]
                elif method == ACK:
                    tag, multiple = settle_at(data, at + 11)
                    settle(channels[number].unacked, tag, multiple=multiple)
                else:
                    self.cold(data[at:end])
            elif kind in {HEADER, BODY}:
                channel = channels[number]
                channel.pieces.append(data[at:end])
                channel.missing = header_at(data, at)[5] if kind == HEADER else channel.missing - length
                if channel.missing == 0:
                    address, content = channel.pieces[0], b"".join(channel.pieces[1:])
                    channel.published += 1
                    for queue in self.relay.route(address) if address not in routes else routes[address]:
                        queue.put((address, content, number))
            at = end
        return at

    def answer(self, number: int, method: frame.FrameTypes) -> None:
        """Add a method to the next write."""
        self.out.append(frame.marshal(method, number))

    def cold(self, octets: bytes) -> None:
        """Handle any method other than publish and ack."""
        relay = self.relay
        _, number, method = frame.unmarshal(octets)
        match method:
            case commands.Connection.StartOk():
                self.answer(0, commands.Connection.Tune(2047, 131072, 0))
            case commands.Connection.Open():
                self.answer(0, commands.Connection.OpenOk())
            case commands.Connection.Close():
                self.answer(0, commands.Connection.CloseOk())
            case commands.Channel.Open():
                self.channels[number] = Channel(number)
                self.answer(number, commands.Channel.OpenOk())
            case commands.Channel.Close():
                self.channels.pop(number, None)
                self.answer(number, commands.Channel.CloseOk())
            case commands.Exchange.Declare():
                relay.exchanges[method.exchange] = method.exchange_type
                self.answer(number, commands.Exchange.DeclareOk())
            case commands.Queue.Declare():
                queue = relay.declare(method.queue, auto_delete=method.auto_delete)
                if not method.nowait:
                    self.answer(
                        number,
                        commands.Queue.DeclareOk(queue.name, len(queue.ready), len(queue.subscriptions)),
                    )
            case commands.Queue.Bind():
                relay.bindings.add((method.exchange, method.routing_key, method.queue))
                relay.routes.clear()
                self.answer(number, commands.Queue.BindOk())
            case commands.Queue.Delete():
                self.answer(number, commands.Queue.DeleteOk(relay.delete(method.queue)))
            case commands.Basic.Qos():
                self.channels[number].prefetch = method.prefetch_count
                self.answer(number, commands.Basic.QosOk())
            case commands.Confirm.Select():
                self.channels[number].confirms = True
                self.confirming.append(self.channels[number])
                self.answer(number, commands.Confirm.SelectOk())
            case commands.Basic.Consume():
                relay.named += 1
                tag = method.consumer_tag or f"amq.ctag-{relay.named}"
                self.answer(number, commands.Basic.ConsumeOk(tag))
                queue = relay.queues[method.queue]
                queue.subscriptions.append(
                    Subscription(tag, queue, self.channels[number], self, no_ack=method.no_ack)
                )
                queue.drain()
            case commands.Basic.Cancel():
                relay.unsubscribe(self, (method.consumer_tag or "").encode())
                self.answer(number, commands.Basic.CancelOk(method.consumer_tag))
            case commands.Basic.Nack():
                settle(self.channels[number].unacked, method.delivery_tag, multiple=method.multiple)


def settle(unacked: dict[int, Subscription], tag: int, *, multiple: bool) -> None:
    """Return the credit of one delivery, or of all up to it, and deliver messages that waited for it."""
    if multiple:
        tags = []
        for one in unacked:
            if one > tag:
                break
            tags.append(one)
    else:
        tags = [tag]
    for one in tags:
        subscription = unacked.pop(one)
        subscription.credit += 1
        if subscription.queue.ready:
            subscription.queue.drain()


def content_end(data: bytes, at: int, size: int, number: int) -> int:
    """Return the end of the content at `at`: `PARTIAL` if incomplete, `MIXED` with another channel's."""
    if size - at < 22:
        return PARTIAL
    kind, channel, length, _, _, body = header_at(data, at)
    at += length + 8
    if kind != HEADER or channel != number:
        return MIXED
    while body > 0:
        if size - at < 8:
            return PARTIAL
        kind, channel, length = frame_at(data, at)
        if kind != BODY or channel != number:
            return MIXED
        body -= length
        at += length + 8
    return at if at <= size else PARTIAL


def renumbered(content: bytes, number: int) -> bytes:
    """Return the same content frames for another channel."""
    parts: list[bytes] = []
    at, channel = 0, number.to_bytes(2)
    while at < len(content):
        end = at + 8 + int.from_bytes(content[at + 3 : at + 7])
        parts += (content[at : at + 1], channel, content[at + 3 : end])
        at = end
    return b"".join(parts)


async def serve(port: int) -> None:
    """Relay on 127.0.0.1 until interrupted."""
    relay = Relay()
    server = await asyncio.get_running_loop().create_server(
        lambda: Peer(relay), "127.0.0.1", port, backlog=1024
    )
    await server.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(int(sys.argv[1])))

"""Cases of queues: names, counts, life and death."""

from conformance.cases import Cases, Session, channel, fill, ok

ROWS = Cases()
case = ROWS.case


@case("queue.last-declared", ok((b"x", 1, 0)))
def _(s: Session) -> tuple[object, ...]:
    """An empty queue name means the last queue that the channel declared."""
    opened = s.queue()
    name = opened.queue()
    opened.call("queue.bind", exchange="amq.direct")
    opened.publish("amq.direct", name, b"x")
    body = opened.get("")
    opened.publish("", name, b"y")
    purged = opened.call("queue.purge").message_count
    opened.consume("")
    return body, purged, opened.call("queue.delete").message_count


@case("queue.last-declared-channel", channel(404, "basic.get", "no previously declared queue"))
def _(s: Session) -> None:
    """Each channel has its own last declared queue."""
    opened = s.queue()
    opened.client.channel(2).call("basic.get", queue="")


@case("queue.last-declared-passive", ok(0))
def _(s: Session) -> int:
    """A passive declare sets the last declared queue too."""
    opened = s.queue()
    again = opened.client.channel(2)
    again.ready(s.q)
    return int(again.call("queue.purge", queue="").message_count)


@case("queue.server-named", ok((True, True)))
def _(s: Session) -> tuple[bool, bool]:
    """A queue declared with an empty name gets a generated, unique name."""
    opened = s.channel()
    names = [opened.queue(exclusive=True) for _ in range(3)]
    return len(set(names)) == 3, all(name.startswith("amq.gen-") for name in names)


@case("queue.declare-counts", ok((2, 1)))
def _(s: Session) -> tuple[int, int]:
    """queue.declare-ok counts ready messages and consumers."""
    opened = s.queue()
    opened.call("basic.qos", prefetch_count=1)
    opened.consume(s.q)
    for body in (b"1", b"2", b"3"):
        opened.publish("", s.q, body)
    opened.deliver()
    opened.ready(s.q, 2)
    answer = opened.call("queue.declare", queue=s.q)
    return answer.message_count, answer.consumer_count


@case("queue.delete-count", ok(3))
def _(s: Session) -> int:
    """queue.delete-ok counts ready messages."""
    opened = s.queue()
    for body in (b"1", b"2", b"3"):
        opened.publish("", s.q, body)
    return int(opened.call("queue.delete", queue=s.q).message_count)


@case("queue.purge", ok((2, 0, 1)))
def _(s: Session) -> tuple[int, ...]:
    """A purge removes only ready messages, and counts them."""
    opened = s.queue()
    for body in (b"1", b"2", b"3"):
        opened.publish("", s.q, body)
    opened.get(s.q, no_ack=False)
    purged = opened.call("queue.purge", queue=s.q).message_count
    left = opened.ready(s.q)
    opened.call("basic.recover", requeue=True)
    return purged, left, opened.ready(s.q, 1)


@case("queue.purge-missing", channel(404, "queue.purge", "no queue '{q}' in vhost '/'"))
def _(s: Session) -> None:
    """Purging a queue that does not exist."""
    s.channel().call("queue.purge", queue=s.q)


@case("queue.auto-delete", channel(404, "queue.declare", "no queue '{q}' in vhost '/'"))
def _(s: Session) -> None:
    """An auto-delete queue is deleted when its last consumer is cancelled."""
    opened = s.queue(auto_delete=True)
    opened.ready(s.q)
    opened.consume(s.q, "1")
    opened.consume(s.q, "2")
    opened.call("basic.cancel", consumer_tag="1")
    opened.ready(s.q)
    opened.call("basic.cancel", consumer_tag="2")
    opened.ready(s.q)


@case("queue.auto-delete-channel", channel(404, "queue.declare", "no queue '{q}' in vhost '/'"))
def _(s: Session) -> None:
    """An auto-delete queue is deleted when the channel of its last consumer closes."""
    opened = s.queue(auto_delete=True)
    opened.consume(s.q)
    other = opened.client.channel(2)
    opened.call("channel.close", reply_code=200)
    other.ready(s.q)


@case("queue.exclusive-gone", channel(404, "queue.declare", "no queue '{q}' in vhost '/'"))
def _(s: Session) -> None:
    """An exclusive queue is deleted when its connection ends without connection.close."""
    owner = s.channel()
    owner.queue(s.q, exclusive=True)
    other = s.channel()
    owner.call("queue.bind", queue=s.q, exchange="amq.fanout")
    owner.client.send(0, "connection.close", reply_code=200)
    owner.client.receive(0, "connection.close-ok")
    other.ready(s.q)


@case("queue.nowait", ok((1, 0, True)))
def _(s: Session) -> tuple[object, ...]:
    """Declare, bind, purge and delete with nowait work and are not answered."""
    opened = s.channel()
    opened.send("queue.declare", queue=s.q, nowait=True)
    opened.send("queue.bind", queue=s.q, exchange="amq.direct", routing_key=s.q, nowait=True)
    opened.publish("amq.direct", s.q, b"x")
    count = opened.ready(s.q, 1)
    opened.send("queue.purge", queue=s.q, nowait=True)
    after = opened.ready(s.q)
    opened.send("queue.delete", queue=s.q, nowait=True)
    return count, after, opened.quiet()


def _nowait_error(name: str, method: str, expect: str, **fields: object) -> None:
    def script(s: Session) -> None:
        opened = s.channel()
        values = {k: v.replace("{q}", s.q) if isinstance(v, str) else v for k, v in fields.items()}
        opened.send(method, nowait=True, **values)
        opened.sync()

    case(
        f"queue.nowait-{name}",
        channel(404, method, expect),
        statement=f"a nowait {method} still reports its error",
    )(script)


_nowait_error("declare-error", "queue.declare", "no queue '{q}' in vhost '/'", queue="{q}", passive=True)


_nowait_error("bind-error", "queue.bind", "no queue '{q}' in vhost '/'", queue="{q}", exchange="amq.direct")


_nowait_error("purge-error", "queue.purge", "no queue '{q}' in vhost '/'", queue="{q}")


_nowait_error("consume-error", "basic.consume", "no queue '{q}' in vhost '/'", queue="{q}")


@case("queue.nowait-server-named", ok(0))
def _(s: Session) -> int:
    """A declare with nowait and without a name makes the new queue the channel's last declared queue."""
    opened = s.channel()
    opened.send("queue.declare", exclusive=True, nowait=True)
    return int(opened.call("queue.purge").message_count)


@case("queue.cr-lf", ok(0))
def _(s: Session) -> int:
    """Line breaks are removed from names."""
    opened = s.channel()
    opened.queue(s.q + "\r\n")
    return opened.ready(s.q)


@case("queue.rebind", ok((1, 0)))
def _(s: Session) -> tuple[int, int]:
    """Binding twice creates one binding."""
    opened = s.queue()
    for _ in range(2):
        opened.call("queue.bind", queue=s.q, exchange="amq.direct", routing_key=s.q)
    opened.publish("amq.direct", s.q, b"x")
    count = opened.call("queue.purge", queue=s.q).message_count
    opened.call("queue.unbind", queue=s.q, exchange="amq.direct", routing_key=s.q)
    opened.publish("amq.direct", s.q, b"x")
    return count, opened.drain(s.q)


@case("queue.delete-unbinds", ok(0))
def _(s: Session) -> int:
    """A queue declared again after its deletion does not have its old bindings."""
    opened = s.queue()
    opened.call("queue.bind", queue=s.q, exchange="amq.direct", routing_key=s.q)
    opened.call("queue.delete", queue=s.q)
    opened.queue(s.q)
    opened.publish("amq.direct", s.q, b"x")
    return opened.drain(s.q)


@case("queue.vhosts", ok((1, 0)))
def _(s: Session) -> tuple[int, int]:
    """Each virtual host has its own queues."""
    one, two = s.channel(), s.channel("root", "other")
    one.queue(s.q)
    two.queue(s.q)
    one.publish("", s.q, b"x")
    return one.ready(s.q, 1), two.ready(s.q)


@case("queue.delete-nowait-error", channel(406, "queue.delete", "queue '{q}' in vhost '/' not empty"))
def _(s: Session) -> None:
    """A delete with nowait still reports its error."""
    opened = fill(s, s.channel())
    opened.send("queue.delete", queue=s.q, if_empty=True, nowait=True)
    opened.sync()


@case("queue.delete-other-connection", ok((0, "channel.close")))
def _(s: Session) -> tuple[int, str]:
    """A queue can be deleted while another connection consumes from it; its unacked messages are deleted too."""
    opened = fill(s, s.channel())
    opened.consume(s.q)
    for _ in range(3):
        opened.deliver()
    count = s.channel().call("queue.delete", queue=s.q).message_count
    opened.receive("basic.cancel")
    opened.send("basic.ack", delivery_tag=3, multiple=True)
    opened.sync()
    opened.send("basic.ack", delivery_tag=3)
    return count, opened.receive("channel.close").name


@case("queue.lost-connection", ok(True))
def _(s: Session) -> bool:
    """An exclusive queue is deleted when its connection is lost."""
    owner, other = s.channel(), s.channel()
    owner.queue(s.q, exclusive=True)
    owner.client.close_socket()
    for number in range(2, 200):
        attempt = other.client.channel(number)
        attempt.send("queue.declare", queue=s.q, passive=True)
        if attempt.receive("queue.declare-ok", "channel.close").reply_code == 404:
            return True
        attempt.send("channel.close-ok")
    return False


@case("queue.auto-delete-get", ok(0))
def _(s: Session) -> int:
    """basic.get does not count as a consumer: an auto-delete queue remains."""
    opened = s.queue(auto_delete=True)
    opened.get(s.q)
    return opened.ready(s.q)


@case("queue.exclusive-consume-other-channel", ok(b"x"))
def _(s: Session) -> bytes | None:
    """An exclusive queue can be used on every channel of its connection."""
    opened = s.queue(exclusive=True)
    opened.publish("", s.q, b"x")
    return opened.client.channel(2).get(s.q)


@case("queue.passive-nowait", ok(True))
def _(s: Session) -> bool:
    """A passive declare with nowait of an existing queue is not answered."""
    opened = s.queue()
    opened.send("queue.declare", queue=s.q, passive=True, nowait=True)
    return opened.quiet()


@case("queue.order", ok(True))
def _(s: Session) -> bool:
    """Messages are delivered in the order in which they were published, across socket reads."""
    opened = s.queue()
    for number in range(500):
        opened.publish("", s.q, str(number).encode())
    opened.consume(s.q, no_ack=True)
    return [int(opened.deliver().body) for _ in range(500)] == list(range(500))


@case("queue.bind-default-key", ok(1))
def _(s: Session) -> int:
    """queue.bind with an empty queue name and routing key uses the last declared queue's name for both."""
    opened = s.channel()
    opened.exchange(s.x)
    opened.queue(s.q)
    opened.call("queue.bind", queue="", exchange=s.x, routing_key="")
    opened.publish(s.x, s.q, b"x")
    return opened.drain(s.q)


@case("queue.names", ok(b"x"))
def _(s: Session) -> bytes | None:
    """A queue name may have 255 bytes and contain any characters."""
    opened = s.channel()
    name = s.q + "ä\N{GREEK SMALL LETTER OMEGA}\N{RABBIT} /%#*."
    name += "x" * (255 - len(name.encode()))
    opened.queue(name)
    opened.publish("", name, b"x")
    return opened.get(name)


@case("queue.version", ok([b"2", b"3"]))
def _(s: Session) -> list[bytes | None]:
    """x-queue-version makes no difference to clients."""
    opened = s.queue(arguments={"x-queue-version": 1})
    opened.queue(s.q + "2", arguments={"x-queue-version": 2, "x-max-length": 2})
    opened.call("queue.bind", queue=s.q, exchange="amq.direct", routing_key=s.q)
    for body in (b"1", b"2", b"3"):
        opened.publish("", s.q + "2", body, headers={"CC": [s.q]})
    assert opened.drain(s.q) == 3, "version 1 lacks some"
    return [opened.get(s.q + "2"), opened.get(s.q + "2")]

"""What a dead letter looks like, and which queues may not have it.

A message that a queue discards is published again by the broker, to the queue's dead letter exchange: its body and
most of its properties stay octet for octet, its headers tell how it died. What is written there is what RabbitMQ 3.13
shows its clients (mc:record_death/4 and mc_amqpl:protocol_state/2), apart from `CC`: with a routing key of the queue's
own that header goes, as RabbitMQ's documentation has it, because nothing but the header says where a message is to go
when it dies again. `BCC` is gone since the message was published: no key of it leads anywhere now.

`x-death` is an array of tables, one for each pair of queue and reason, the newest death first. Clients can send one
themselves, usually in a dead letter that they publish again; entries which are not complete are ignored.
"""

import logging
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeVar

from broker.amqp.properties import FLAGS_AT, Properties, parse_expiration
from broker.amqp.tables import Field, Table
from storage.message import Message

log = logging.getLogger("leveret.queue")

_INTEGERS = frozenset(
    ("byte", "unsignedbyte", "short", "unsignedshort", "signedint", "unsignedint", "long", "timestamp")
)
_NOTHING: Field = ("void", None)
_MAX_COUNT = 2**63 - 1
_MAX_SHORT = 255


class DeadLetter(NamedTuple):
    """A message as its dead letter exchange gets it.

    The headers and the keys are shared by all dead letters that have the same: they must not be changed, and who meets
    the same objects again may route as before.
    """

    message_content: bytes
    """Header frame and body frames; the channel number in them is that of the original."""
    address: bytes
    """The dead letter exchange and the routing key to show, as two short strings."""
    routing_keys: tuple[str, ...]
    """The keys to route by."""
    headers: Table


def dead_letter(
    message: Message, *, queue: str, reason: str, exchange: str, routing_key: str | None, now: int
) -> DeadLetter:
    """Make the dead letter of a message.

    Messages of equal address and properties that die in one second for one reason share the work.

    Args:
        message: what the queue discards; its properties were checked when it was published.
        queue: the queue's name.
        reason: expired, rejected, maxlen or delivery_limit.
        exchange: the queue's dead letter exchange, which exists.
        routing_key: the queue's dead letter routing key, None if it has none. More than 255 octets of it are cut off
            in the address, which cannot hold them.
        now: seconds since 1970.

    """
    header = message.header
    properties, address, keys, headers = _rewritten(
        message.address, header[FLAGS_AT:], queue, reason, exchange, routing_key, now
    )
    content = message.with_header(header[:FLAGS_AT] + properties).content
    return DeadLetter(content, address, keys, headers)


@lru_cache(maxsize=16)
def _rewritten(
    address: bytes, flagged: bytes, queue: str, reason: str, exchange: str, routing_key: str | None, now: int
) -> tuple[bytes, bytes, tuple[str, ...], Table]:
    """Rewrite address and properties (flags and list): those of the letter, the keys to route by and the headers."""
    # Deaths may add entries beyond those that a client may send: the broker reads its own without a limit.
    properties = Properties(bytes(FLAGS_AT) + flagged, max_entries=sys.maxsize)
    headers = dict(properties.headers or {})
    key_at = 1 + address[0]
    old_exchange = address[1:key_at].decode("utf-8", "surrogateescape")
    old_key = address[key_at + 1 :].decode("utf-8", "surrogateescape")
    old_keys = (old_key, *_strings(headers.get("CC", _NOTHING)))
    keys = old_keys
    if routing_key is not None:
        keys = (routing_key,)
        headers.pop("CC", None)
    death: Table = {}
    if properties.expiration is not None:
        death["original-expiration"] = "longstr", str(parse_expiration(properties.expiration))
    death |= {
        "count": ("long", 1),
        "reason": ("longstr", reason),
        "queue": ("longstr", queue),
        "time": ("timestamp", now),
        "exchange": ("longstr", old_exchange),
        "routing-keys": ("array", [("longstr", key) for key in old_keys]),
    }
    _record(headers, death)
    headers = dict(sorted(headers.items()))
    payload = properties.replace(headers=headers, expiration=None)
    return payload[FLAGS_AT:], _short(exchange) + _short(keys[0]), keys, headers


def _record(headers: Table, death: Table) -> None:
    """Write a death into the headers (mc:record_death/4)."""
    queue, reason, exchange = death["queue"], death["reason"], death["exchange"]
    kind, items = headers.get("x-death", _NOTHING)
    deaths = [known for item in items if (known := _known(item))] if kind == "array" else None
    if deaths is None:
        deaths = []
        headers["x-first-death-reason"] = reason
        headers["x-first-death-queue"] = queue
        headers["x-first-death-exchange"] = exchange
    headers["x-last-death-reason"] = reason
    headers["x-last-death-queue"] = queue
    headers["x-last-death-exchange"] = exchange
    for place, earlier in enumerate(deaths):
        if earlier["queue"] == queue and earlier["reason"] == reason:
            death = earlier | {"count": ("long", earlier["count"][1] + 1)}
            del deaths[place]
            break
    headers["x-death"] = "array", [("table", one) for one in (death, *deaths)]


def _known(item: Field) -> Table | None:
    """Read one death that a client may have written: with the types they ought to have, None if that is impossible."""
    kind, table = item
    if kind != "table":
        return None
    death: Table = {}
    expiration = table.get("original-expiration", _NOTHING)
    if expiration[0] == "longstr":
        death["original-expiration"] = expiration
    count = table.get("count", _NOTHING)
    time = table.get("time", _NOTHING)
    keys = table.get("routing-keys", _NOTHING)
    if (
        any(table.get(name, _NOTHING)[0] != "longstr" for name in ("reason", "queue", "exchange"))
        or keys[0] != "array"
        or not {count[0], time[0]} <= _INTEGERS
        or not 0 <= count[1] < _MAX_COUNT
        or time[1] < 0
    ):
        return None
    return death | {
        "count": ("long", count[1]),
        "reason": table["reason"],
        "queue": table["queue"],
        "time": ("timestamp", time[1]),
        "exchange": table["exchange"],
        "routing-keys": ("array", [("longstr", key) for key in _strings(keys)]),
    }


def _strings(field: Field) -> tuple[str, ...]:
    """Return the long strings of an array."""
    kind, items = field
    return tuple(value for item_kind, value in items if item_kind == "longstr") if kind == "array" else ()


def _short(text: str) -> bytes:
    octets = text.encode("utf-8", "surrogateescape")[:_MAX_SHORT]
    return bytes((len(octets),)) + octets


def cycles(headers: Table, queue: str) -> bool:
    """Whether a dead letter would come back to a queue with nobody having rejected it on the way (mc:is_death_cycle/2).

    Args:
        headers: those of the `DeadLetter`, this death included.
        queue: the name of a queue that it is routed to.

    """
    for _, death in headers["x-death"][1]:
        if death["reason"][1] == "rejected":
            return False
        if death["queue"][1] == queue:
            return True
    return False


class Named(Protocol):
    """A queue, as far as cycles are concerned."""

    @property
    def name(self) -> str:
        """Its name."""


Q = TypeVar("Q", bound=Named)


class Cycles:
    """Keeps dead letters from going round for ever, tells of each cycle once (rabbit_dead_letter:detect_cycles/3)."""

    MAX_TOLD = 1000
    """Cycles that are told of at most: clients can make any number of them."""

    def __init__(self) -> None:
        self._told: set[tuple[str, ...]] = set()

    def leave_out(self, queues: Sequence[Q], headers: Table) -> Sequence[Q]:
        """Return the queues that may have a dead letter.

        Args:
            queues: those it is routed to.
            headers: those of the `DeadLetter`.

        """
        cycling = [queue.name for queue in queues if cycles(headers, queue.name)]
        if not cycling:
            return queues
        path = tuple(death["queue"][1] for _, death in headers["x-death"][1])
        for name in cycling:
            cycle = (name, *path)
            if cycle not in self._told and len(self._told) < self.MAX_TOLD:
                self._told.add(cycle)
                text = "message dropped: without a reject these queues, the latest first, are a cycle of dead letters"
                log.warning("%s: %s. This is not reported again", text, ", ".join(cycle))
        return [queue for queue in queues if queue.name not in cycling]

"""Dead-lettering: publishes messages that queues discard to their dead letter exchanges, with `x-death` headers.

Theory. The dead letter enters its queues' inboxes in the same turn in which its original is removed, so one commit
covers both. Two cases need more care. If the original is not on disk yet, its publisher still waits for a confirm: the
dead letter takes over that promise, so the publish is confirmed when both are safe (`joined`). A body in a file of its
own takes longer than a commit. Its original stays until the file is written, even if its queue is deleted meanwhile.
The commit that has the dead letter's record removes it (`storage.message.Moved`).

A full queue may dead-letter a dead letter that arrives, and so on through any number of queues: to avoid recursion
dead letters wait in one FIFO (`broker.vhost.copies.Deliveries`), which the outermost call drains.

A message is dropped where RabbitMQ drops it: its dead letter exchange does not exist or has no queue for it, the queue
refuses it, or it would cycle without a reject.

A message that a queue discards is published again by the broker, to the queue's dead letter exchange: its body and most
of its properties stay byte for byte, its headers record the death. The headers are those that RabbitMQ 3.13 shows its
clients (mc:record_death/4 and mc_amqpl:protocol_state/2), except for `CC`. If the queue sets a routing key, that header
is removed, as RabbitMQ's documentation says, because it alone would determine the route of the next death. In RabbitMQ
4.3 it stays (`compatibility.message_properties`); it still counts if the newest death has its keys. `BCC` was
removed when the message was published: its keys have no effect now.

`x-death` is an array of tables, one for each pair of queue and reason, the newest death first. Clients can send one
themselves, usually in a dead letter that they publish again; incomplete entries are ignored. Its counts go on, as in
RabbitMQ 3.13, or those since the publish replace it, as in 4.x (`compatibility.claimed_deaths`). A cycle is detected by
the deaths since the publish alone (as in RabbitMQ 4): those are the first of the array, as many as
`storage.message.Message.deaths` says. What a client claims never decides whether its message is dropped.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import accumulate, groupby
from operator import itemgetter

from leveret.broker.amqp.fastpath import join_address, split_address
from leveret.broker.amqp.properties import FLAGS_AT, Properties, is_persistent, parse_expiration
from leveret.broker.amqp.tables import (
    INTEGERS,
    MAX_APART,
    Field,
    Table,
    as_written,
    count_values,
    decode_value,
    encode_value,
    join_fields,
    split_fields,
    split_items,
    strings,
)
from leveret.broker.queue.compatibility import QueueCompatibility
from leveret.broker.queue.limits import REJECTED
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.copies import Copies, Deliveries, distribute_all, is_stored_by
from leveret.broker.vhost.publish_route import WIDE
from leveret.broker.vhost.tail import ExchangeTap
from leveret.confirm.promise import is_awaited, joined
from leveret.exchanges.base import Envelope, Exchange, Headers
from leveret.exchanges.router import Router
from leveret.storage.message import Message

log = logging.getLogger("leveret.queue")

MOST_DEATHS = 256  # default of the maximum number of x-death entries in a dead letter
_MOST_VALUES = MAX_APART - 100  # most values in `x-death`, so that a client can publish the message again
_COUNTS_OR_TIMES = INTEGERS | {"timestamp"}
_AS_3_13 = QueueCompatibility()
_NOTHING: Field = ("void", None)
_MAX_COUNT = 2**63 - 1
_ORIGINAL = b"original-expiration"
_FIELDS = (b"count", b"reason", b"queue", b"time", b"exchange", b"routing-keys")
_OWN = frozenset((_FIELDS, (_ORIGINAL, *_FIELDS)))  # field names of deaths that the broker has written
_OWN_TAGS = tuple(b"lSSTSA")
_LONGSTR = ord("S")
_VARIANTS = frozenset(b"LtFA")  # tags of values that clients may encode differently from the broker

Death = tuple[str, str]  # queue and reason
Discarded = tuple[
    int, Message, Message, "Rewritten"
]  # a message of a queue, its dead letter, and what that shares


class Rewritten:
    """Part that identical dead letters share: the rewritten `properties` (flags and list), and others. Immutable.

    `address`: the dead letter exchange and the routing key to show, as two short strings on the wire; `routing_keys`:
    those used for routing; `deaths`: queues and reasons since the message was published, the newest first.
    """

    __slots__ = ("_headers", "address", "deaths", "properties", "routing_keys")

    def __init__(
        self, properties: bytes, address: bytes, routing_keys: tuple[str, ...], deaths: tuple[Death, ...]
    ) -> None:
        self.properties = properties
        self.address = address
        self.routing_keys = routing_keys
        self.deaths = deaths
        self._headers: Table | None = None

    def headers(self) -> Table:
        """Return the headers, decoded on first use."""
        if self._headers is None:
            # Deaths may add entries beyond the limit for clients: the broker reads its own headers without a limit.
            payload = bytes(FLAGS_AT) + self.properties
            properties = Properties(payload, max_entries=sys.maxsize)
            self._headers = Envelope(properties.headers or {}, properties)
        return self._headers


def dead_letter(
    message: Message,
    *,
    queue: str,
    reason: str,
    exchange: str,
    routing_key: str | None,
    now: int,
    most_deaths: int = MOST_DEATHS,
    compatibility: QueueCompatibility = _AS_3_13,
) -> tuple[Message, Rewritten]:
    """Create the dead letter of a message whose properties were checked when it was published.

    It is as its dead letter exchange receives it, with the rewritten properties, which it may share: messages with
    equal address and properties that die in the same second (`now`) for the same reason share the work. The newest
    `most_deaths` entries of `x-death` are kept. `compatibility` says whether those of its client are, and whether the
    header `CC` is where it no longer counts.
    """
    header = message.header
    rewritten = _rewritten(
        message.address,
        header[FLAGS_AT:],
        message.deaths,
        queue,
        reason,
        exchange,
        routing_key,
        now,
        most_deaths,
        compatibility.keeps_claims,
        compatibility.keeps_copies,
    )
    made = header[:FLAGS_AT] + rewritten.properties
    return message.dead_letter(rewritten.address, made, len(rewritten.deaths)), rewritten


@lru_cache(maxsize=16)
def _rewritten(
    address: bytes,
    flagged: bytes,
    recorded: int,
    queue: str,
    reason: str,
    exchange: str,
    routing_key: str | None,
    now: int,
    most_deaths: int,
    keeps_claims: bool,
    keeps_copies: bool,
) -> Rewritten:
    """Rewrite address and properties (flags and list). Unchanged fields are not decoded."""
    properties = Properties(bytes(FLAGS_AT) + flagged, max_entries=sys.maxsize)
    fields = properties.split_headers()
    old_exchange, old_key = split_address(address)
    copies = fields.get(b"CC")
    history = fields.pop(b"x-death", b"V")
    old_keys = (old_key, *strings(_NOTHING if copies is None else decode_value(copies)))
    if keeps_copies and copies is not None and recorded:
        newest = decode_value(next(iter(split_items(history))))[1]  # the broker has written it
        if strings(newest["routing-keys"]) != old_keys:
            old_keys = old_keys[:1]
    keys = old_keys
    if routing_key is not None:
        keys = (routing_key,)
        if not keeps_copies:
            fields.pop(b"CC", None)
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
    for name, value in fields.items():
        if value[0] in _VARIANTS:
            fields[name] = as_written(value)
    read = most_deaths if keeps_claims else min(most_deaths, recorded)
    deaths = _record(fields, history, recorded, death, most_deaths, read)
    headers = join_fields(sorted(fields.items()))
    payload = properties.replace(headers=headers, expiration=None)
    return Rewritten(payload[FLAGS_AT:], join_address(exchange, keys[0]), keys, deaths)


def _record(
    fields: dict[bytes, bytes], history: bytes, recorded: int, death: Table, most: int, read: int
) -> tuple[Death, ...]:
    """Write a death into the headers (mc:record_death/4); returns the deaths since the publish, the newest first.

    `history` is the `x-death` among them, encoded; the broker wrote its first `recorded` entries since the publish.
    Its first `read` entries count.
    """
    new = _death(death)
    earlier: list[tuple[Death, bytes]] = []
    is_first = history[:1] != b"A" or not read
    if not is_first:
        for item in split_items(history):
            if len(earlier) == read:
                break
            known = _known(item)
            if known is not None:
                earlier.append(known)
    for which in ("first", "last") if is_first else ("last",):
        for part in ("reason", "queue", "exchange"):
            fields[f"x-{which}-death-{part}".encode()] = encode_value(death[part])
    since = [new, *[known for known, _ in earlier[:recorded] if known != new]]
    for place, (before, item) in enumerate(earlier):
        if before == new:
            table = decode_value(item)[1]
            death = table | {"count": ("long", min(table["count"][1] + 1, _MAX_COUNT - 1))}
            del earlier[place]
            break
    del earlier[most - 1 :]
    entries = [encode_value(("table", death)), *[item for _, item in earlier]]
    if sum(map(len, entries)) > _MOST_VALUES:  # no value is shorter than an octet
        counts = accumulate(map(count_values, entries))
        del entries[max(1, sum(count <= _MOST_VALUES for count in counts)) :]
    items = b"".join(entries)
    fields[b"x-death"] = b"A" + len(items).to_bytes(4, "big") + items
    return tuple(since[: len(entries)])


def _death(table: Table) -> Death:
    return table["queue"][1], table["reason"][1]


def _known(item: bytes) -> tuple[Death, bytes] | None:
    """Read one encoded death; returns queue and reason, and its encoding; None if it is not a death."""
    # Deaths written by the broker are taken unchanged. Those that a client may have written get the proper types.
    if item[:1] != b"F":
        return None
    fields = split_fields(item, 1, len(item))
    names = tuple(fields)
    if names in _OWN:
        *_, count, reason, queue, time, exchange, keys = fields.values()
        is_own = (
            (count[0], reason[0], queue[0], time[0], exchange[0], keys[0]) == _OWN_TAGS
            and fields.get(_ORIGINAL, b"S")[0] == _LONGSTR
            and count[1:] < _MAX_COUNT.to_bytes(8, "big")
            and len(item) == 5 + sum([1 + len(name) + len(fields[name]) for name in names])
            and all(key[0] == _LONGSTR for key in split_items(keys))
        )
        if is_own:
            return (_text(queue), _text(reason)), item
    death = _repaired(decode_value(item)[1])
    return None if death is None else (_death(death), encode_value(("table", death)))


def _text(value: bytes) -> str:
    return value[5:].decode("utf-8", "surrogateescape")


def _repaired(table: Table) -> Table | None:
    """Return a death that a client may have written with the proper types, None if that is impossible."""
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
        or not {count[0], time[0]} <= _COUNTS_OR_TIMES
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
        "routing-keys": ("array", [("longstr", key) for key in strings(keys)]),
    }


def _since_reject(deaths: Sequence[Death]) -> set[str]:
    """Return the queues in which a message has died since it was last rejected."""
    names = set()
    for name, reason in deaths:
        if reason == "rejected":
            break
        names.add(name)
    return names


class Cycles:
    """Drops dead letters that would cycle, and logs each cycle once (rabbit_dead_letter:detect_cycles/3)."""

    MAX_LOGGED = 1000  # maximum number of cycles that are logged: clients can create any number of them

    def __init__(self) -> None:
        self._logged: set[int] = set()

    def remove_cycling(self, queues: Sequence[Queue], deaths: Sequence[Death]) -> Sequence[Queue]:
        """Return the queues that may receive a dead letter, of those that it is routed to."""
        names = _since_reject(deaths)
        cycling = dict.fromkeys([queue.name for queue in queues if queue.name in names])
        if not cycling:
            return queues
        path = tuple(queue for queue, _ in deaths)
        for name in cycling:
            if len(self._logged) >= self.MAX_LOGGED:
                break
            cycle = (name, *path)
            if hash(cycle) not in self._logged:
                self._logged.add(hash(cycle))
                text = "message dropped: dead-letter cycle without a reject: %s (newest first); logged once per cycle"
                log.warning(text, ", ".join(cycle))
        return [queue for queue in queues if queue.name not in cycling]


class DeadLettering:
    """Publishes the dead letters of one vhost, whose `router` finds exchanges; `route` is its `route_anyway`."""

    def __init__(
        self,
        router: Router,
        route: Callable[[Exchange, Sequence[str], Headers], Sequence[Queue]],
        turn: Turn,
        context: NodeContext,
        blob_threshold: int,
        most_deaths: int = MOST_DEATHS,
        compatibility: QueueCompatibility = _AS_3_13,
    ) -> None:
        self._compatibility = compatibility
        self._router = router
        self._route = route
        self._turn = turn
        self._context = context
        self._blob_threshold = blob_threshold
        self._most_deaths = most_deaths
        self._cycles = Cycles()
        self._deliveries = Deliveries(turn)
        self.tails_on: Callable[[Exchange], Sequence[ExchangeTap]] = lambda _exchange: ()
        """Returns the tails that get dead letters to an exchange."""

    def publish(
        self, queue: Queue, letters: Sequence[tuple[int, Message]], reason: str
    ) -> tuple[int, Sequence[int]]:
        """Publish unacked messages of a queue; see `broker.queue.interfaces.ParentVHost`."""
        name = queue.settings.dead_letter_exchange
        exchange = None if name is None else self._router.get(name)
        if exchange is None:
            if reason != REJECTED:
                for _, message in letters:
                    if message.promise is not None:
                        message.promise.refused()
            return len(letters), [seq_id for seq_id, _ in letters]
        moved: list[int] = []
        count = 0
        made = self._letters(queue, letters, reason, exchange)
        # where headers or chance decide, each letter has a route of its own
        for _, run in groupby(made, key=itemgetter(2 if self._router.needs_headers(exchange) else 3)):
            discarded = list(run)
            count += len(discarded)
            moved += self._publish_run(queue, discarded, reason, exchange)
        self._context.totals.dead_lettered(queue.type, reason, count)
        return count, moved

    def _publish_run(
        self, queue: Queue, discarded: Sequence[Discarded], reason: str, exchange: Exchange
    ) -> list[int]:
        """Publish messages that share what is rewritten; return the seq_ids of those that can be removed."""
        rewritten, count = discarded[0][3], len(discarded)
        keys = rewritten.routing_keys
        exchange.lookups += count
        reached = self._route(exchange, keys, rewritten.headers)
        targets = self._cycles.remove_cycling(reached, rewritten.deaths)
        queue.tally.cycled += count * (len(reached) - len(targets))
        exchange.tally(len(targets), keys[0]).published += count
        for tail in self.tails_on(exchange):
            for _, _, letter, _ in discarded:
                tail.dead_lettered(exchange, keys, letter, targets)
        if self._is_plain(discarded, targets):
            letters = [letter for _, _, letter, _ in discarded]
            distribute_all(targets, letters, persistent=is_persistent(letters[0].content))
            for target in targets:
                target.tally.forwarded += count
            return [seq_id for seq_id, _, _, _ in discarded]
        is_rejected = reason == REJECTED
        return [
            seq_id
            for seq_id, original, letter, _ in discarded
            if self._send(queue, seq_id, original, letter, targets, is_rejected=is_rejected)
        ]

    def _letters(
        self, queue: Queue, letters: Sequence[tuple[int, Message]], reason: str, exchange: Exchange
    ) -> Iterator[Discarded]:
        """Yield unacked messages with their dead letters and what these share, at least one, while there is time."""
        now = self._context.clock() // 1000
        is_over = self._turn.slices.is_over
        for place, (seq_id, message) in enumerate(letters):
            if place and is_over():
                break
            yield (
                seq_id,
                message,
                *dead_letter(
                    message,
                    queue=queue.name,
                    reason=reason,
                    exchange=exchange.name,
                    routing_key=queue.settings.dead_letter_routing_key,
                    now=now,
                    most_deaths=self._most_deaths,
                    compatibility=self._compatibility,
                ),
            )

    def _is_plain(self, discarded: Sequence[Discarded], targets: Sequence[Queue]) -> bool:
        """Return whether queues can take a run at once: no publisher waits for one of it, and no queue has limits."""
        return (
            len(discarded) > 1
            and 0 < len(targets) <= WIDE
            and not self._deliveries.has_input
            and all(queue.limits is None for queue in targets)
            and not any(is_awaited(original) for _, original, _, _ in discarded)
            and max(len(letter.content) for _, _, letter, _ in discarded) < self._blob_threshold
        )

    def _send(
        self,
        queue: Queue,
        seq_id: int,
        original: Message,
        letter: Message,
        targets: Sequence[Queue],
        *,
        is_rejected: bool,
    ) -> bool:
        """Send a dead letter on its way; False if the original has to stay until the dead letter is safe."""
        persistent = is_persistent(letter.content)
        copies = Copies(
            letter,
            targets,
            persistent=persistent,
            promise=joined(original),
            awaits=False,
            nacks=original.promise is not None and not is_rejected,
            on_safe=partial(queue.remove_moved, seq_id) if seq_id >= 0 else None,
            blob_threshold=self._blob_threshold,
        )
        if not targets:
            copies.refuse()
        # a target may refuse it, which puts it into other queues
        is_stored = copies.is_stored or is_stored_by((queue,), persistent=persistent)
        self._deliveries.add(targets, copies.forward, copies, is_stored=is_stored)
        return not copies.stays

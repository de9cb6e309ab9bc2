"""Effective settings of a queue, merged from its arguments and policies.

Arguments are typed fields of an AMQP table; the definition of a policy has plain values with the same names without
`x-`. If both set a key, the smaller number applies, or the argument if it is not a number (`res_arg` and `res_min` of
rabbit_amqqueue_process). Of a policy and an operator policy the smaller number applies too, or the operator policy's
value if it is not a number (rabbit_policies:merge_policy_value).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from leveret.broker.amqp.tables import Table
from leveret.broker.queue.arguments import (
    BODY,
    CLASSIC,
    ID_KEYS,
    MAX_EXPIRY_MS,
    OF_IDS,
    OVERFLOWS,
    QUORUM,
    RUNNING,
    STREAM,
    WINDOW,
    age_ms,
    queue_type,
)
from leveret.confirm.modes import STANDARD, effective_mode

DROP_HEAD, _, REJECT_PUBLISH_DLX = OVERFLOWS
RETAIN_OCTETS = 128 * 1024 * 1024  # default of `retain_octets`: the largest message fits
DEDUPLICATE_MS = 10 * 60 * 1000  # default of `deduplicate_for` in the mode `window`
_LONGEST = 1 << 56  # milliseconds of the longest delay, whatever the multiplier
_BITS = 32
_GOLDEN = 0x9E3779B9  # golden ratio, as a fraction of 2^32: its multiples are spread evenly
COUNTED = 1 << 62  # limit of quorum queues without one: deliveries are counted, never limited


class Backoff(NamedTuple):
    """The delays of retries, as RabbitMQ 4.3 computes them but for multiplier and jitter."""

    type: str
    """Which messages wait: 'failed' deliveries (rejected, or lost by their consumer), those that a consumer has
    'returned' (nack, recover), or 'all'."""
    least: int  # milliseconds before the first retry
    most: int  # maximum of milliseconds
    multiplier: int | None = None  # what each delay is multiplied by for the next; None: `least` is added
    jitter: int = 0  # percentage by which a delay may be shorter, so that messages come back apart

    def delay(self, failures: int, *, failed: bool, seq_id: int = 0) -> int:
        """Return the milliseconds that a message waits which has failed so often; 0 for none.

        With jitter `seq_id` and the number of failures determine by how much the delay is shorter.
        """
        if self.type != "all" and failed is not (self.type == "failed"):
            return 0
        times = max(1, failures)
        if self.multiplier is None:
            delay = min(self.least * times, self.most)
        else:
            exponent = min(times - 1, _LONGEST.bit_length())
            delay = min(self.least * int(self.multiplier**exponent), self.most)
        share = (seq_id + times) * _GOLDEN % (1 << _BITS)
        return delay - (delay * self.jitter * share // 100 >> _BITS)


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Settings of a queue; None is no limit, or not set."""

    message_ttl: int | None = None  # time to live of messages in ms, from their arrival
    expires: int | None = None  # time in ms after which the unused queue is deleted
    max_length: int | None = None  # maximum number of ready messages
    max_octets: int | None = None  # maximum total body size of ready messages in bytes
    overflow: str = DROP_HEAD  # overflow behaviour of a full queue: drop the head, or reject publishes
    dead_letter_exchange: str | None = None  # exchange for discarded messages; '' is the default exchange
    dead_letter_routing_key: str | None = None  # routing key of dead letters; None for that of the message
    delivery_limit: int | None = None  # requeues after which a message is discarded; `COUNTED` for no limit
    consumer_timeout: int | None = None  # ms that a delivery may be unacked; 0: no limit, None: the default
    lazy: bool = False  # true to keep as little as possible in memory
    confirm_mode: str = STANDARD
    """The effective confirm mode, one of `confirm.modes.CONFIRM_MODES`; it may differ from the requested one
    (`queue_settings`)."""
    retain_for: int = 0  # time in ms for which acked messages are retained for a replay; 0 to retain none
    retain_octets: int = RETAIN_OCTETS  # maximum total size of retained messages in bytes
    allow_hold: bool = False  # true to hold messages with `x-deliver-at` or `x-delay` until then
    hold_until_header: str | None = None  # name of another header with such a time; None for none
    max_held: int | None = None  # maximum number of held messages
    retry: Backoff | None = None  # the delays of requeued messages; None to deliver them again at once
    deduplicate: str | None = None
    """The id of a message, so that the queue takes it once: 'message_id', 'body', or a header as 'header:NAME';
    None to take all."""
    deduplicate_mode: str = RUNNING  # one of `arguments.DEDUPLICATE_MODES`
    deduplicate_for: int = 0
    """Time in ms for which an id is known, from the publish or, in the mode `running`, from the end of its message."""
    max_age: int | None = None  # time in ms after which a stream deletes messages
    segment_octets: int | None = None  # bytes of messages that a stream deletes together

    @property
    def holds(self) -> bool:
        """True if messages may be held."""
        return self.allow_hold or self.hold_until_header is not None

    @property
    def on_publish(self) -> tuple[bool, bool, bool, bool]:
        """The things that matter to a publish: it may be refused, or held, or be a repeat, and its body is its id."""
        return self.rejects, self.holds, self.deduplicate is not None, self.deduplicate == BODY

    @property
    def once(self) -> tuple[str | None, str]:
        """The settings of deduplication for which the ids that are known hold."""
        return self.deduplicate, self.deduplicate_mode

    @property
    def rejects(self) -> bool:
        """True if publishes may be refused."""
        return self.overflow != DROP_HEAD and (self.max_length is not None or self.max_octets is not None)

    @property
    def retains(self) -> bool:
        """True if acked messages are retained."""
        return bool(self.retain_for and self.retain_octets)

    @property
    def needs_limits(self) -> bool:
        """True if the queue needs `QueueLimits`."""
        return not (
            self.message_ttl is None
            and self.expires is None
            and self.max_length is None
            and self.max_octets is None
            and self.dead_letter_exchange is None
            and self.delivery_limit is None
            and not self.retains
            and not self.holds
            and self.retry is None
            and self.deduplicate is None
        )


NO_SETTINGS = QueueSettings()

LIMITS = frozenset(
    (
        "consumer-timeout", "deduplicate-for", "delayed-retry-max", "delivery-limit", "expires", "max-held",
        "max-in-memory-bytes", "max-in-memory-length", "max-length",
        "max-length-bytes", "message-ttl", "retain-bytes", "retain-for",
    )
)  # fmt: skip
"""Keys of policies whose smaller value applies, if several give one."""


_LARGER = frozenset(("delayed-retry-min",))  # keys of which the larger value of policies applies


def strictest(limits: Collection[int]) -> int:
    """Return the limit that applies of several (one at least): the smallest, or if all are negative none."""
    return min([limit for limit in limits if limit >= 0], default=max(limits))


def merged_definition(policy: Mapping[str, Any], operator: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the definitions of a policy and an operator policy, sorted by key like each of them."""
    if not policy or not operator:
        return dict(policy or operator)
    merged = {**policy, **operator}
    for key in policy.keys() & operator.keys():
        if key in _LARGER:
            merged[key] = max(policy[key], operator[key])
        elif key in LIMITS:
            merged[key] = strictest((policy[key], operator[key]))
    return dict(sorted(merged.items()))


def queue_settings(
    arguments: Table,
    definition: Mapping[str, Any] | None = None,
    confirm_mode: str = STANDARD,
    quorum_limit: int | None = None,
) -> QueueSettings:
    """Return the effective settings of a queue; times in the definition of its policies may exceed the maximum.

    `quorum_limit`: the delivery limit of a quorum queue for which none is given.
    """
    if not arguments and not definition and confirm_mode == STANDARD:
        return NO_SETTINGS
    merged = definition or {}

    def either(key: str) -> Any:
        field = arguments.get(f"x-{key}")
        return merged.get(key) if field is None else field[1]

    def smaller(key: str) -> int | None:
        field = arguments.get(f"x-{key}")
        asked: list[int] = [
            value for value in (field and field[1], merged.get(key)) if isinstance(value, int)
        ]
        return strictest(asked) if asked else None

    def time(key: str) -> int | None:
        asked = smaller(key)
        return None if asked is None else min(asked, MAX_EXPIRY_MS)

    limit, octets = smaller("delivery-limit"), smaller("max-length-bytes")
    retain_for, retain_octets = time("retain-for") or 0, smaller("retain-bytes")
    dead_letter_exchange = either("dead-letter-exchange")
    is_quorum = queue_type(arguments) == QUORUM
    if limit is None and is_quorum:
        limit = quorum_limit
    if limit is None or limit < 0:
        limit = COUNTED if is_quorum else None
    retry = _backoff(merged.get("delayed-retry-type") or either("delayed-retry-type"), smaller)
    if retry is not None and limit is None:
        limit = COUNTED
    deduplicate, known_for = either("deduplicate"), time("deduplicate-for")
    knows_a_time = known_for or queue_type(arguments) == STREAM
    deduplicate_mode = either("deduplicate-mode") or (WINDOW if knows_a_time else RUNNING)
    if known_for is None and deduplicate_mode == WINDOW:
        known_for = DEDUPLICATE_MS
    needs = (limit, octets, dead_letter_exchange, retain_for, deduplicate)
    mode = effective_mode(
        either("confirm-mode") or confirm_mode,
        is_quorum=queue_type(arguments) != CLASSIC,  # of the other types, too
        needs_delivered=needs != (None, None, None, 0, None),
    )
    return QueueSettings(
        message_ttl=time("message-ttl"),
        expires=time("expires"),
        max_length=smaller("max-length"),
        max_octets=octets,
        overflow=either("overflow") or DROP_HEAD,
        dead_letter_exchange=dead_letter_exchange,
        dead_letter_routing_key=either("dead-letter-routing-key"),
        delivery_limit=limit,
        consumer_timeout=smaller("consumer-timeout"),
        lazy=either("queue-mode") == "lazy",
        confirm_mode=mode,
        retain_for=retain_for,
        retain_octets=RETAIN_OCTETS if retain_octets is None else retain_octets,
        allow_hold=either("allow-hold") is True,
        hold_until_header=either("hold-until-header"),
        max_held=smaller("max-held"),
        retry=retry,
        deduplicate=deduplicate,
        deduplicate_mode=deduplicate_mode,
        deduplicate_for=known_for or 0,
        max_age=None if (age := either("max-age")) is None else age_ms(age),
        segment_octets=smaller("stream-max-segment-size-bytes"),
    )


def exchange_settings(arguments: Table, definition: Mapping[str, Any]) -> QueueSettings:
    """Return the settings of an exchange, for a time after the publish: policies with another mode are for queues."""
    if definition.get("deduplicate-mode", WINDOW) != WINDOW:
        definition = {}
    own = {key: field for key, field in arguments.items() if key in OF_IDS}
    own["x-deduplicate-mode"] = "longstr", WINDOW
    settings = queue_settings(own, {key: definition[key] for key in ID_KEYS if key in definition})
    return NO_SETTINGS if settings.deduplicate is None else settings


def delays_nothing(arguments: Table, settings: QueueSettings) -> bool:
    """Return whether a queue has a type of delayed retries, and no delays."""
    asked = arguments.get("x-delayed-retry-type")
    return asked is not None and asked[1] != "disabled" and settings.retry is None


def _backoff(kind: str | None, smaller: Callable[[str], int | None]) -> Backoff | None:
    """Return the delays of retries; None without a type and a minimum, as in RabbitMQ 4.3."""
    # The maximum is the minimum unless it is given, as there, or there is a multiplier.
    least, most, multiplier, jitter = [
        smaller(f"delayed-retry-{each}") for each in ("min", "max", "multiplier", "jitter")
    ]
    if kind in {None, "disabled"} or not least:
        return None
    most = most or (least if multiplier is None else MAX_EXPIRY_MS)
    return Backoff(kind, least, most, multiplier, min(jitter or 0, 100))

"""Validation of the arguments of declare and consume, and equivalence of redeclarations.

The checks, their order and their texts are RabbitMQ 3.13's, because clients match on the texts and only the first of
several errors is reported. Where 3.10 and 3.13 differ, 3.13 applies:

- `x-queue-type` `undefined` is `classic` (3.10: unsupported queue type).
- Of several arguments of other queue types, the first by name is reported unless `x-queue-type` is given,
  then the first in the table (3.10: always the latter).

Intentional differences from RabbitMQ:

- Queues have `x-retain-for`, `x-retain-bytes`, `x-allow-hold`, `x-hold-until-header`, `x-max-held` and
  `x-deduplicate*`, classic ones an `x-confirm-mode`.
- Classic queues may have an `x-delivery-limit`, too. That and `x-consumer-timeout` must be numbers; a negative limit is
  none, as in 4.x. The timeout is compared if a redeclaration gives one (3.13: never).
- An unknown `x-queue-master-locator` is accepted, and a decimal in a redeclaration is unequal, where RabbitMQ crashes
  (541).
- Texts show a string that is not printable Latin-1 as a string instead of a list of numbers.

`compatibility.queue_arguments` chooses the rules of RabbitMQ 4.3 instead.

Each check raises `AMQPError` 406, but for `check_locator`.
"""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, Protocol

from leveret.broker.amqp.properties import priority
from leveret.broker.amqp.tables import (
    INTEGERS,
    Field,
    Table,
    argument_text,
    string_text,
    strings,
    term_text,
    value_text,
)
from leveret.broker.errors import AMQPError, ReplyCode, denied_feature, precondition_failed, resource
from leveret.confirm.modes import CONFIRM_MODES
from leveret.exchanges.base import Exchange

MAX_EXPIRY_MS = 315_360_000_000  # ten years: RabbitMQ's most for `x-expires`, `x-message-ttl`, `expiration`

CLASSIC = "classic"
QUORUM = "quorum"
STREAM = "stream"
TYPES: Final = (CLASSIC, QUORUM, STREAM)
OVERFLOWS = ("drop-head", "reject-publish", "reject-publish-dlx")  # of `x-overflow`, the default first

MESSAGE_ID, BODY, HEADER = "message_id", "body", "header:"  # of `x-deduplicate`; a name follows the last
RETRY_TYPES = ("all", "failed", "returned", "disabled")  # of `x-delayed-retry-type`
RETRY_KEYS = tuple(f"delayed-retry-{each}" for each in ("type", "min", "max", "multiplier", "jitter"))
"""Settings of policies, and with `x-` before their names arguments, that give the delays."""
DEDUPLICATE_MODES = WINDOW, QUEUED, RUNNING = "window", "queued", "running"  # of `x-deduplicate-mode`
MOST_WINDOW_MS = 30 * 24 * 60 * 60 * 1000  # thirty days: the maximum of `x-deduplicate-for`

AGES: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3600, "m": 60, "s": 1}  # seconds of each
_AGE_DIGITS = 9
OFFSETS: Final = ("first", "last", "next")  # values of `x-stream-offset` that are names
MOST_SEGMENT: Final = 3_000_000_000  # maximum of `x-stream-max-segment-size-bytes`
TRACKING: Final = "x-stream-automatic-offset-tracking"  # as in LavinMQ
_UNDEFINED = ("longstr", "undefined")
_DEAD_LETTER_KEY = "x-dead-letter-routing-key"
_FAILOVER = "x-cancel-on-ha-failover"
_LEADER_LOCATORS = ("client-local", "balanced", "random", "least-leaders")  # the last two are deprecated

_Validator = Callable[[Field], object]


class QueueShape(Protocol):
    """Properties of an existing queue for `check_queue_equivalence`; an exclusive queue is not durable."""

    durable: bool
    auto_delete: bool
    arguments: Table


class _InvalidArgumentError(Exception):
    """An argument is invalid; the text is the Erlang term that RabbitMQ reports to the client."""


def _integer(field: Field) -> int:
    kind, value = field
    if kind not in INTEGERS or not isinstance(value, int):
        raise _InvalidArgumentError(f'"expected integer, got {kind}"')
    return value


def _non_negative(field: Field) -> int:
    value = _integer(field)
    if value < 0:
        raise _InvalidArgumentError(f"{{value_negative,{value}}}")
    return value


def _at_most(limit: int, fault: str) -> _Validator:
    def check(field: Field) -> None:
        value = _non_negative(field)
        if value > limit:
            raise _InvalidArgumentError(f"{{{fault},{value}}}")

    return check


_expiry = _at_most(MAX_EXPIRY_MS, "value_too_large")


def _positive(field: Field) -> None:
    if _non_negative(field) == 0:
        raise _InvalidArgumentError("{value_zero,0}")


def _positive_expiry(field: Field) -> None:
    if _integer(field) == 0:
        raise _InvalidArgumentError("{value_zero,0}")
    _expiry(field)


def _queue_version(*allowed: int) -> _Validator:
    def check(field: Field) -> None:
        if _non_negative(field) not in allowed:
            raise _unsupported("version", str(field[1]))

    return check


def _bool(field: Field) -> None:
    if field[0] != "bool":
        raise _InvalidArgumentError(f"{{unacceptable_type,{field[0]}}}")


def _anything(field: Field) -> None:
    """Accept any value: the argument has no effect in RabbitMQ 4.3."""


def _string(field: Field) -> str:
    kind, value = field
    if kind != "longstr" or not isinstance(value, str):
        raise _InvalidArgumentError(f"{{unacceptable_type,{kind}}}")
    return value


def is_id(value: str) -> bool:
    """Return whether a value of `x-deduplicate` says what the id of a message is."""
    return value in {MESSAGE_ID, BODY} or (value.startswith(HEADER) and value != HEADER)


def age_ms(text: str) -> int:
    """Return an age such as `7D`, or an interval, in ms; raises ValueError for any other text."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdigit() and unit in AGES and len(number) <= _AGE_DIGITS):
        raise ValueError(text)
    return int(number) * AGES[unit] * 1000


def is_age(text: str) -> bool:
    """Return whether a text is an age that is more than nothing."""
    with suppress(ValueError):
        return age_ms(text) > 0
    return False


def _filter(field: Field) -> None:
    if field[0] == "array" and not strings(field):
        raise _InvalidArgumentError(f"{{invalid_stream_filter_arg,{{array,{term_text(field)}}}}}")


def _offset(field: Field) -> None:
    kind, value = field
    if kind == "timestamp" or (kind in INTEGERS and isinstance(value, int)) or value_text(field) in OFFSETS:
        return
    if kind == "longstr" and is_age(str(value)):
        return
    shown = f"<<{string_text(str(value).encode('utf-8', 'surrogateescape'))}>>" if value else "<<>>"
    shown = shown if kind == "longstr" else term_text(field)
    raise _InvalidArgumentError(f"{{invalid_stream_offset_arg,{{{kind},{shown}}}}}")


def _crashing(check: Callable[[Field], None], field: Field) -> None:
    try:
        check(field)
    except _InvalidArgumentError as error:  # at which RabbitMQ's channel crashes, but for one that is a text
        raise error if field[0] == "longstr" else AMQPError(ReplyCode.INTERNAL_ERROR) from None


def _text(fault: str, is_valid: Callable[[str], bool]) -> _Validator:
    def check(field: Field) -> None:
        if not is_valid(_string(field)):
            raise _InvalidArgumentError(fault)

    return check


def _one_of(fault: str, *allowed: str) -> _Validator:
    return _text(fault, allowed.__contains__)


def _unsupported(what: str, value: str) -> _InvalidArgumentError:
    text = f"unsupported queue {what} '{value}'"
    return _InvalidArgumentError(string_text(text.encode("utf-8", "surrogateescape")) or f'"{text}"')


def _supported(what: str, *allowed: str) -> _Validator:
    def check(field: Field) -> None:
        value = _string(field)
        if value not in allowed:
            raise _unsupported(what, value)

    return check


class _QueueType(NamedTuple):
    """The arguments of a queue type, as in the `capabilities` of RabbitMQ's module of that name."""

    module: str
    arguments: frozenset[str]
    compared: tuple[str, ...]  # arguments that a redeclaration must repeat, in the order of RabbitMQ's checks
    foreign: frozenset[str]  # arguments of other types, which are refused
    consume_arguments: frozenset[str]
    foreign_consume_arguments: frozenset[str]


# In RabbitMQ's order of validation.
_QUEUE_VALIDATORS: Mapping[str, _Validator] = {
    "x-expires": _positive_expiry,
    "x-message-ttl": _expiry,
    "x-dead-letter-exchange": _string,
    _DEAD_LETTER_KEY: _string,
    "x-dead-letter-strategy": _one_of("invalid_dlx_strategy", "at-most-once", "at-least-once"),
    "x-max-length": _non_negative,
    "x-max-length-bytes": _non_negative,
    "x-max-in-memory-length": _non_negative,
    "x-max-in-memory-bytes": _non_negative,
    "x-max-priority": _at_most(255, "max_value_exceeded"),
    "x-overflow": _one_of("invalid_overflow", *OVERFLOWS),
    "x-queue-mode": _supported("mode", "default", "lazy"),
    "x-queue-version": _queue_version(1, 2),
    "x-single-active-consumer": _bool,
    "x-queue-type": _supported("type", *TYPES, "undefined"),
    "x-quorum-initial-group-size": _positive,
    "x-queue-leader-locator": _one_of("invalid_queue_locator_arg", *_LEADER_LOCATORS),
    "x-delivery-limit": _integer,
    "x-max-age": _text("invalid_max_age", is_age),
    "x-stream-max-segment-size-bytes": _non_negative,
    "x-initial-cluster-size": _positive,
    "x-consumer-timeout": _non_negative,
    "x-consumer-disconnected-timeout": _non_negative,
    "x-confirm-mode": _one_of("invalid_confirm_mode", *CONFIRM_MODES),
    "x-retain-for": _expiry,
    "x-retain-bytes": _non_negative,
    "x-allow-hold": _bool,
    "x-hold-until-header": _text("empty_header_name", bool),
    "x-max-held": _non_negative,
    "x-deduplicate": _text("invalid_deduplicate", is_id),
    "x-deduplicate-mode": _one_of("invalid_deduplicate_mode", *DEDUPLICATE_MODES),
    "x-deduplicate-for": _at_most(MOST_WINDOW_MS, "value_too_large"),
    "x-delayed-retry-type": _one_of("invalid_delayed_retry_type", *RETRY_TYPES),
    "x-delayed-retry-min": _positive,
    "x-delayed-retry-max": _positive,
    "x-delayed-retry-multiplier": _positive,
    "x-delayed-retry-jitter": _at_most(100, "value_too_large"),
}
_QUEUE_VALIDATORS_4: Mapping[str, _Validator] = {
    **_QUEUE_VALIDATORS,
    "x-queue-mode": _anything,
    "x-queue-version": _queue_version(2),
}
"""Those of RabbitMQ 4.3, which takes any value of `x-delayed-retry-*`: a hot loop, if it means nothing."""
_CONSUME_VALIDATORS: Mapping[str, _Validator] = {
    "x-priority": _integer,
    _FAILOVER: _bool,
    "x-consumer-timeout": _non_negative,
    "x-stream-offset": _offset,
    "x-stream-filter": _filter,
    TRACKING: _bool,
}
_CONSUME_VALIDATORS_4: Mapping[str, _Validator] = {
    **_CONSUME_VALIDATORS,
    _FAILOVER: _anything,
    "x-stream-offset": partial(_crashing, _offset),
    "x-stream-filter": partial(_crashing, _filter),
}

_DELAYED_RETRY = tuple(f"x-{key}" for key in RETRY_KEYS)
_OF_HOLDS = ("x-allow-hold", "x-hold-until-header", "x-max-held")
ID_KEYS = ("deduplicate", "deduplicate-mode", "deduplicate-for")  # of policies; arguments have `x-` before
OF_IDS = tuple(f"x-{key}" for key in ID_KEYS)
_OF_CLASSIC = (
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", _DEAD_LETTER_KEY, "x-max-length", "x-max-length-bytes",
    "x-max-priority", "x-overflow", "x-queue-mode", "x-queue-version", "x-single-active-consumer",
    "x-queue-type", "x-queue-master-locator", "x-delivery-limit", "x-confirm-mode", "x-retain-for", "x-retain-bytes",
    *_OF_HOLDS, *_DELAYED_RETRY, *OF_IDS,
)  # fmt: skip
_OF_QUORUM = (
    "x-dead-letter-exchange", _DEAD_LETTER_KEY, "x-dead-letter-strategy", "x-expires", "x-max-length",
    "x-max-length-bytes", "x-max-in-memory-length", "x-max-in-memory-bytes", "x-overflow", "x-single-active-consumer",
    "x-queue-type", "x-quorum-initial-group-size", "x-delivery-limit", "x-message-ttl", "x-queue-leader-locator",
    "x-retain-for", "x-retain-bytes", *_OF_HOLDS, *_DELAYED_RETRY, *OF_IDS,
)  # fmt: skip
# `x-stream-filter-size-bytes` is not among them in RabbitMQ either.
_OF_STREAMS = (
    "x-max-length-bytes", "x-queue-type", "x-max-age", "x-stream-max-segment-size-bytes", "x-initial-cluster-size",
    "x-queue-leader-locator", *_OF_HOLDS, "x-deduplicate", "x-deduplicate-for",
)  # fmt: skip
_CONSUME_CLASSIC = frozenset((_FAILOVER, "x-priority", "x-credit"))
_CONSUME_QUORUM = frozenset(("x-priority", "x-credit"))
_OF_ANY = frozenset((*_OF_CLASSIC, *_OF_QUORUM, *_OF_STREAMS))
OF_QUEUES = _OF_ANY | _QUEUE_VALIDATORS.keys()  # those with an effect, or a meaning in RabbitMQ
FILTER_SIZE: Final = "x-stream-filter-size-bytes"
FILTER_SIZES: Final = range(16, 256)  # values of that argument, which has no effect here
_TIMEOUT: Final = "x-consumer-timeout"
_QUORUM_TIMEOUTS: Final = ("x-consumer-disconnected-timeout", _TIMEOUT)
"""In RabbitMQ 4.3. The first is for nodes that do not answer: it has no effect on a single one."""
_CONSUME_STREAM = frozenset(
    ("x-credit", "x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered", TRACKING)
)
_CONSUME_ANY = _CONSUME_CLASSIC | _CONSUME_QUORUM | _CONSUME_STREAM


def _type(
    module: str,
    known: Collection[str],
    consume: frozenset[str],
    any_type: frozenset[str] = _OF_ANY,
    ours: frozenset[str] = frozenset((_TIMEOUT,)),
) -> _QueueType:
    """Return a type; `ours` are arguments of queues and consumers that a redeclaration may leave out."""
    foreign = _CONSUME_ANY | {_TIMEOUT}
    return _QueueType(
        module,
        ours.union(known),
        tuple(known),
        any_type.difference(known),
        ours | consume,
        foreign - ours - consume,
    )


_TYPES = {
    CLASSIC: _type("rabbit_classic_queue", _OF_CLASSIC, _CONSUME_CLASSIC),
    QUORUM: _type("rabbit_quorum_queue", _OF_QUORUM, _CONSUME_QUORUM),
    STREAM: _type("rabbit_stream_queue", _OF_STREAMS, _CONSUME_STREAM),
}
_OF_CLASSIC_4 = [key for key in _OF_CLASSIC if key not in {"x-delivery-limit", *_DELAYED_RETRY}]
_OF_ANY_4 = _OF_ANY.union(_QUORUM_TIMEOUTS)
_OF_QUORUM_4 = (*_OF_QUORUM, *_QUORUM_TIMEOUTS)
_TYPES_4 = {
    CLASSIC: _type("rabbit_classic_queue", _OF_CLASSIC_4, _CONSUME_CLASSIC, _OF_ANY_4, frozenset()),
    QUORUM: _type("rabbit_quorum_queue", _OF_QUORUM_4, _CONSUME_CLASSIC | {_TIMEOUT}, _OF_ANY_4, frozenset()),
    STREAM: _type("rabbit_stream_queue", _OF_STREAMS, _CONSUME_STREAM | {_FAILOVER}, _OF_ANY_4, frozenset()),
}
_RULES = {  # by release
    "3.13": (_TYPES, _QUEUE_VALIDATORS, _CONSUME_VALIDATORS),
    "4.3": (_TYPES_4, _QUEUE_VALIDATORS_4, _CONSUME_VALIDATORS_4),
}


def queue_type(arguments: Table) -> str:
    """Return the type of a queue with these (valid) arguments: one of `TYPES`."""
    kind, value = arguments.get("x-queue-type", _UNDEFINED)
    return str(value) if kind == "longstr" and value in {QUORUM, STREAM} else CLASSIC


def with_default_type(
    arguments: Table, default: str, *, durable: bool, exclusive: bool, auto_delete: bool
) -> Table:
    """Return the arguments of a `queue.declare` with the queue type added, given the vhost's default ('' for none).

    If no type is given it is the default, provided that a queue with these properties (as declared) may have it, and
    otherwise classic.
    """
    if not default or "x-queue-type" in arguments:
        return arguments
    is_fit = default == CLASSIC or (durable and not exclusive and not auto_delete)
    field: Field = ("longstr", default if is_fit else CLASSIC)
    return dict(sorted({**arguments, "x-queue-type": field}.items()))


def check_may_be_generated(arguments: Table) -> None:
    """Check that the server may generate the name of a queue with these arguments; comes before all other checks."""
    kind = arguments.get("x-queue-type", _UNDEFINED)
    if kind in (("longstr", QUORUM), ("longstr", STREAM)):
        raise precondition_failed(f"Cannot declare a server-named queue for type rabbit_{kind[1]}_queue")


def check_queue_properties(
    name: str, vhost: str, *, durable: bool, exclusive: bool, auto_delete: bool, arguments: Table
) -> None:
    """Check that a new queue of another type than classic is durable, and neither exclusive nor auto-delete.

    And the values of a stream's arguments that have a limit. RabbitMQ does this last.
    """
    type_ = queue_type(arguments)
    if type_ == CLASSIC:
        return
    faults = (("auto-delete", auto_delete), ("exclusive-owner", exclusive), ("non-durable", not durable))
    for fault, found in faults:
        if found:
            raise precondition_failed(f"invalid property '{fault}' for {resource('queue', name, vhost)}")
    if type_ == STREAM:
        _, octets = arguments.get("x-stream-max-segment-size-bytes", ("", 0))
        if isinstance(octets, int) and octets > MOST_SEGMENT:
            raise precondition_failed("Exceeded max value for x-stream-max-segment-size-bytes")
        _, size = arguments.get(FILTER_SIZE, ("", FILTER_SIZES[0]))
        if not (isinstance(size, int) and size in FILTER_SIZES):
            raise precondition_failed(f"Invalid value for {FILTER_SIZE}")


class Priorities(NamedTuple):
    """The priorities that a queue distinguishes, 0 to `highest` (0: none); a message without one has `default`.

    `expires_each`: the head of each priority expires, not of the highest one alone.
    """

    highest: int
    default: int = 0
    expires_each: bool = False

    @property
    def of_content(self) -> Callable[[bytes], int]:
        """The function that returns the priority in the content of a message; it is called for each."""
        return partial(priority, default=self.default) if self.default else priority


STRICT: Final = Priorities(31, 4, expires_each=True)  # those of quorum queues in RabbitMQ 4.3


def priorities_of(arguments: Table, *, strict: bool = False) -> Priorities:
    """Return the priorities of a queue with these arguments; `strict`: quorum queues have some."""
    if strict and queue_type(arguments) == QUORUM:
        return STRICT
    return Priorities(int(arguments.get("x-max-priority", ("signedint", 0))[1]))


def check_dead_letter_exchange_type(name: str, vhost: str, arguments: Table) -> None:
    """Check that `x-dead-letter-exchange`, if given, is a string.

    RabbitMQ does this for a new queue only, after the equivalence check, before it asks for read permission on the
    queue and write permission on the dead letter exchange, and before `check_queue_arguments`.
    """
    _check_name_argument("x-dead-letter-exchange", resource("queue", name, vhost), arguments)


def check_exchange_arguments(name: str, vhost: str, arguments: Table) -> None:
    """Check that `alternate-exchange`, if given, is a string, and our own arguments; before permissions."""
    what = resource("exchange", name, vhost)
    _check_name_argument("alternate-exchange", what, arguments)
    validators = {**_QUEUE_VALIDATORS, "x-deduplicate-mode": _one_of("invalid_deduplicate_mode", WINDOW)}
    for key in OF_IDS:
        _validate(key, validators[key], what, arguments)


def check_queue_arguments(name: str, vhost: str, arguments: Table, release: str = "3.13") -> None:
    """Validate the arguments of a new queue: its type, then the values, then whether it may have each of them.

    `release`: the RabbitMQ whose rules apply, 3.13 or 4.3.
    """
    what = resource("queue", name, vhost)
    types, validators, _ = _RULES[release]
    _validate("x-queue-type", validators["x-queue-type"], what, arguments)
    type_ = types[queue_type(arguments)]
    for key, validator in validators.items():
        if key in type_.arguments:
            _validate(key, validator, what, arguments)
            if key == _DEAD_LETTER_KEY and key in arguments and "x-dead-letter-exchange" not in arguments:
                raise precondition_failed(f"invalid arg '{key}' for {what}: routing_key_but_no_dlx_defined")
    # RabbitMQ adds the default type where none is given, which leaves the table sorted.
    has_type = arguments.get("x-queue-type", _UNDEFINED) != _UNDEFINED
    _refuse_foreign(type_.foreign, what, list(arguments) if has_type else sorted(arguments), type_.module)


def check_locator(arguments: Table, release: str) -> None:
    """Raise 541 if a new queue has an `x-queue-master-locator`, as in RabbitMQ 4.3, which does this last."""
    if release != "3.13" and "x-queue-master-locator" in arguments:
        raise denied_feature("queue_master_locator")


def check_consume_arguments(
    queue: str, vhost: str, arguments: Table, kind: str = CLASSIC, release: str = "3.13"
) -> int:
    """Validate the arguments of a `basic.consume` and return the consumer's priority, 0 by default.

    RabbitMQ does this after the check of exclusive ownership and before that of exclusive use. `x-credit` and unknown
    arguments are accepted.
    """
    what = resource("queue", queue, vhost)
    types, _, validators = _RULES[release]
    type_ = types[kind]
    for key, validator in validators.items():
        if key in type_.consume_arguments:
            _validate(key, validator, what, arguments)
    _refuse_foreign(type_.foreign_consume_arguments, what, list(arguments), type_.module)
    return _integer(arguments.get("x-priority", ("signedint", 0)))


def check_queue_equivalence(
    name: str,
    vhost: str,
    current: QueueShape,
    *,
    durable: bool,
    auto_delete: bool,
    arguments: Table,
    release: str = "3.13",
) -> None:
    """Check that a `queue.declare` (not passive) is equivalent to the existing queue, in the order of the keywords.

    Only the arguments known to the existing queue's type (in that `release`) are compared; no `x-queue-type` equals
    `classic`. A redeclaration may leave out `x-consumer-timeout` in 3.13, but not give one that would have no effect.
    The caller must check exclusive ownership before; an exclusive declaration is not durable.
    """
    what = resource("queue", name, vhost)
    _compare_bool("durable", what, durable, current.durable)
    _compare_bool("auto_delete", what, auto_delete, current.auto_delete)
    given = (_TIMEOUT,) if _TIMEOUT in arguments and release == "3.13" else ()
    for key in (*_RULES[release][0][queue_type(current.arguments)].compared, *given):
        tables = arguments, current.arguments
        if key == "x-max-age" and release != "3.13":
            tables = _in_ms(arguments), _in_ms(current.arguments)
        _compare_argument(key, what, *tables)


def _in_ms(arguments: Table) -> Table:
    """Return the `x-max-age` of a table as a number, as RabbitMQ 4.3 compares it."""
    with suppress(KeyError, ValueError):
        return {"x-max-age": ("long", age_ms(str(arguments["x-max-age"][1])))}
    return arguments


def check_exchange_equivalence(
    name: str,
    vhost: str,
    current: Exchange,
    *,
    kind: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Table,
) -> None:
    """Check that an `exchange.declare` (not passive) is equivalent to the exchange, in the order of the keywords.

    Of the arguments only `alternate-exchange` is compared.
    """
    what = resource("exchange", name, vhost)
    if kind != current.type:
        raise _inequivalent("type", what, f"'{_atom(kind)}'", f"'{_atom(current.type)}'")
    _compare_bool("durable", what, durable, current.durable)
    _compare_bool("auto_delete", what, auto_delete, current.auto_delete)
    _compare_bool("internal", what, internal, current.internal)
    _compare_argument("alternate-exchange", what, arguments, current.arguments)


def _check_name_argument(key: str, what: str, arguments: Table) -> None:
    kind, _value = arguments.get(key, ("longstr", ""))
    if kind != "longstr":
        raise precondition_failed(f"invalid type '{kind}' for arg '{key}' in {what}")


def _validate(key: str, validator: _Validator, what: str, arguments: Table) -> None:
    field = arguments.get(key)
    if field is None:
        return
    try:
        validator(field)
    except _InvalidArgumentError as error:
        raise precondition_failed(f"invalid arg '{key}' for {what}: {error}") from None


def _refuse_foreign(foreign: frozenset[str], what: str, keys: list[str], module: str) -> None:
    for key in keys:
        if key in foreign:
            raise precondition_failed(f"invalid arg '{key}' for {what} of queue type {module}")


def _compare_bool(key: str, what: str, received: bool, current: bool) -> None:
    if received != current:
        raise _inequivalent(key, what, f"'{str(received).lower()}'", f"'{str(current).lower()}'")


def _compare_argument(key: str, what: str, declared: Table, existing: Table) -> None:
    received, current = declared.get(key), existing.get(key)
    if received is None or current is None:
        if received is current or (key == "x-queue-type" and (received or current) == ("longstr", "classic")):
            return
        raise _inequivalent(key, what, argument_text(received), argument_text(current))
    # If both sides have a value, types are neither compared nor reported: values whose terms print the same are equal.
    if term_text(received) != term_text(current):
        raise _inequivalent(key, what, _bare(received), _bare(current))


def _bare(field: Field) -> str:
    return "none" if field[0] == "void" else f"'{value_text(field)}'"


def _inequivalent(key: str, what: str, received: str, current: str) -> AMQPError:
    differ = f"received {received} but current is {current}"
    return precondition_failed(f"inequivalent arg '{key}' for {what}: {differ}")


def _atom(name: str) -> str:
    is_bare = name[:1].islower() and name.isascii() and name.replace("_", "").replace("@", "").isalnum()
    return name if is_bare else f"'{name}'"

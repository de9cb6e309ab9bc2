"""What the arguments of declare and consume may be, and when two declarations are the same.

The checks, their order and their texts are RabbitMQ 3.13's for classic queues, because clients match on the
texts and the first of several faults is the one that is reported. Where 3.10 and 3.13 differ, 3.13 counts:

- `x-queue-type` `undefined` is `classic` (3.10: unsupported queue type).
- Of several arguments of other queue types, the first by name is reported unless `x-queue-type` is given,
  then the first in the table (3.10: always the latter).

On purpose not as RabbitMQ: queue types that do not exist here are refused with the text it has for types it
does not know; an unknown `x-queue-master-locator` is accepted and a decimal in a redeclaration is unequal,
where RabbitMQ crashes (541); the text of a string that is not printable Latin-1 stays a string instead of a
list of numbers.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from broker.amqp.tables import Field, Table, argument_text, string_text, term_text, value_text
from broker.errors import AMQPError, precondition_failed, resource

MAX_EXPIRY_MS = 315_360_000_000
"""Ten years: the longest `x-expires`, `x-message-ttl` and `expiration` that RabbitMQ takes."""

_INTEGERS = frozenset(("byte", "short", "signedint", "long", "unsignedbyte", "unsignedshort", "unsignedint"))
_UNDEFINED = ("longstr", "undefined")
_DEAD_LETTER_KEY = "x-dead-letter-routing-key"

_Validator = Callable[[Field], object]


class QueueShape(Protocol):
    """What `check_queue_equivalence` reads of an existing queue; an exclusive one is not durable."""

    durable: bool
    auto_delete: bool
    arguments: Table


class ExchangeShape(Protocol):
    """What `check_exchange_equivalence` reads of an existing exchange."""

    @property
    def type(self) -> str:
        """The exchange's type."""

    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Table


class _InvalidArgumentError(Exception):
    """An argument is not as it must be; carries the Erlang term RabbitMQ tells the client."""


def _integer(field: Field) -> int:
    kind, value = field
    if kind not in _INTEGERS or not isinstance(value, int):
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


def _positive_expiry(field: Field) -> None:
    if _integer(field) == 0:
        raise _InvalidArgumentError("{value_zero,0}")
    _expiry(field)


def _queue_version(field: Field) -> None:
    if _non_negative(field) not in {1, 2}:
        raise _unsupported("version", str(field[1]))


def _bool(field: Field) -> None:
    if field[0] != "bool":
        raise _InvalidArgumentError(f"{{unacceptable_type,{field[0]}}}")


def _string(field: Field) -> str:
    kind, value = field
    if kind != "longstr" or not isinstance(value, str):
        raise _InvalidArgumentError(f"{{unacceptable_type,{kind}}}")
    return value


def _overflow(field: Field) -> None:
    if _string(field) not in {"drop-head", "reject-publish", "reject-publish-dlx"}:
        raise _InvalidArgumentError("invalid_overflow")


def _unsupported(what: str, value: str) -> _InvalidArgumentError:
    text = f"unsupported queue {what} '{value}'"
    return _InvalidArgumentError(string_text(text.encode("utf-8", "surrogateescape")) or f'"{text}"')


def _supported(what: str, *allowed: str) -> _Validator:
    def check(field: Field) -> None:
        value = _string(field)
        if value not in allowed:
            raise _unsupported(what, value)

    return check


# In the order in which RabbitMQ looks at them, both when it validates and when it compares.
_QUEUE_VALIDATORS: Mapping[str, _Validator] = {
    "x-expires": _positive_expiry,
    "x-message-ttl": _expiry,
    "x-dead-letter-exchange": _string,
    _DEAD_LETTER_KEY: _string,
    "x-max-length": _non_negative,
    "x-max-length-bytes": _non_negative,
    "x-max-priority": _at_most(255, "max_value_exceeded"),
    "x-overflow": _overflow,
    "x-queue-mode": _supported("mode", "default", "lazy"),
    "x-queue-version": _queue_version,
    "x-single-active-consumer": _bool,
    "x-queue-type": _supported("type", "classic", "undefined"),
    "x-queue-master-locator": lambda _field: None,
}

# Arguments of quorum queues and streams; `x-stream-filter-size-bytes` is not among them in RabbitMQ either.
_FOREIGN_QUEUE_ARGUMENTS = frozenset(
    (
        "x-dead-letter-strategy", "x-delivery-limit", "x-initial-cluster-size", "x-max-age",
        "x-max-in-memory-bytes", "x-max-in-memory-length", "x-queue-leader-locator",
        "x-quorum-initial-group-size", "x-stream-max-segment-size-bytes",
    )
)  # fmt: skip

_CONSUME_VALIDATORS: Mapping[str, _Validator] = {"x-priority": _integer, "x-cancel-on-ha-failover": _bool}
_FOREIGN_CONSUME_ARGUMENTS = frozenset({"x-stream-offset"})


def max_priority(arguments: Table) -> int:
    """The highest priority of a queue declared like that; 0 is no priority queue."""
    return int(arguments.get("x-max-priority", ("signedint", 0))[1])


def check_dead_letter_exchange_type(name: str, vhost: str, arguments: Table) -> None:
    """Check that `x-dead-letter-exchange`, if given, is a string.

    RabbitMQ does this for a new queue only, after the equivalence check, before it asks for read permission
    on the queue and write permission on the dead letter exchange, and before `check_queue_arguments`.

    Raises `AMQPError` 406.
    """
    _check_name_argument("x-dead-letter-exchange", resource("queue", name, vhost), arguments)


def check_alternate_exchange_type(name: str, vhost: str, arguments: Table) -> None:
    """Check that `alternate-exchange`, if given, is a string; for a new exchange, before permissions.

    Raises `AMQPError` 406.
    """
    _check_name_argument("alternate-exchange", resource("exchange", name, vhost), arguments)


def check_queue_arguments(name: str, vhost: str, arguments: Table) -> None:
    """Validate the arguments of a `queue.declare` that is going to create a queue.

    Unknown arguments are accepted. Redeclarations are compared (`check_queue_equivalence`), never validated.

    Raises `AMQPError` 406: for the queue type, else for a wrong value, else for a foreign argument.
    """
    what = resource("queue", name, vhost)
    _validate("x-queue-type", _QUEUE_VALIDATORS["x-queue-type"], what, arguments)
    for key, validator in _QUEUE_VALIDATORS.items():
        _validate(key, validator, what, arguments)
        if key == _DEAD_LETTER_KEY and key in arguments and "x-dead-letter-exchange" not in arguments:
            raise precondition_failed(f"invalid arg '{key}' for {what}: routing_key_but_no_dlx_defined")
    # RabbitMQ adds the default type where none is given, which leaves the table sorted.
    has_type = arguments.get("x-queue-type", _UNDEFINED) != _UNDEFINED
    _refuse_foreign(_FOREIGN_QUEUE_ARGUMENTS, what, list(arguments) if has_type else sorted(arguments))


def check_consume_arguments(queue: str, vhost: str, arguments: Table) -> int:
    """Validate the arguments of a `basic.consume` and return the consumer's priority, 0 by default.

    RabbitMQ does this after the check of exclusive ownership and before that of exclusive use. `x-credit` and
    unknown arguments are accepted.

    Raises `AMQPError` 406.
    """
    what = resource("queue", queue, vhost)
    for key, validator in _CONSUME_VALIDATORS.items():
        _validate(key, validator, what, arguments)
    _refuse_foreign(_FOREIGN_CONSUME_ARGUMENTS, what, list(arguments))
    return _integer(arguments.get("x-priority", ("signedint", 0)))


def check_queue_equivalence(
    name: str, vhost: str, current: QueueShape, *, durable: bool, auto_delete: bool, arguments: Table
) -> None:
    """Check that a `queue.declare` (not passive) asks for the queue that exists.

    Only the arguments a classic queue knows are compared; no `x-queue-type` is the same as `classic`.
    Exclusive ownership is the caller's to check, before.

    `durable` must be False for an exclusive declaration, because exclusive queues are not durable.

    Raises `AMQPError` 406 for the first difference in the order durable, auto_delete, arguments.
    """
    what = resource("queue", name, vhost)
    _compare_bool("durable", what, durable, current.durable)
    _compare_bool("auto_delete", what, auto_delete, current.auto_delete)
    for key in _QUEUE_VALIDATORS:
        _compare_argument(key, what, arguments, current.arguments)


def check_exchange_equivalence(
    name: str,
    vhost: str,
    current: ExchangeShape,
    *,
    kind: str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Table,
) -> None:
    """Check that an `exchange.declare` (not passive) asks for the exchange that exists.

    Of the arguments only `alternate-exchange` counts.

    Raises `AMQPError` 406 for the first difference in the order of the keyword arguments.
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


def _refuse_foreign(foreign: frozenset[str], what: str, keys: list[str]) -> None:
    for key in keys:
        if key in foreign:
            raise precondition_failed(f"invalid arg '{key}' for {what} of queue type rabbit_classic_queue")


def _compare_bool(key: str, what: str, received: bool, current: bool) -> None:
    if received != current:
        raise _inequivalent(key, what, f"'{str(received).lower()}'", f"'{str(current).lower()}'")


def _compare_argument(key: str, what: str, declared: Table, existing: Table) -> None:
    received, current = declared.get(key), existing.get(key)
    if received is None or current is None:
        if received is current or (key == "x-queue-type" and (received or current) == ("longstr", "classic")):
            return
        raise _inequivalent(key, what, argument_text(received), argument_text(current))
    # Once both sides have a value the types do not count, nor does the text name them: terms that print
    # alike are equal.
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

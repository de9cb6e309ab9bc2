"""Error texts and their order as recorded from RabbitMQ 3.10.8, with the changes of 3.13."""

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from leveret.broker.amqp.tables import Field, Table
from leveret.broker.errors import AMQPError, ReplyCode
from leveret.broker.queue.arguments import (
    MAX_EXPIRY_MS,
    check_consume_arguments,
    check_exchange_equivalence,
    check_queue_arguments,
    check_queue_equivalence,
    with_default_type,
)

INTEGERS = ["byte", "unsignedbyte", "short", "unsignedshort", "signedint", "unsignedint", "long"]


@dataclass(slots=True)
class ExistingQueue:
    durable: bool = False
    auto_delete: bool = False
    arguments: Table = field(default_factory=dict)


def text(value: str) -> Field:
    return ("longstr", value)


def number(value: int) -> Field:
    return ("signedint", value)


def refusal(check, *args, **kwargs) -> str:
    with pytest.raises(AMQPError) as refused:
        check(*args, **kwargs)
    assert refused.value.code is ReplyCode.PRECONDITION_FAILED
    return refused.value.explanation


def redeclare(current: ExistingQueue, *, durable=False, auto_delete=False, **arguments: Field) -> None:
    table = {f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}
    check_queue_equivalence("q", "/", current, durable=durable, auto_delete=auto_delete, arguments=table)


@pytest.mark.parametrize(
    ("key", "value", "term"),
    [
        ("x-expires", number(0), "{value_zero,0}"),
        ("x-expires", number(-1), "{value_negative,-1}"),
        ("x-expires", ("long", MAX_EXPIRY_MS + 1), "{value_too_large,315360000001}"),
        ("x-expires", text("1"), '"expected integer, got longstr"'),
        ("x-message-ttl", number(-1), "{value_negative,-1}"),
        ("x-message-ttl", ("long", MAX_EXPIRY_MS + 1), "{value_too_large,315360000001}"),
        ("x-message-ttl", ("double", 1.5), '"expected integer, got double"'),
        ("x-message-ttl", ("void", None), '"expected integer, got void"'),
        ("x-message-ttl", ("bool", True), '"expected integer, got bool"'),
        ("x-message-ttl", ("timestamp", 5), '"expected integer, got timestamp"'),
        ("x-message-ttl", ("decimal", (0, 5)), '"expected integer, got decimal"'),
        ("x-dead-letter-routing-key", text("k"), "routing_key_but_no_dlx_defined"),
        ("x-dead-letter-routing-key", number(1), "{unacceptable_type,signedint}"),
        ("x-max-length", number(-1), "{value_negative,-1}"),
        ("x-max-length-bytes", ("binary", b"1"), '"expected integer, got binary"'),
        ("x-max-priority", number(256), "{max_value_exceeded,256}"),
        ("x-max-priority", ("byte", -1), "{value_negative,-1}"),
        ("x-overflow", text("drop-tail"), "invalid_overflow"),
        ("x-overflow", ("binary", b"drop-head"), "{unacceptable_type,binary}"),
        ("x-queue-mode", text("eager"), "\"unsupported queue mode 'eager'\""),
        ("x-queue-mode", text('a"b\\'), '"unsupported queue mode \'a\\"b\\\\\'"'),
        ("x-queue-mode", ("bool", True), "{unacceptable_type,bool}"),
        ("x-queue-version", number(3), "\"unsupported queue version '3'\""),
        ("x-queue-version", number(-1), "{value_negative,-1}"),
        ("x-queue-version", text("2"), '"expected integer, got longstr"'),
        ("x-single-active-consumer", number(1), "{unacceptable_type,signedint}"),
        ("x-queue-type", text("foo"), "\"unsupported queue type 'foo'\""),
        ("x-delivery-limit", text("1"), '"expected integer, got longstr"'),
        ("x-consumer-timeout", number(-1), "{value_negative,-1}"),
        ("x-consumer-timeout", ("float", 1.0), '"expected integer, got float"'),
        ("x-confirm-mode", text("eventually"), "invalid_confirm_mode"),
        ("x-confirm-mode", number(1), "{unacceptable_type,signedint}"),
        ("x-queue-type", text("super"), "\"unsupported queue type 'super'\""),
        ("x-queue-type", ("table", {}), "{unacceptable_type,table}"),
    ],
)
def test_a_bad_queue_argument_is_named_with_its_fault(key, value, term):
    """The explanation is the argument, the queue and RabbitMQ's Erlang term for the fault."""
    assert f"invalid arg '{key}' for queue 'q' in vhost '/': {term}" == refusal(
        check_queue_arguments, "q", "/", {key: value}
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"x-foo": ("array", [number(1)]), "x-stream-filter-size-bytes": text("?")},
        {"x-expires": number(1), "x-message-ttl": number(0)},
        {"x-expires": ("long", MAX_EXPIRY_MS), "x-message-ttl": ("long", MAX_EXPIRY_MS)},
        {"x-dead-letter-exchange": text(""), "x-dead-letter-routing-key": text("")},
        {"x-dead-letter-routing-key": text("k"), "x-dead-letter-exchange": text("dlx")},
        {"x-max-length": number(0), "x-max-length-bytes": ("unsignedint", 1 << 31)},
        {"x-max-priority": ("unsignedbyte", 255)},
        {
            "x-overflow": text("reject-publish-dlx"),
            "x-queue-mode": text("lazy"),
            "x-queue-version": number(2),
            "x-confirm-mode": text("consumer-ack-light"),
        },
        {"x-single-active-consumer": ("bool", False), "x-queue-type": text("classic")},
        {"x-queue-type": text("undefined"), "x-queue-master-locator": text("no such")},
        {"x-delivery-limit": number(0), "x-consumer-timeout": ("long", 1 << 40)},
        {"x-delivery-limit": number(-1)},
        {"x-queue-type": text("quorum"), "x-delivery-limit": number(-7)},
        {"x-queue-type": text("quorum"), "x-delivery-limit": number(5), "x-consumer-timeout": number(0)},
        {
            "x-queue-type": text("quorum"),
            "x-dead-letter-strategy": text("at-most-once"),
            "x-queue-leader-locator": text("balanced"),
            "x-quorum-initial-group-size": number(1),
        },
    ],
)
def test_good_and_unknown_queue_arguments_pass(arguments):
    """Bounds are inclusive, and unknown arguments are ignored."""
    check_queue_arguments("q", "/", arguments)


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_of_any_width_are_integers(kind):
    """Integers of every type are accepted."""
    check_queue_arguments("q", "/", {"x-max-length": (kind, 7), "x-expires": (kind, 7)})


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        ({"x-max-age": text("1D"), "x-queue-mode": text("?"), "x-expires": number(0)}, "x-expires"),
        ({"x-expires": number(0), "x-queue-type": text("foo")}, "x-queue-type"),
        ({"x-max-age": text("1D"), "x-initial-cluster-size": number(1)}, "x-initial-cluster-size"),
        (
            {"x-max-age": text("1D"), "x-initial-cluster-size": number(1), "x-queue-type": text("undefined")},
            "x-initial-cluster-size",
        ),
        (
            {"x-max-age": text("1D"), "x-initial-cluster-size": number(1), "x-queue-type": text("classic")},
            "x-max-age",
        ),
        (
            {"x-queue-mode": text("?"), "x-max-length": number(-1), "x-queue-type": text("quorum")},
            "x-max-length",
        ),
        ({"x-max-length": number(-1), "x-dead-letter-routing-key": text("k")}, "x-dead-letter-routing-key"),
    ],
)
def test_of_several_bad_arguments_rabbitmqs_first_is_reported(arguments, reported):
    """The type is checked first, then values in RabbitMQ's order, then foreign arguments by name (as sent if typed)."""
    assert refusal(check_queue_arguments, "q", "/", arguments).startswith(f"invalid arg '{reported}' for")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (
            {"x-priority": text("1")},
            "'x-priority' for queue 'q' in vhost '/': \"expected integer, got longstr\"",
        ),
        (
            {"x-cancel-on-ha-failover": number(1), "x-priority": ("float", 1.0)},
            "'x-priority' for queue 'q' in vhost '/': \"expected integer, got float\"",
        ),
        (
            {"x-stream-offset": text("first"), "x-cancel-on-ha-failover": number(1)},
            "'x-cancel-on-ha-failover' for queue 'q' in vhost '/': {unacceptable_type,signedint}",
        ),
        (
            {"x-stream-offset": text("first")},
            "'x-stream-offset' for queue 'q' in vhost '/' of queue type rabbit_classic_queue",
        ),
        (
            {"x-consumer-timeout": number(-1)},
            "'x-consumer-timeout' for queue 'q' in vhost '/': {value_negative,-1}",
        ),
    ],
)
def test_a_bad_consume_argument_is_named_with_its_fault(arguments, fault):
    """Priority is checked first, then cancel-on-ha-failover, then the arguments of streams."""
    assert f"invalid arg {fault}" == refusal(check_consume_arguments, "q", "/", arguments)


@pytest.mark.parametrize("value", [number(-1), text("x"), number(1000)])
def test_a_consumer_timeout_by_the_rules_of_4(value):
    """A consumer of a classic queue may have none, whatever its value; that of a quorum queue is a number."""
    table: Table = {"x-consumer-timeout": value}
    fault = refusal(check_consume_arguments, "q", "/", table, "classic", "4.3")
    assert fault.endswith(
        "'x-consumer-timeout' for queue 'q' in vhost '/' of queue type rabbit_classic_queue"
    )
    if value == number(1000):
        check_consume_arguments("q", "/", table, "quorum", "4.3")
    else:
        assert "'x-consumer-timeout'" in refusal(check_consume_arguments, "q", "/", table, "quorum", "4.3")


@given(priority=st.integers(-(2**63), 2**63 - 1))
def test_the_priority_of_a_consumer_is_any_integer(priority):
    """Priorities are unbounded, may be negative, and other arguments do not matter."""
    arguments: Table = {"x-priority": ("long", priority), "x-credit": ("table", {}), "x-foo": ("void", None)}
    assert priority == check_consume_arguments("q", "/", arguments)


def test_a_consumer_without_priority_has_priority_zero():
    """A consumer without the argument has priority 0."""
    assert check_consume_arguments("q", "/", {}) == 0


@pytest.mark.parametrize(
    ("received", "current", "texts"),
    [
        (number(2000), ("long", 1000), ("'2000'", "'1000'")),
        (text("2000"), ("long", 1000), ("'2000'", "'1000'")),
        (("bool", True), number(1), ("'true'", "'1'")),
        (("void", None), number(1), ("none", "'1'")),
        (("double", 1.0), number(1), ("'1.0'", "'1'")),
        (("array", [text("a"), number(1)]), number(1), ("'[{longstr,<<\"a\">>},{signedint,1}]'", "'1'")),
        (("table", {"k": text("v")}), number(1), ('\'[{<<"k">>,longstr,<<"v">>}]\'', "'1'")),
        (("timestamp", 5), None, ("the value '5' of type 'timestamp'", "none")),
        (("void", None), None, ("the value 'undefined' of type 'void'", "none")),
        (("binary", b"lazy"), None, ("the value 'lazy' of type 'binary'", "none")),
    ],
)
def test_an_unequal_argument_is_reported_with_both_values(received, current, texts):
    """Types are named only if one side has none; a void compared with a value is none."""
    existing = ExistingQueue(arguments={} if current is None else {"x-expires": current})
    assert "inequivalent arg 'x-expires' for queue 'q' in vhost '/': received {} but current is {}".format(
        *texts
    ) == refusal(redeclare, existing, expires=received)


@pytest.mark.parametrize("other", INTEGERS)
@pytest.mark.parametrize("one", INTEGERS)
def test_equal_integers_of_different_width_are_equal(one, other):
    """Equal integers of different types are equal in a redeclaration, such as one by another client library."""
    redeclare(ExistingQueue(arguments={"x-expires": (one, 100)}), expires=(other, 100))


@pytest.mark.parametrize(
    ("received", "current"),
    [
        (text("lazy"), ("binary", b"lazy")),
        (("timestamp", 5), ("long", 5)),
        (("float", 2.0), ("double", 2.0)),
        (("void", None), ("void", None)),
    ],
)
def test_values_that_erlang_cannot_tell_apart_are_equal(received, current):
    """Bare values are compared where the types do not decide, as in RabbitMQ."""
    redeclare(ExistingQueue(arguments={"x-queue-mode": current}), queue_mode=received)


def test_the_confirm_mode_is_compared():
    """A redeclaration has to repeat the confirm mode, even if it would be in effect without the argument."""
    existing = ExistingQueue(arguments={"x-confirm-mode": text("consumer-ack")})
    redeclare(existing, confirm_mode=text("consumer-ack"))
    where = "inequivalent arg 'x-confirm-mode' for queue 'q' in vhost '/': received"
    assert f"{where} 'standard' but current is 'consumer-ack'" == refusal(
        redeclare, existing, confirm_mode=text("standard")
    )
    assert f"{where} the value 'standard' of type 'longstr' but current is none" == refusal(
        redeclare, ExistingQueue(), confirm_mode=text("standard")
    )


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_consumer_timeout_is_compared_if_it_is_given(kind):
    """A redeclaration may leave the timeout out, but may not give one that would have no effect."""
    of_kind = {"x-queue-type": text(kind)}
    existing = ExistingQueue(arguments={**of_kind, "x-consumer-timeout": number(10_000)})
    redeclare(existing, queue_type=text(kind))
    redeclare(existing, queue_type=text(kind), consumer_timeout=("long", 10_000))
    where = "inequivalent arg 'x-consumer-timeout' for queue 'q' in vhost '/': received"
    assert f"{where} '20000' but current is '10000'" == refusal(
        redeclare, existing, queue_type=text(kind), consumer_timeout=number(20_000)
    )
    assert f"{where} the value '20000' of type 'signedint' but current is none" == refusal(
        redeclare, ExistingQueue(arguments=of_kind), queue_type=text(kind), consumer_timeout=number(20_000)
    )


def test_only_arguments_of_classic_queues_are_compared():
    """Unknown arguments and those of other queue types may differ and are not even validated."""
    redeclare(ExistingQueue(arguments={"x-foo": number(1)}), foo=number(2), max_age=number(3))
    redeclare(ExistingQueue(arguments={"x-consumer-timeout": number(1)}))
    redeclare(
        ExistingQueue(arguments={"x-queue-type": text("quorum")}),
        queue_type=text("quorum"),
        queue_mode=text("lazy"),
    )


def test_a_vhosts_default_type_is_added_where_none_is_given():
    """The vhost's default type is added if a queue with these properties may have it, and classic otherwise."""

    def typed(default, arguments=None, *, durable=True, exclusive=False, auto_delete=False):
        table = with_default_type(
            arguments or {}, default, durable=durable, exclusive=exclusive, auto_delete=auto_delete
        )
        return table.get("x-queue-type", ("", ""))[1]

    assert ["", "quorum", "classic"] == [typed(default) for default in ("", "quorum", "classic")]
    assert "classic" == typed("quorum", durable=False)
    assert "classic" == typed("quorum", exclusive=True)
    assert "classic" == typed("quorum", auto_delete=True)
    assert "classic" == typed("quorum", {"x-queue-type": text("classic")})
    assert "quorum" == typed("classic", {"x-queue-type": text("quorum")})
    table = with_default_type(
        {"x-z": number(1), "x-a": number(2)}, "quorum", durable=True, exclusive=False, auto_delete=False
    )
    assert ["x-a", "x-queue-type", "x-z"] == list(table)


def test_the_types_of_unequal_exchanges_are_atoms():
    """A type with a dash is in quotes within the quotes, as Erlang prints it."""
    current = SimpleNamespace(type="direct", durable=False, auto_delete=False, internal=False, arguments={})
    declared = {
        "kind": "x-random",
        "durable": False,
        "auto_delete": False,
        "internal": False,
        "arguments": {},
    }
    expected = (
        "inequivalent arg 'type' for exchange 'e' in vhost '/': received ''x-random'' but current is 'direct'"
    )
    assert expected == refusal(check_exchange_equivalence, "e", "/", current, **declared)

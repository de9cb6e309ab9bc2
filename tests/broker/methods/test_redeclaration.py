"""Declarations of what exists: the same one is accepted, and one with another compared property is refused."""

from typing import Any

from doubles.fakes import Client, Node, queue_declare
from hypothesis import given, settings, strategies as st

from leveret.broker.amqp.commands import Channel, Exchange, Queue, make
from leveret.broker.amqp.tables import Table
from leveret.broker.vhost.vhost import Metadata

NUMBERS = st.sampled_from(
    [("signedint", 1), ("long", 2), ("short", 1), ("byte", 0), ("long", -1), ("long", 1 << 40)]
)
TEXTS = st.sampled_from(
    ["a", "b", "", "drop-head", "reject-publish", "lazy", "default", "at-most-once", "balanced"]
)
VALUES = (
    NUMBERS | TEXTS.map(lambda text: ("longstr", text)) | st.booleans().map(lambda value: ("bool", value))
)
COMPARED = (
    "x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-max-length", "x-max-length-bytes", "x-overflow",
    "x-single-active-consumer", "x-delivery-limit", "x-retain-for", "x-retain-bytes",
    "x-delayed-retry-type", "x-delayed-retry-min", "x-allow-hold", "x-max-held",
)  # fmt: skip
OTHERS = (
    "x-dead-letter-routing-key", "x-dead-letter-strategy", "x-max-in-memory-length", "x-max-priority", "x-queue-mode",
    "x-queue-version", "x-quorum-initial-group-size", "x-queue-leader-locator", "x-queue-master-locator",
    "x-consumer-timeout", "x-confirm-mode", "x-unknown",
)  # fmt: skip
TYPES = st.sampled_from([None, "classic", "quorum", "undefined"])
ARGUMENTS = st.dictionaries(st.sampled_from(COMPARED + OTHERS), VALUES, max_size=3)
FLAGS = st.fixed_dictionaries(dict.fromkeys(("durable", "exclusive", "auto_delete"), st.booleans()))


def declared(client: Client, **options: Any) -> str:
    """Declare the queue `q`; the reply, or the text of the error."""
    (reply,) = client.ask(queue_declare("q", **options))
    if "channel.close" in reply:
        client.send(make(Channel.CloseOk))
        client.ask(Channel.Open())
    return reply


@settings(max_examples=150)
@given(
    default=st.sampled_from(["", "classic", "quorum"]),
    kind=TYPES,
    arguments=ARGUMENTS,
    flags=FLAGS,
    other=VALUES,
)
def test_a_queue_may_be_declared_again_as_it_was(default, kind, arguments, flags, other):
    """Whatever a declaration says and whatever the vhost's default type is: if it was accepted, it is again; else not."""
    client = Client(Node())
    client.node.vhosts["/"].metadata = Metadata(default_queue_type=default)
    if kind is not None:
        arguments = {"x-queue-type": ("longstr", kind), **arguments}
    first = declared(client, arguments=arguments, **flags)
    if "declare-ok" not in first:
        assert first == declared(client, arguments=arguments, **flags)
        assert "NOT_FOUND" in declared(client, passive=True)
        return

    assert first == declared(client, arguments=dict(reversed(arguments.items())), **flags)
    assert first == declared(client, passive=True, arguments={"x-queue-type": ("longstr", "other")})
    for name in COMPARED:
        if arguments.get(name, (0, None))[1] != other[1]:
            changed = declared(client, arguments={**arguments, name: other}, **flags)
            assert f"inequivalent arg '{name}' for queue 'q' in vhost '/': received" in changed
        if name in arguments:
            fewer = {key: value for key, value in arguments.items() if key != name}
            assert f"inequivalent arg '{name}' for queue" in declared(client, arguments=fewer, **flags)
    assert first == declared(client, arguments=arguments, **flags)


EXCHANGE_ARGUMENTS = st.dictionaries(st.sampled_from(["alternate-exchange", "x-unknown"]), VALUES, max_size=2)
EXCHANGE_FLAGS = st.fixed_dictionaries(dict.fromkeys(("durable", "auto_delete", "internal"), st.booleans()))
KINDS = st.sampled_from(["direct", "fanout", "topic", "headers"])


def answer(client: Client, method: Any) -> str:
    """Send a method; the reply, or the text of the error."""
    (reply,) = client.ask(method)
    if "channel.close" in reply:
        client.send(make(Channel.CloseOk))
        client.ask(Channel.Open())
    return reply


def exchange(
    client: Client, kind: str, flags: dict[str, bool], arguments: Table, *, passive: bool = False
) -> str:
    """Declare the exchange `e`; the reply, or the text of the error."""
    declare = Exchange.Declare(
        exchange="e", exchange_type=kind, passive=passive, nowait=False, arguments=arguments, **flags
    )
    return answer(client, declare)


@settings(max_examples=100)
@given(kind=KINDS, other=KINDS, flags=EXCHANGE_FLAGS, arguments=EXCHANGE_ARGUMENTS, changed=VALUES)
def test_an_exchange_may_be_declared_again_as_it_was(kind, other, flags, arguments, changed):
    """The type, the flags and the alternate exchange are compared, other arguments are not; passively nothing is."""
    client = Client(Node())
    first = exchange(client, kind, flags, arguments)
    if "declare-ok" not in first:
        assert first == exchange(client, kind, flags, arguments)
        assert "NOT_FOUND" in exchange(client, kind, flags, arguments, passive=True)
        return

    assert first == exchange(client, kind, flags, arguments)
    assert first == exchange(client, kind, flags, {**arguments, "x-unknown": changed})
    assert first == exchange(client, other, flags, {"alternate-exchange": changed}, passive=True)
    differing = "inequivalent arg '{}' for exchange 'e' in vhost '/': received"
    if other != kind:
        assert differing.format("type") in exchange(client, other, flags, arguments)
    for flag, value in flags.items():
        assert differing.format(flag) in exchange(client, kind, {**flags, flag: not value}, arguments)
    if arguments.get("alternate-exchange", (0, None))[1] != changed[1]:
        again = exchange(client, kind, flags, {**arguments, "alternate-exchange": changed})
        assert differing.format("alternate-exchange") in again
    assert first == exchange(client, kind, flags, arguments)


@given(
    kind=KINDS,
    bindings=st.lists(
        st.tuples(
            st.sampled_from(["", "a", "a.b"]), st.dictionaries(st.sampled_from("ab"), VALUES, max_size=2)
        ),
        min_size=1,
        max_size=6,
    ),
)
def test_a_binding_with_the_same_key_and_arguments_is_the_same(kind, bindings):
    """Each pair of key and arguments is one binding, however often it is made, and is gone after one unbind."""
    client = Client(Node())
    vhost = client.node.vhosts["/"]
    client.declare("q")
    exchange(client, kind, {}, {})
    for key, arguments in bindings * 2:
        assert "bind-ok" in answer(client, make(Queue.Bind, 0, "q", "e", key, False, arguments))

    distinct = {(key, repr(sorted(arguments.items()))) for key, arguments in bindings}
    assert len(distinct) == len([each for each in vhost.router.bindings() if each.source == "e"])
    for key, arguments in bindings:
        assert "unbind-ok" in answer(client, make(Queue.Unbind, 0, "q", "e", key, arguments))
    assert [] == [each for each in vhost.router.bindings() if each.source == "e"]

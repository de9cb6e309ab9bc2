"""The consistent hash exchange sends keys where RabbitMQ 4.3.6 has sent them, and moves few when bindings change."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

from leveret.exchanges.base import Envelope
from leveret.exchanges.errors import InvalidArgumentError, InvalidBindingError
from leveret.exchanges.router import Router

KEYS = [f"key-{number}" for number in range(60)]
EQUAL = "cbbbbbccaaacaccccacbbbbcacaabbacabccaaabccabcbabbcbbcbbbbacb"
RECORDED = [
    # bindings in their order, and where RabbitMQ has sent the keys
    ("a1 b1 c1", EQUAL),
    ("a1 b5 c2", "cbccccbbbaababcccacbcbbbccbbccbbabbccbabcbacbbbcbbcccbbbbabb"),
    ("c2 a1 b5", "bcbbbbbbbccbcabbbcbbbbbbbbbbbbbbccabbbcbbacbbcbbcbbbbcccccbb"),
    ("a1 b1 a5 c1", EQUAL),
    ("a1 b3 c2 -b3", "ccccccccaaacaccccaccccccacaaccacacccaaacccacccaccccccccccacc"),
    ("a1 b3 c2 -a1 a1", "cbababcacbbcbbbbcbacbcccbaaaabccbbbcccbcbbbacbccbcabbbbbbbcc"),
]
OF_INTEGERS = "ccbbaabcacbaaababbbabbaaacbaaaabbbacaaccacbbaaabccccbcabbaaa"
OF_TIMES = "bcbcccaaabaaabcabbbaabacbcbcbbbcaacbcaabcbccbacbaabcccacabcb"
MISSING = "b"
"""The queue of messages without the header or property."""


def router_of(bindings, **arguments) -> Router:
    """A router with one exchange `x` and the bindings: letters with weights, after a minus if it is removed again."""
    router = Router()
    router.declare("x", "x-consistent-hash", arguments={k.replace("_", "-"): v for k, v in arguments.items()})
    for each in bindings.split():
        name, weight = each.removeprefix("-")[0], each.removeprefix("-")[1:]
        if each[0] == "-":
            router.unbind("x", name, weight)
        else:
            router.bind("x", name, weight)
    return router


def routed(router, key="", headers=None, **properties):
    envelope = Envelope(headers or {}, SimpleNamespace(**properties))
    return "".join(router.route(router.get("x"), (key,), envelope))


@pytest.mark.parametrize(("bindings", "expected"), RECORDED, ids=[each for each, _ in RECORDED])
def test_keys_go_where_rabbitmq_sends_them(bindings, expected):
    """Weights, the order of bindings and what was removed decide as in RabbitMQ; a second binding does not count."""
    router = router_of(bindings)
    assert expected == "".join(routed(router, key) for key in KEYS)


def test_headers_go_where_rabbitmq_sends_them():
    """A text is hashed as a key, an integer is its own hash; all messages without the header go to one queue."""
    router = router_of("a1 b1 c1", hash_header=("longstr", "h"))
    assert EQUAL == "".join(routed(router, "", {"h": ("longstr", key)}) for key in KEYS)
    numbers = [("signedint", (number - 30) * 7919) for number in range(60)]
    assert OF_INTEGERS == "".join(routed(router, "", {"h": number}) for number in numbers)
    assert {MISSING} == {routed(router, key, {"other": ("longstr", key)}) for key in KEYS}
    assert {MISSING} == {routed(router, key, {"h": ("void", None)}) for key in KEYS}


@pytest.mark.parametrize("name", ["message_id", "correlation_id"])
def test_properties_go_where_rabbitmq_sends_them(name):
    """An id is hashed as a key; the routing key does not matter."""
    router = router_of("a1 b1 c1", hash_property=("longstr", name))
    assert 1 == router.reads_properties
    assert EQUAL == "".join(routed(router, "k", **{name: key}) for key in KEYS)
    assert {MISSING} == {routed(router, key, **{name: None}) for key in KEYS}
    router.remove("x")
    assert 0 == router.reads_properties


def test_times_go_where_rabbitmq_sends_them():
    """A timestamp is hashed as its text in seconds."""
    router = router_of("a1 b1 c1", hash_property=("longstr", "timestamp"))
    assert OF_TIMES == "".join(routed(router, "k", timestamp=number * 1000) for number in range(60))


FIELDS = [
    ("bool", True), ("bool", False), ("void", None), ("double", -2.25), ("double", 0.0), ("double", 1e300),
    ("timestamp", 1700000000), ("timestamp", 5), ("binary", b"\x00\xff\xce"), ("binary", b"key-1"), ("longstr", "key-1"),
    ("longstr", ""), ("byte", -7), ("unsignedbyte", 200), ("short", -300), ("long", -(2**40)), ("long", 2**40),
    ("unsignedint", 3000000000), ("longstr", "é\u2603"),
]  # fmt: skip
OF_FIELDS = "acacaabacaacacbbbca"
"""Queues, with the weights 3, 4 and 5, to which RabbitMQ sends these headers."""


def test_headers_of_every_simple_type_go_where_rabbitmq_sends_them():
    """Each type has its own hash in Erlang: atoms, floats, integers, milliseconds, binaries."""
    router = router_of("a3 b4 c5", hash_header=("longstr", "h"))
    assert OF_FIELDS == "".join(routed(router, "", {"h": field}) for field in FIELDS)


VALUES = [True, False, 1.5, -2.5, 2**62, b"octets", [("longstr", "x")], [], {}, {"a": ("long", 1)}, (2, 5)]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_every_header_has_one_queue(value):
    """Whatever a header contains, a message goes to one queue, and a repeated one to the same."""
    router = router_of("a3 b3 c3", hash_header=("longstr", "h"))
    found = {routed(router, "k", {"h": ("whatever", value)}) for _ in range(3)}
    assert 1 == len(found)
    assert found < {"a", "b", "c"}


def test_a_time_is_not_the_number():
    """A header of the type timestamp counts in milliseconds, as in RabbitMQ 4.3."""
    router = router_of("a9 b9 c9", hash_header=("longstr", "h"))
    times = "".join(routed(router, "", {"h": ("timestamp", number)}) for number in range(60))
    assert times == "".join(routed(router, "", {"h": ("long", number * 1000)}) for number in range(60))


def test_copied_keys_do_not_matter():
    """CC and BCC have no effect: the routing key alone is hashed."""
    router = router_of("a1 b1 c1")
    found = ["".join(router.route(router.get("x"), (key, "copy", key + "2"))) for key in KEYS]
    assert EQUAL == "".join(found)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"hash-header": ("longstr", "h"), "hash-property": ("longstr", "nope")},
            "hash-header and hash-property are mutually exclusive",
        ),
        ({"hash-property": ("longstr", "nope")}, "Unsupported property: nope"),
        ({"hash-property": ("longstr", "")}, "Unsupported property: "),
        ({"hash-header": ("long", 5)}, "hash-header must be a string, not 5"),
        ({"hash-property": ("bool", True)}, "hash-property must be a string, not true"),
    ],
)
def test_invalid_arguments(arguments, text):
    """Such a declaration is refused, with RabbitMQ's text where it has one."""
    with pytest.raises(InvalidArgumentError) as caught:
        Router().declare("x", "x-consistent-hash", arguments=arguments)
    assert text == str(caught.value)


@pytest.mark.parametrize("key", ["", "abc", "1.5", " 5", "5 ", "5_0", "1e3", "é", 'a"b', "٣", "5\n"])
def test_a_weight_is_an_integer(key):
    """Any other binding key is refused with RabbitMQ's text."""
    with pytest.raises(InvalidBindingError, match=r"^The binding key must be an integer: <<") as caught:
        router_of("").bind("x", "a", key)
    assert str(caught.value).endswith(">>")


@pytest.mark.parametrize("key", ["0", "-1", "-0", "+0"])
def test_a_weight_is_positive(key):
    """There is no queue without a bucket."""
    with pytest.raises(InvalidBindingError, match=r"^The binding key must be greater than 0$"):
        router_of("").bind("x", "a", key)


def test_weights_are_shares():
    """Each queue gets about its part of many keys, also with weights of any size."""
    for bindings in ("a1 b2 c5", "a+10 b020 c50", f"a{10**200} b{2 * 10**200} c{5 * 10**200}"):
        counts = Counter(routed(router_of(bindings), f"k{number}") for number in range(4000))
        for queue, share in (("a", 1), ("b", 2), ("c", 5)):
            assert 0.85 < counts[queue] / (share * 500) < 1.15


NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=8, unique=True)


@given(names=NAMES, weights=st.lists(st.integers(1, 20), min_size=8, max_size=8))
def test_the_newest_queue_gives_back_what_it_took(names, weights):
    """A key keeps its queue when another is bound, or goes to that; when it is removed, only its keys move, back."""
    *older, newest = [f"{name}{weight}" for name, weight in zip(names, weights, strict=False)]
    router = router_of(" ".join(older))
    before = [routed(router, key) for key in KEYS]
    router.bind("x", newest[0], newest[1:])
    after = [routed(router, key) for key in KEYS]
    assert all(new in {old, newest[0]} for old, new in zip(before, after, strict=True))
    assert after == [routed(router, key) for key in KEYS]
    router.unbind("x", newest[0], newest[1:])
    assert before == [routed(router, key) for key in KEYS]


def test_the_next_binding_counts_when_the_first_is_removed():
    """A queue with a second binding keeps its place with that weight; RabbitMQ takes it out of the ring."""
    router = router_of("a1 b1 a5 -a1")
    assert {"a", "b"} == {routed(router, key) for key in KEYS}
    counts = Counter(routed(router, f"k{number}") for number in range(2000))
    assert 4 < counts["a"] / counts["b"] < 6.5

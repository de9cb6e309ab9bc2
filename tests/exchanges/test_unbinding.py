import sys
from collections import Counter

import pytest
from hypothesis import given, strategies as st

from leveret.exchanges.router import EXCHANGE_TYPES, Router


def unbind_all(exchange, destination) -> int:
    """Remove all bindings to a destination; how many there were."""
    bound = exchange.detach(destination)
    return 0 if bound is None else len(list(exchange.sweep(destination, bound)))


TYPES = ["direct", "fanout", "topic", "headers", "x-modulus-hash", "x-random", "x-recent-history"]
BINDINGS = {
    # what binding number n looks like: (binding key, arguments)
    "keys": lambda n: (f"site.{n}.#", None),
    "keys with arguments": lambda n: (f"site.{n}.#", {"n": ("long", n)}),
    "arguments under one key": lambda n: ("key", {"n": ("long", n)}),
    "keys with the same arguments": lambda n: (f"site.{n}.#", {"n": ("long", 1)}),
    "any of two arguments": lambda n: (
        "key",
        {"x-match": ("longstr", "any"), "n": ("long", n), "shared": ("long", 1)},
    ),
}


def count_calls(work):
    """Run `work` and count the calls of functions in it, written in Python or in C; generators by the item."""
    calls = Counter()
    previous = sys.getprofile()
    sys.setprofile(lambda _frame, event, _arg: calls.update((event,)))
    try:
        work()
    finally:
        sys.setprofile(previous)
    return calls["call"] + calls["c_call"]


def unbinding_calls(type_name, binding, count, step):
    """Count the calls that it takes to unbind `count` bindings of one queue, one after the other."""
    router = Router()
    router.declare("x", type_name)
    router.add_queue("q", "Q")
    for number in range(count):
        assert router.bind("x", "Q", *binding(number))
    bindings = [binding(number) for number in range(count)][::step]
    unbound = []
    calls = count_calls(lambda: unbound.extend(router.unbind("x", "Q", *one)[0] for one in bindings))
    assert [True] * count == unbound
    assert not router.exchanges["x"].in_use
    return calls


@pytest.mark.parametrize("step", [1, -1], ids=["oldest first", "newest first"])
@pytest.mark.parametrize("binding", BINDINGS.values(), ids=BINDINGS)
@pytest.mark.parametrize("type_name", TYPES)
def test_unbinding_costs_the_same_however_many_bindings_a_queue_has(type_name, binding, step):
    """Eight times the bindings take about eight times the calls to unbind one by one, not sixty-four times."""
    few = unbinding_calls(type_name, binding, 80, step)
    assert unbinding_calls(type_name, binding, 640, step) < 2 * 8 * few


KEYS = ["", "a", "a.#"]
ARGUMENTS = [
    None,
    {"h": ("long", 1)},
    {"h": ("byte", 1)},
    {"h": ("long", 2)},
    {"h": ("long", 1), "x-match": ("longstr", "any")},
    {"h": ("long", 1), "x-ignored": ("long", 1)},
]
MEETS = {
    # whether a binding leads on the message with the routing key "a" and the header h=1
    "direct": lambda key, _arguments: KEYS[key] == "a",
    "fanout": lambda _key, _arguments: True,
    "topic": lambda key, _arguments: KEYS[key] != "",
    "headers": lambda _key, arguments: arguments != 3,
    "x-recent-history": lambda _key, _arguments: True,
}


@pytest.mark.parametrize("type_name", MEETS)
@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(["bind", "bind", "unbind", "unbind", "unbind_destination"]),
            st.sampled_from(["Q", "R"]),
            st.integers(0, len(KEYS) - 1),
            st.integers(0, len(ARGUMENTS) - 1),
        ),
        max_size=60,
    )
)
def test_bindings_that_route_alike_go_one_by_one(type_name, changes):
    """A destination is found until the last of its bindings goes that differ only in what routing ignores."""
    exchange = EXCHANGE_TYPES[type_name]("x")
    bindings = set()
    for change, destination, key, arguments in changes:
        binding = (destination, key, arguments)
        if change == "bind":
            assert exchange.bind(destination, KEYS[key], ARGUMENTS[arguments]) == (binding not in bindings)
            bindings.add(binding)
        elif change == "unbind":
            assert exchange.unbind(destination, KEYS[key], ARGUMENTS[arguments]) == (binding in bindings)
            bindings.discard(binding)
        else:
            gone = {one for one in bindings if one[0] == destination}
            assert len(gone) == unbind_all(exchange, destination)
            bindings -= gone
        expected = {one[0] for one in bindings if MEETS[type_name](*one[1:])}
        assert sorted(expected) == sorted(exchange.match("a", {"h": ("short", 1)}))
    for destination, key, arguments in bindings:
        assert exchange.unbind(destination, KEYS[key], ARGUMENTS[arguments])
    assert exchange._repeats is None
    for index in ("_by_destination", "_by_key", "_trie", "_criteria", "_index", "_any"):
        assert not getattr(exchange, index, None)

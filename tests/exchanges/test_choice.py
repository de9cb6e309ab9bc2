"""Exchanges that choose one binding: at random, or by the hash of the keys, as RabbitMQ 4.3.6 has chosen."""

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from leveret.exchanges.base import PIECE
from leveret.exchanges.errors import InvalidBindingError
from leveret.exchanges.router import Router

RANDOM = ["x-random", "x-local-random"]
KEYS = [f"key-{number}" for number in range(60)]
BY_MODULUS = "bacbcbcacaccbcacacaaccbcccabbbacbbacbbbbcacbaccbcabaaababbba"
"""Queues to which RabbitMQ's x-modulus-hash sends these keys with one binding each of the queues a, b and c."""
WITH_THREE_OF_A = "aabaaaabaaaaaaaaaaabbbaaaaaabaaaaaababaaaaaaaaaabaaabbbaaaaa"
"""Those with three bindings of a and one of b."""
WITH_COPIES = "acbbcbbbccbbcabcbabcbbccabbbaacbccaacacccbccaaababbbbbcabccc"
"""Those of the first with a key in CC, cc-0 and so on, and "b" in BCC."""


def router_of(kind, *bindings) -> Router:
    """A router with one exchange `x` of a type and these bindings: destination and key."""
    router = Router()
    router.predeclare()
    router.declare("x", kind)
    for destination, key in bindings:
        router.add_queue(destination, destination)
        router.bind("x", destination, key)
    return router


def routed(router, *keys):
    """Return the destinations of a message with these keys."""
    return "".join(router.route(router.get("x"), keys))


@pytest.mark.parametrize("kind", RANDOM)
def test_each_message_gets_a_random_queue(kind):
    """Every message has one destination, in equal shares, whatever its keys are; no choice is remembered."""
    router = router_of(kind, ("a", ""), ("b", ""), ("c", ""))
    counts = Counter(routed(router, "k", "copy") for _ in range(1500))
    counts += Counter(routed(router, "k") for _ in range(1500))
    assert {"a", "b", "c"} == set(counts)
    assert all(850 < count < 1150 for count in counts.values())


def test_each_binding_counts_for_chance():
    """A queue with three bindings gets three times as many messages as one with a single one."""
    router = router_of("x-random", ("a", ""), ("a", "k"), ("a", "l"), ("b", ""))
    counts = Counter(routed(router, "k") for _ in range(2000))
    assert 1400 < counts["a"] < 1600
    assert 2000 == counts["a"] + counts["b"]


@pytest.mark.parametrize("kind", [*RANDOM, "x-modulus-hash", "x-consistent-hash"])
def test_nothing_is_chosen_that_is_gone(kind):
    """A queue gets nothing after its last binding is removed or it is deleted, and the others get all of it."""
    key = "1" if kind == "x-consistent-hash" else ""
    router = router_of(kind, ("a", key), ("b", key), ("c", key))
    router.unbind("x", "b", key)
    assert {"a", "c"} == {routed(router, each) for each in KEYS}
    router.forget("a")
    assert {"c"} == {routed(router, each) for each in KEYS}
    router.unbind("x", "c", key)
    assert {""} == {routed(router, each) for each in KEYS}


@pytest.mark.parametrize("kind", [*RANDOM, "x-modulus-hash", "x-consistent-hash"])
def test_no_message_is_lost_while_a_queue_leaves(kind):
    """While a deleted queue's many bindings are removed in steps no exchange chooses it."""
    key = "1" if kind == "x-consistent-hash" else ""
    router = router_of(kind, ("a", key), ("b", key))
    for number in range(3 * PIECE):
        router.declare(f"f{number}", "fanout")
        router.bind(f"f{number}", "a", "")
    router.declare("last", kind)
    for destination in "ab":
        router.bind("last", destination, key)
    router.work = lambda _steps, _name: None  # never
    router.forget("a")
    for name in ("x", "last"):
        assert {("b",)} == {router.route(router.get(name), (each,)) for each in KEYS}


@pytest.mark.parametrize("kind", [*RANDOM, "x-modulus-hash"])
def test_a_choice_goes_on_through_exchanges(kind):
    """A chosen exchange routes the message on; the alternate exchange gets it if there is no binding."""
    router = router_of(kind)
    router.declare("f", "fanout")
    for name in "abc":
        router.add_queue(name, name)
        router.bind("f", name, "")
    router.set_alternate(router.get("x"), "f")
    assert {"a", "b", "c"} == set(routed(router, "k"))
    if kind == "x-local-random":
        return
    router.bind("x", router.get("f"), "")
    router.set_alternate(router.get("x"), None)
    assert {"a", "b", "c"} == set(routed(router, "k"))


def test_a_choice_is_made_once_for_a_message():
    """The exchanges that a message has passed, asked for afterwards, are those of the choice for its route."""
    router = router_of("x-random")
    for name in "fgh":
        router.declare(name, "fanout")
        router.add_queue(name, name)
        router.bind(name, name, "")
        router.bind("x", router.get(name), "")
    for _ in range(100):
        queue = routed(router, "k")
        assert ["x", queue] == [each.name for each in router.reached(router.get("x"), ("k",), {})]


def test_modulus_hash_is_that_of_rabbitmq():
    """Keys go where RabbitMQ sends them, in whichever order the queues were bound."""
    for order in ("abc", "cba", "bca"):
        router = router_of("x-modulus-hash", *[(each, "") for each in order])
        assert BY_MODULUS == "".join(routed(router, key) for key in KEYS)
    router = router_of("x-modulus-hash", ("a", ""), ("b", ""), ("a", "k"), ("a", "l"))
    assert WITH_THREE_OF_A == "".join(routed(router, key) for key in KEYS)


def test_modulus_hash_of_copied_keys_is_that_of_rabbitmq():
    """The keys of CC and BCC are hashed with the routing key, and the message goes to one queue."""
    router = router_of("x-modulus-hash", ("a", ""), ("b", ""), ("c", ""))
    found = "".join(routed(router, key, f"cc-{number}", "b") for number, key in enumerate(KEYS))
    assert WITH_COPIES == found


def test_exchanges_come_before_queues():
    """Names of queues and exchanges are in RabbitMQ's order: all exchanges first."""
    router = router_of("x-modulus-hash", ("a", ""))
    router.declare("z", "fanout")
    router.bind("x", router.get("z"), "")
    assert [router.get("z"), "a"] == list(router.get("x").choices)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abcd"), st.sampled_from("kl")), max_size=30))
def test_the_choices_are_the_bindings(changes):
    """After any changes there is one choice for each binding that is left."""
    router = router_of("x-modulus-hash", *[(each, "") for each in "abcd"])
    bindings = {(each, "") for each in "abcd"}
    for is_new, destination, key in changes:
        if is_new:
            router.bind("x", destination, key)
            bindings.add((destination, key))
        else:
            router.unbind("x", destination, key)
            bindings.discard((destination, key))
        assert sorted(destination for destination, _ in bindings) == router.get("x").choices


class Queue:
    """A destination with a type, as the broker's queues have one."""

    type = "quorum"


def test_local_random_binds_classic_queues_without_a_key():
    """Other bindings are refused, with RabbitMQ's texts."""
    router = router_of("x-local-random")
    for destination, key, text in (
        ("a", "k", "Non empty binding 'k' key not permitted"),
        (Queue(), "", "Queue type rabbit_quorum_queue not valid for this exchange type"),
        (router.get("x"), "", "Destination not found"),
    ):
        with pytest.raises(InvalidBindingError) as caught:
            router.bind("x", destination, key)
        assert text == str(caught.value)
    assert router.bind("x", "a", "", {"a": ("long", 1)})

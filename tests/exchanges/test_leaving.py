"""Deleted exchanges and queues are gone at once, however long it takes to remove their bindings."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from time import thread_time

import pytest

from leveret.exchanges.base import PIECE
from leveret.exchanges.router import Router

MANY = 5 * PIECE
TYPES = ["direct", "fanout", "topic", "headers"]


class Later:
    """Keeps the steps of a router's jobs until a test carries them out, and the calls of the router's listener."""

    def __init__(self, router: Router) -> None:
        self.jobs = []
        self.notified = Counter()
        router.work = lambda steps, _name: self.jobs.append(steps)
        router.listener = self

    def finish(self) -> int:
        """Carry out all steps; how many there were."""
        return sum(1 for job in self.jobs for _ in job)

    def declared(self, exchange) -> None:
        pass

    def removed(self, exchange) -> None:
        self.notified[exchange.name] += 1

    def bound(self, source, destination, binding_key, arguments) -> None:
        pass

    def unbound(self, source, destination, binding_key, arguments) -> None:
        self.notified[source.name, destination, binding_key, str(arguments)] += 1


def bindings(kind: str):
    """Many bindings of an exchange of that type, each of which leads a message with key a and header h on."""
    for number in range(MANY):
        if kind == "headers":
            yield "", {"h": ("long", 1), "x-match": ("longstr", "any"), f"n{number}": ("long", 1)}
        elif kind == "topic":
            yield "a" + ".#" * (number % 2), {"n": ("long", number)}
        else:
            yield "a", {"n": ("long", number)}


def filled(kind: str) -> Router:
    """A router with an exchange x of that type that leads to the queue Q in many ways, and to R in one."""
    router = Router()
    router.predeclare()
    for name in "qr":
        router.add_queue(name, name.upper())
    router.declare("other", "fanout", durable=True)
    router.bind("other", "R", "")
    router.declare("x", kind, durable=True, alternate="other")
    for key, arguments in bindings(kind):
        router.bind("x", "Q", key, arguments)
    return router


def routed(router: Router) -> set[object]:
    """Return where a message to x is routed, with headers given as they are, or only when asked for."""
    exchange = router.get("x")
    found = set(router.route(exchange, ["a"], {"h": ("long", 1)}))
    assert found == set(router.route(exchange, ["a", "a"], lambda: {"h": ("long", 1)}))
    return found


@pytest.mark.parametrize("kind", TYPES)
def test_a_queue_is_gone_before_its_bindings_are_taken_apart(kind):
    """A removed queue has no routes, the alternate exchange steps in, and nothing is listed."""
    router = filled(kind)
    assert {"Q"} == routed(router)
    later = Later(router)
    router.forget("q")

    assert 1 == len(later.jobs)
    assert {"R"} == routed(router)
    assert (1, ["R"]) == (router.binding_count, [binding.destination for binding in router.bindings()])
    assert [] == list(router.bindings_of("Q"))
    assert not router.get("x").in_use
    assert later.finish() >= MANY // PIECE - 1
    assert {"R"} == routed(router)
    assert (MANY, {1}) == (len(later.notified), set(later.notified.values()))
    assert not router._leaving
    assert not router.get("x").match("a", {"h": ("long", 1)})


@pytest.mark.parametrize("kind", TYPES)
def test_an_exchange_is_gone_before_its_bindings_are_taken_apart(kind):
    """Another exchange of the same name has nothing of the removed one, and each binding is reported once."""
    router = filled(kind)
    router.bind("x", router.get("x"), "a")
    later = Later(router)
    assert ["x"] == [exchange.name for exchange in router.remove("x")]
    router.declare("x", "fanout", durable=True)
    router.bind("x", "Q", "")

    assert 1 == len(later.jobs)
    assert ({"Q"}, 2) == (routed(router), router.binding_count)
    assert 1 == later.notified["x"]
    assert later.finish() >= MANY // PIECE - 1
    assert ({"Q"}, 2) == (routed(router), router.binding_count)
    assert (MANY + 2, {1}) == (len(later.notified), set(later.notified.values()))
    assert 1 == len(list(router.bindings_of("Q")))


def test_an_exchange_that_goes_while_a_queue_leaves_it():
    """A queue and an exchange may be taken apart at once, and each binding is reported once."""
    router = filled("topic")
    later = Later(router)
    router.bind("x", "R", "b")
    router.forget("q")
    router.remove("x")

    assert (1, []) == (router.binding_count, list(router.bindings_of("Q")))
    for job in reversed(later.jobs):
        next(job, None)
    later.finish()
    assert (MANY + 2, {1}) == (len(later.notified), set(later.notified.values()))
    assert 1 == len(list(router.bindings()))


def test_many_exchanges_lose_a_queue():
    """Exchanges that a queue leaves are unused, and an auto-delete one is gone, at the latest with the last step."""
    router = Router()
    router.add_queue("q", "Q")
    for number in range(MANY):
        router.declare(f"x{number}", "topic", auto_delete=number % 2 == 0)
        router.bind(f"x{number}", "Q", "a")
    later = Later(router)
    router.forget("q")

    assert MANY - PIECE == router.binding_count
    later.finish()
    assert (0, MANY // 2) == (router.binding_count, len(router.exchanges))
    assert not any(exchange.in_use for exchange in router.exchanges.values())


def seconds_for(steps: Iterator[object], count: int) -> float:
    """Processor time of so many steps."""
    begin = thread_time()
    assert count == sum(1 for _ in islice(steps, count))
    return thread_time() - begin


def test_the_last_bindings_of_an_exchange_take_no_longer_than_the_first():
    """Taking a destination apart costs the same, however many others an exchange had."""
    shares = []
    for _ in range(3):
        router = Router()
        exchange = router.declare("x", "direct")
        for number in range(40_000):
            router.bind("x", number, str(number))
        steps = exchange.tear_down()
        first = seconds_for(steps, 2000)
        seconds_for(steps, 36_000)
        shares.append(seconds_for(steps, 2000) / first)

    assert min(shares) < 4

"""A router's listener is called for each change of exchanges and bindings."""

from collections import deque
from collections.abc import Iterator
from unittest import mock

from hypothesis import given, settings, strategies as st

from leveret.exchanges.base import PIECE
from leveret.exchanges.router import Router


class Mirror:
    """Keeps the durable topology by the listener's calls alone."""

    def __init__(self) -> None:
        self.exchanges: set[object] = set()
        self.bindings: set[tuple[object, object, str, str]] = set()

    def declared(self, exchange) -> None:
        assert exchange not in self.exchanges
        self.exchanges.add(exchange)

    def removed(self, exchange) -> None:
        self.exchanges.remove(exchange)

    def bound(self, source, destination, binding_key, arguments) -> None:
        self.bindings.add((source, destination, binding_key, str(arguments)))

    def unbound(self, source, destination, binding_key, arguments) -> None:
        self.bindings.discard((source, destination, binding_key, str(arguments)))


def listened() -> tuple[Router, Mirror]:
    router, mirror = Router(), Mirror()
    router.listener = mirror
    router.predeclare()
    return router, mirror


def test_exchanges_that_are_not_durable_are_nobodys_business():
    """Exchanges that are not durable, and bindings from them, are not reported."""
    router, mirror = listened()
    before = set(mirror.exchanges)
    router.declare("x", "direct")
    router.add_queue("q", "Q")
    router.bind("x", "Q", "k")

    assert (before, set()) == (mirror.exchanges, mirror.bindings)


def test_bindings_deleted_with_a_queue_are_reported():
    """A queue's bindings are reported as gone, and an auto-delete exchange that loses its last one, with its own."""
    router, mirror = listened()
    before = set(mirror.exchanges)
    router.declare("x", "topic", durable=True, auto_delete=True)
    router.add_queue("q", "Q")
    router.bind("amq.topic", router.get("x"), "a")
    router.bind("x", "Q", "b", {"n": ("signedint", 1)})
    count = len(mirror.bindings)
    router.forget("q")

    assert (2, set(), before) == (count, mirror.bindings, mirror.exchanges)


names = st.sampled_from(["amq.topic", "a", "b", "c"])
queues = st.sampled_from(["q1", "q2"])
keys = st.sampled_from(["", "k", "#"])
tables = st.sampled_from([None, {"n": ("signedint", 1)}])
changes = st.one_of(
    st.tuples(st.just("declare"), names, st.booleans(), st.booleans()),
    st.tuples(st.just("remove"), st.sampled_from(["a", "b", "c"])),
    st.tuples(st.just("queue"), queues),
    st.tuples(st.just("forget"), queues),
    st.tuples(st.sampled_from(["bind", "unbind"]), names, st.one_of(names, queues), keys, tables),
    st.tuples(st.just("go on"), st.integers(0, 5)),
)


def change(router: Router, step, jobs: list[Iterator[None]]) -> None:
    match step:
        case "go on", number:
            next(jobs[number % len(jobs)] if jobs else iter(()), None)
        case "declare", name, durable, auto_delete:
            router.declare(name, "fanout", durable=durable, auto_delete=auto_delete)
        case "remove", name:
            router.remove(name)
        case "queue", name:
            router.queues.get(name) or router.add_queue(name, object())
        case "forget", name:
            router.forget(name)
        case verb, source, to, key, arguments:
            destination = router.get(to) or router.queues.get(to)
            if destination is not None and router.get(source) is not None:
                getattr(router, verb)(source, destination, key, arguments)


@settings(max_examples=200)
@given(st.lists(changes, max_size=40), st.booleans())
def test_a_listener_knows_the_durable_topology(steps, is_late):
    """Changes reported to the listener add up to the durable topology, as soon as everything was taken apart."""
    router, mirror = listened()
    jobs: list[Iterator[None]] = []
    if is_late:
        router.work = lambda steps, _name: jobs.append(steps)
    with mock.patch("leveret.exchanges.router.PIECE", 1 if is_late else PIECE):
        for step in steps:
            change(router, step, jobs)
        listed = list(router.bindings())
        assert len(listed) == router.binding_count
        while jobs:
            deque(jobs.pop(0), maxlen=0)

    assert {exchange for exchange in router.exchanges.values() if exchange.durable} == mirror.exchanges
    assert {
        (router.get(source), destination, key, str(arguments))
        for source, destination, key, arguments in router.bindings()
        if router.get(source).durable
    } == mirror.bindings
    assert not router._leaving
    assert {id(destination) for destination in router._sources} == {
        id(binding.destination) for binding in router.bindings()
    }
    for name in "abc":  # which are fanout exchanges
        exchange = router.get(name)
        assert exchange is None or set(exchange.destinations()) == set(exchange.match(""))

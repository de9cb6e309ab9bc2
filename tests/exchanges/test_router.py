import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from leveret.exchanges import router as router_module
from leveret.exchanges.base import Binding, Exchange
from leveret.exchanges.errors import TooManyHopsError, UnknownExchangeError, UnknownExchangeTypeError
from leveret.exchanges.router import Router


def fresh(*names, **declared):
    """Return a router with the queues of these names, and exchanges given as name=type."""
    router = Router()
    router.predeclare()
    for name in names:
        router.add_queue(name, name.upper())
    for name, type_name in declared.items():
        router.declare(name, type_name)
    return router


def routed(router, name, key="k", headers=None):
    found = router.route(router.get(name), [key], headers)
    assert len(found) == len(set(found))
    return set(found)


def test_predeclared_exchanges():
    """Every vhost has RabbitMQ's seven exchanges, durable, and only the trace is internal."""
    router = fresh()
    assert {
        "": "direct",
        "amq.direct": "direct",
        "amq.fanout": "fanout",
        "amq.headers": "headers",
        "amq.match": "headers",
        "amq.rabbitmq.trace": "topic",
        "amq.topic": "topic",
    } == {name: exchange.type for name, exchange in router.exchanges.items()}
    assert all(exchange.durable for exchange in router.exchanges.values())
    assert [exchange.name for exchange in router.exchanges.values() if exchange.internal] == [
        "amq.rabbitmq.trace"
    ]


def test_default_exchange_routes_by_queue_name():
    """The default exchange knows each queue by its name, CC included, without any binding."""
    router = fresh("q", "r")
    assert routed(router, "", "q") == {"Q"}
    assert routed(router, "", "missing") == set()
    assert set(router.route(router.get(""), ["q", "q", "r", "missing"])) == {"Q", "R"}
    assert list(router.bindings()) == []
    assert router.forget("q") == []
    assert routed(router, "", "q") == set()


def test_default_exchange_as_alternate_finds_nothing():
    """The implicit bindings count only for messages published to the default exchange itself, as in RabbitMQ."""
    router = fresh("q")
    router.declare("x", "direct", alternate="")
    assert routed(router, "x", "q") == set()


def test_declare_is_idempotent_and_checks_the_type():
    """A known name gives the known exchange; an unknown type is an error."""
    router = fresh(x="direct")
    assert router.declare("x", "direct") is router.get("x")
    with pytest.raises(UnknownExchangeTypeError) as caught:
        router.declare("y", "foo")
    assert str(caught.value) == "unknown exchange type 'foo'"
    with pytest.raises(UnknownExchangeError):
        router.bind("missing", "Q", "k")
    assert router.unbind("missing", "Q", "k") == (False, [])
    assert router.remove("missing") == []
    assert router.forget("missing") == []


def test_binding_identity():
    """Same key and other arguments is another binding, one copy all the same; types count, outer order does not."""
    router = fresh("q", x="direct")
    arguments = {"a": ("signedint", 1), "b": ("longstr", "v")}
    assert router.bind("x", "Q", "k", arguments)
    assert not router.bind("x", "Q", "k", dict(reversed(arguments.items())))
    assert router.bind("x", "Q", "k")
    assert not router.bind("x", "Q", "k", {})
    assert router.route(router.get("x"), ["k"]) == ("Q",)
    assert {("k", 2), ("k", 0)} == {(one.binding_key, len(one.arguments)) for one in router.bindings_of("Q")}
    assert router.unbind("x", "Q", "k") == (True, [])
    assert router.unbind("x", "Q", "k") == (False, [])
    assert router.unbind("x", "Q", "k", arguments | {"a": ("long", 1)}) == (False, [])
    assert routed(router, "x") == {"Q"}
    assert router.unbind("x", "Q", "k", arguments) == (True, [])
    assert routed(router, "x") == set()
    assert list(router.bindings_of("Q")) == []


def test_nested_tables_keep_their_order():
    """RabbitMQ sorts only the outermost table before it compares."""
    router = fresh("q", x="direct")
    router.bind("x", "Q", "k", {"t": ("table", {"a": ("long", 1), "b": ("array", [("long", 2)])})})
    turned = {"t": ("table", {"b": ("array", [("long", 2)]), "a": ("long", 1)})}
    assert router.unbind("x", "Q", "k", turned) == (False, [])


def test_direct_exchange_reaches_all_queues_of_a_key():
    """One key may lead to many queues, and one queue may have many keys."""
    router = fresh(x="direct")
    for number in range(100):
        router.add_queue(f"q{number}", number)
        router.bind("x", number, "k")
        router.bind("x", number, f"k{number}")
    assert routed(router, "x") == set(range(100))
    assert routed(router, "x", "k7") == {7}
    assert len(list(router.get("x").bindings())) == 200
    for number in range(100):
        assert number in routed(router, "x")
        router.forget(f"q{number}")
        assert routed(router, "x") == set(range(number + 1, 100))
    assert list(router.get("x").bindings()) == []
    assert router._sources == {}


def test_cycles_are_walked_once():
    """Exchanges bound in a circle route each message once, also a circle of one."""
    router = fresh("q", "r", a="fanout", b="topic", c="direct")
    a, b, c = (router.get(name) for name in "abc")
    router.bind("a", b, "")
    router.bind("b", c, "#")
    router.bind("c", a, "k")
    router.bind("a", a, "")
    router.bind("a", "Q", "")
    router.bind("c", "R", "k")
    router.bind("c", "Q", "k")
    for name in "abc":
        assert routed(router, name) == {"Q", "R"}
    assert routed(router, "c", "other") == set()


def test_alternate_exchanges():
    """An exchange that finds nothing itself hands over; a chain goes on; a missing alternate is no error."""
    router = fresh("q", "r", end="fanout")
    router.declare("middle", "direct", arguments={"alternate-exchange": ("longstr", "end")})
    router.declare("first", "direct", alternate="middle")
    router.declare("lost", "direct", alternate="missing")
    router.declare("self", "direct", alternate="self")
    router.bind("end", "Q", "")
    router.bind("middle", "R", "m")
    assert routed(router, "first", "m") == {"R"}
    assert routed(router, "first", "x") == {"Q"}
    assert routed(router, "lost") == routed(router, "self") == set()
    router.bind("first", "R", "x")
    assert routed(router, "first", "x") == {"R"}
    router.set_alternate(router.get("middle"), None)
    assert routed(router, "first", "y") == set()


def test_alternate_is_used_where_the_exchange_itself_found_nothing():
    """A destination exchange that was seen already counts as found: no alternate then (asked of RabbitMQ)."""
    router = fresh("q", a="direct", d="fanout")
    router.declare("b", "topic", alternate="d")
    router.bind("d", "Q", "")
    router.bind("a", router.get("b"), "k")
    router.bind("b", router.get("a"), "k")
    assert routed(router, "a") == set()
    router.unbind("b", router.get("a"), "k")
    assert routed(router, "a") == {"Q"}


def test_several_routing_keys():
    """CC keys add to the routing key; the alternate exchange is asked only if none of them leads anywhere."""
    router = fresh("q", "r", "s", f="fanout", h="headers")
    router.declare("t", "topic", alternate="f")
    router.bind("t", "Q", "a.*")
    router.bind("t", "R", "b.#")
    router.bind("f", "S", "")
    router.bind("h", "S", "")
    assert set(router.route(router.get("t"), ["a.x", "b", "none"])) == {"Q", "R"}
    assert set(router.route(router.get("t"), ["no", "none"])) == {"S"}
    assert router.route(router.get("h"), ["no", "none"]) == ("S",)


def test_headers_are_decoded_at_most_once_and_only_when_needed():
    """The callable is left alone on ways without a headers exchange, and called once on ways with several."""
    calls = []

    def headers():
        calls.append(1)
        return {"a": ("long", 1)}

    router = fresh("q", d="direct", f="fanout", h="headers", i="headers")
    router.bind("d", "Q", "k")
    assert routed(router, "d", "k", headers) == {"Q"}
    assert not calls
    router.bind("f", router.get("h"), "")
    router.bind("f", router.get("i"), "")
    router.bind("h", "Q", "", {"a": ("long", 1)})
    for expected_calls in (1, 2):
        assert routed(router, "f", "k", headers) == {"Q"}
        assert len(calls) == expected_calls
    assert routed(router, "f", "k", {"a": ("long", 2)}) == set()
    assert router.needs_headers(router.get("f"))
    assert not router.needs_headers(router.get("d"))


def test_auto_delete_cascades():
    """The last binding of a queue takes a chain of auto-delete exchanges with it, and no others."""
    router = fresh("q", kept="fanout")
    for name in "abc":
        router.declare(name, "fanout", auto_delete=True)
    router.bind("kept", router.get("a"), "")
    router.bind("a", router.get("b"), "")
    router.bind("b", router.get("c"), "")
    router.bind("c", "Q", "")
    router.bind("c", "Q", "another key")
    assert router.unbind("c", "Q", "another key") == (True, [])
    existed, gone = router.unbind("c", "Q", "")
    assert existed
    assert [exchange.name for exchange in gone] == ["c", "b", "a"]
    assert list(router.bindings()) == []
    assert router.get("kept") is not None
    assert router._sources == {}


def test_auto_delete_when_a_destination_is_deleted():
    """Deleting a queue or a destination exchange is unbinding; deleting a source leaves its destinations."""
    router = fresh("q")
    for name in "abc":
        router.declare(name, "topic", auto_delete=True)
    router.bind("a", router.get("b"), "")
    router.bind("b", "Q", "")
    router.bind("c", "Q", "")
    router.bind("c", "Q", "#")
    assert ["c"] == [exchange.name for exchange in router.forget("q") if exchange.name == "c"]
    assert sorted(router.exchanges.keys() & {"a", "b", "c"}) == []
    router = fresh(a="fanout")
    router.declare("b", "fanout", auto_delete=True)
    router.bind("a", router.get("b"), "")
    assert ["a"] == [exchange.name for exchange in router.remove("a")]
    assert router.get("b") is not None
    assert not router.get("b").had_binding


def test_self_bound_auto_delete_exchange():
    """A binding to itself keeps an auto-delete exchange, and unbinding that deletes it once."""
    router = fresh("q")
    router.declare("a", "fanout", auto_delete=True)
    router.bind("a", router.get("a"), "")
    router.bind("a", "Q", "")
    assert router.unbind("a", "Q", "") == (True, [])
    a = router.get("a")
    assert router.unbind("a", a, "") == (True, [a])
    router.declare("a", "fanout", auto_delete=True)
    router.bind("a", router.get("a"), "")
    assert len(router.remove("a")) == 1
    assert router._sources == {}


def test_bindings_are_listed():
    """A binding is listed with its source, destination, key and arguments."""
    router = fresh("q", x="headers")
    router.bind("x", "Q", "k", {"a": ("long", 1)})
    router.bind("amq.direct", "Q", "l")
    listed = [Binding("x", "Q", "k", {"a": ("long", 1)}), Binding("amq.direct", "Q", "l", {})]
    assert listed == list(router.bindings_of("Q"))
    assert sorted(listed) == sorted(router.bindings())
    assert router.get("x").in_use
    assert not router.get("amq.topic").in_use
    assert repr(router.get("x")) == "<headers exchange 'x'>"


def test_generation_grows_with_each_change_of_routes():
    """Every real change of the topology shows in the generation, that of a queue's name if it was asked for."""
    router = fresh()
    changes = [
        lambda: router.declare("x", "topic"),
        lambda: (router.route_key(router.get(""), "q"), router.add_queue("q", "Q")),
        lambda: router.bind("x", "Q", "k"),
        lambda: router.set_alternate(router.get("x"), "y"),
        lambda: router.unbind("x", "Q", "k"),
        lambda: (router.route_key(router.get(""), "q"), router.forget("q")),
        lambda: router.remove("x"),
    ]
    for change in changes:
        before = router.generation
        change()
        assert router.generation > before


def test_route_cache_is_bounded(monkeypatch):
    """More keys than the cache may hold empty it, not the memory."""
    monkeypatch.setattr(router_module, "_CACHE_LIMIT", 10)
    router = fresh("q", x="topic", y="fanout")
    router.bind("x", "Q", "#")
    router.bind("y", router.get("x"), "")
    for number in range(100):
        assert routed(router, "x", f"k{number}") == routed(router, "y", f"k{number}") == {"Q"}
        assert sum(len(routes) for routes in router._routes.values()) == router._cached <= 10


def test_keyless_exchanges_share_one_route():
    """A fanout exchange that leads to queues only needs one place in the cache for all keys."""
    router = fresh("q", x="fanout")
    router.bind("x", "Q", "")
    for number in range(100):
        assert routed(router, "x", f"k{number}") == {"Q"}
    assert router._cached == 1


KEYS = st.sampled_from(["", "a", "b", "a.b", "*", "#", "a.*", "#.b"])
TABLES = st.sampled_from(
    [{}, {"h": ("long", 1)}, {"h": ("short", 1)}, {"x-match": ("longstr", "any"), "h": ("void", None)}]
)


def uncached(router, exchange, key, headers):
    """Route by walking over the listed bindings with one-binding exchanges, nothing indexed and nothing kept."""
    if exchange.name == "":
        return {router.queues[key]} if key in router.queues else set()
    queues, seen, work = set(), {exchange.name}, [exchange.name]
    while work:
        visited = router.exchanges[work.pop()]
        found = set()
        for binding in visited.bindings():
            single = type(visited)("single")
            single.bind(binding.destination, binding.binding_key, binding.arguments)
            found.update(single.match(key, headers))
        if not found and visited.alternate in router.exchanges:
            found = {router.exchanges[visited.alternate]}
        for destination in found:
            if not isinstance(destination, Exchange):
                queues.add(destination)
            elif destination.name not in seen:
                seen.add(destination.name)
                work.append(destination.name)
    return queues


class RouterMachine(RuleBasedStateMachine):
    """Drive a router with changes and compare every route with a walk over a plain list of bindings."""

    queues = Bundle("queues")
    exchanges = Bundle("exchanges")

    def __init__(self):
        super().__init__()
        self.router = Router()
        self.router.predeclare()
        self.model = []  # (source, destination, key, arguments)

    @rule(target=queues, name=st.sampled_from(["a", "b", "q3", "q4"]))
    def add_queue(self, name):
        if name not in self.router.queues:
            self.router.add_queue(name, f"queue {name}")
        return name

    @rule(
        target=exchanges,
        name=st.sampled_from(["x1", "x2", "x3", "x4"]),
        kind=st.sampled_from(["direct", "fanout", "topic", "headers"]),
        auto_delete=st.booleans(),
        alternate=st.sampled_from([None, None, "x1", "x2", "x4", ""]),
    )
    def declare(self, name, kind, auto_delete, alternate):
        self.router.declare(name, kind, auto_delete=auto_delete, alternate=alternate)
        return name

    def destination(self, name):
        return self.router.queues.get(name) or self.router.get(name)

    @rule(source=exchanges, to=st.one_of(queues, exchanges), key=KEYS, arguments=TABLES)
    def bind(self, source, to, key, arguments):
        destination = self.destination(to)
        if self.router.get(source) is None or destination is None:
            return
        new = self.router.bind(source, destination, key, arguments)
        entry = (source, destination, key, arguments)
        assert new == (entry not in self.model)
        if new:
            self.model.append(entry)

    @rule(source=exchanges, to=st.one_of(queues, exchanges), key=KEYS, arguments=TABLES)
    def unbind(self, source, to, key, arguments):
        destination = self.destination(to)
        if destination is None:
            return
        entry = (source, destination, key, arguments)
        existed, gone = self.router.unbind(source, destination, key, arguments)
        assert existed == (entry in self.model)
        if existed:
            self.model.remove(entry)
            self.expect_gone(gone, [source])

    @rule(name=consumes(queues))
    def forget(self, name):
        destination = self.router.queues.get(name)
        gone = self.router.forget(name)
        if destination is not None:
            self.expect_gone(gone, self.drop(destination))
        assert destination not in self.router._sources

    @rule(name=consumes(exchanges))
    def remove(self, name):
        exchange = self.router.get(name)
        gone = self.router.remove(name)
        if exchange is not None:
            assert gone[0] is exchange
            self.model = [entry for entry in self.model if entry[0] != name]
            self.expect_gone(gone[1:], self.drop(exchange))

    @rule(name=exchanges, alternate=st.sampled_from([None, "x1", "x3", "x4"]))
    def set_alternate(self, name, alternate):
        exchange = self.router.get(name)
        if exchange is not None:
            self.router.set_alternate(exchange, alternate)

    def drop(self, destination):
        sources = [entry[0] for entry in self.model if entry[1] == destination]
        self.model = [entry for entry in self.model if entry[1] != destination]
        return sources

    def expect_gone(self, gone, suspects):
        """Check a cascade against the model: exchanges that lost a binding, delete themselves, and have none left."""
        by_name = {exchange.name: exchange for exchange in gone}
        assert len(gone) == len(by_name)
        expected = set()
        while suspects:
            name = suspects.pop()
            exchange = self.router.get(name) or by_name.get(name)
            if exchange is None or not exchange.auto_delete or name in expected:
                continue
            if not any(entry[0] == name for entry in self.model):
                expected.add(name)
                suspects.extend(self.drop(exchange))
        assert expected == set(by_name)

    @rule(
        names=st.lists(st.sampled_from(["", "x1", "x2", "x3", "x4"]), min_size=1, max_size=4),
        key=KEYS,
        headers=TABLES,
    )
    def publish(self, names, key, headers):
        for name in names:
            exchange = self.router.get(name)
            if exchange is not None:
                expected = uncached(self.router, exchange, key, headers)
                assert expected == routed(self.router, name, key, headers)
                assert expected == routed(self.router, name, key, lambda: headers)
                several = self.router.route(exchange, [key, key], headers)
                assert sorted(expected) == sorted(several)

    @invariant()
    def bindings_agree(self):
        listed = list(self.router.bindings())
        assert len(listed) == len(self.model) == self.router.binding_count
        for entry in self.model:
            assert Binding(*entry) in listed
        destinations = {id(binding.destination) for binding in listed}
        assert destinations == {id(destination) for destination in self.router._sources}
        for exchange in self.router.exchanges.values():
            linked = {b.destination for b in exchange.bindings() if isinstance(b.destination, Exchange)}
            assert linked == set(exchange.exchange_destinations or ())


RouterMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


class TestRouterMachine(RouterMachine.TestCase):
    """A router agrees with a plain model of bindings after any operations in any order."""

    def runTest(self):
        """Any sequence of changes leaves the router, its caches and indexes in agreement with the model."""
        super().runTest()


def meshed(count):
    """A router with so many exchanges, bound all to all, and a queue at the last."""
    router = fresh("q", **{f"x{number}": "topic" for number in range(count)})
    for source in range(count):
        for target in range(count):
            router.bind(f"x{source}", router.get(f"x{target}"), "#")
    router.bind(f"x{count - 1}", "Q", "#")
    return router


def test_a_message_passes_so_many_exchanges_and_no_more():
    """A way through more exchanges than the limit allows beyond the first is an error that names it."""
    router = meshed(5)
    router.hop_limit = 4
    allowed = routed(router, "x0")
    router.hop_limit = 3
    with pytest.raises(TooManyHopsError) as error:
        router.route(router.get("x0"), ["other"])

    assert ({"Q"}, 3) == (allowed, error.value.limit)


def test_each_key_counts_for_the_hops():
    """With two keys a message may pass half as many exchanges."""
    router = meshed(5)
    router.hop_limit = 8
    allowed = router.route(router.get("x0"), ["k", "l"])
    router.hop_limit = 7
    with pytest.raises(TooManyHopsError):
        router.route(router.get("x0"), ["k", "l"])

    assert ("Q",) == allowed


def test_what_was_reached_before_the_limit_is_known():
    """A caller that must not fail can go on with the queues that were reached."""
    router = meshed(3)
    router.bind("x0", "FIRST", "#")
    router.hop_limit = 0
    with pytest.raises(TooManyHopsError) as error:
        router.route(router.get("x0"), ["k"])

    assert ("FIRST",) == error.value.reached


def test_whether_headers_are_needed_is_remembered_until_a_change():
    """A binding to a headers exchange counts from when it is made until it is gone."""
    router = fresh(x="fanout", h="headers")
    found = [router.needs_headers(router.get("x"))]
    router.bind("x", router.get("h"), "")
    found.append(router.needs_headers(router.get("x")))
    router.unbind("x", router.get("h"), "")
    found.append(router.needs_headers(router.get("x")))

    assert [False, True, False] == found


def test_a_queue_that_nobody_has_asked_for_voids_no_routes():
    """Queues that come and go leave the generation as it is, until the default exchange was asked for their name."""
    router = fresh("q")
    began = router.generation
    routed(router, "", "q")
    router.add_queue("other", "OTHER")
    router.forget("other")
    unasked = router.generation - began
    routed(router, "", "other")
    router.add_queue("other", "OTHER")
    declared = router.generation - began
    routed(router, "", "other")
    router.forget("other")

    assert (0, 1, 2) == (unasked, declared, router.generation - began)


def test_names_that_were_asked_for_are_bounded(monkeypatch):
    """A very large number of names asked for voids all routes once, and the names are forgotten."""
    monkeypatch.setattr(router_module, "_CACHE_LIMIT", 3)
    router = fresh()
    began = router.generation
    for name in "abcd":
        routed(router, "", name)

    assert (1, {"d"}) == (router.generation - began, router._asked)

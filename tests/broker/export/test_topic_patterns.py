"""Matches of binding keys, compared with matching each message with each key."""

import re
from collections import Counter
from itertools import count

import pytest
from doubles.fakes import Client, Node
from hypothesis import HealthCheck, given, settings, strategies as st

from leveret.broker.amqp.commands import Queue, make
from leveret.broker.config.config import ExportConfig
from leveret.broker.export.rows import MOST, Patterns, Rows
from leveret.broker.export.tables import TOPIC_PATTERN
from leveret.broker.statistics.node_figures import Process
from leveret.exchanges import base
from leveret.exchanges.base import MOST_COUNTED_KEYS
from leveret.exchanges.topic import TopicExchange

WORDS = st.sampled_from(["a", "b", "c"])
KEYS = st.lists(WORDS, max_size=4).map(".".join)
BINDINGS = st.lists(
    st.lists(WORDS | st.sampled_from(["*", "#"]), min_size=1, max_size=4).map(".".join), max_size=6
)


def matches(pattern: str, key: str) -> bool:
    """Return whether a topic pattern matches, by a regular expression over words that all end with a dot."""
    words = {"*": r"[^.]*\.", "#": r"([^.]*\.)*"}
    expression = "".join(words.get(word, re.escape(word) + r"\.") for word in pattern.split("."))
    return re.fullmatch(expression, key + "." if key else "") is not None


def counted(patterns: Patterns, exchange: TopicExchange, generation: int) -> dict[str, int]:
    for _ in patterns.count(exchange, generation):
        pass
    return {pattern: count for pattern, count in patterns.counts.items() if count}


@given(BINDINGS, st.lists(st.lists(KEYS, max_size=20), max_size=4))
def test_each_binding_key_counts_what_it_matches(bindings, rounds):
    """Sampling now and then finds for each key the messages that it has matched since the beginning."""
    exchange, patterns = TopicExchange("e"), Patterns()
    for number, pattern in enumerate(bindings):
        exchange.bind(number, pattern)
    expected: Counter[str] = Counter()
    for keys in rounds:
        for key in keys:
            exchange.tally(1, key).published += 1
            expected.update(pattern for pattern in set(bindings) if matches(pattern, key))

        assert dict(expected) == counted(patterns, exchange, 1)
    assert 0 == patterns.missed


def test_a_binding_key_that_is_gone_is_forgotten():
    """A key that is bound again is counted from then on."""
    exchange, patterns = TopicExchange("e"), Patterns()
    exchange.bind("q", "a")
    exchange.tally(1, "a").published += 3

    assert {"a": 3} == counted(patterns, exchange, 1)
    exchange.unbind("q", "a")
    exchange.bind("q", "b")
    assert {} == counted(patterns, exchange, 2)
    exchange.bind("q", "a")
    exchange.tally(1, "a").published += 2
    assert {"a": 2} == counted(patterns, exchange, 3)


def test_a_binding_key_that_matches_nothing_is_reported():
    """A binding key without a match has a count of 0, after those with matches."""
    exchange, patterns = TopicExchange("e"), Patterns()
    exchange.bind("q", "idle")
    exchange.bind("q", "a")
    exchange.tally(1, "a").published += 3
    counted(patterns, exchange, 1)

    assert [("a", 3), ("idle", 0)] == patterns.most_matched


def test_what_is_not_distinguished_is_missed():
    """Messages with keys beyond those counted individually are the error of every count."""
    exchange, patterns = TopicExchange("e"), Patterns()
    exchange.bind("q", "#")
    for number in range(MOST_COUNTED_KEYS + 30):
        exchange.tally(1, str(number)).published += 1

    assert {"#": MOST_COUNTED_KEYS} == counted(patterns, exchange, 1)
    assert 30 == patterns.missed


def test_the_most_matched_are_reported():
    """The most matched of many binding keys are listed in descending order."""
    exchange, patterns = TopicExchange("e"), Patterns()
    for number in range(MOST + 40):
        exchange.bind("q", str(number))
        exchange.tally(1, str(number)).published += number
    counted(patterns, exchange, 1)

    assert [(str(number), number) for number in range(MOST + 39, 39, -1)] == patterns.most_matched


@pytest.fixture
def few(monkeypatch) -> int:
    """Let exchanges count a few keys individually only."""
    monkeypatch.setattr(base, "MOST_COUNTED_KEYS", 8)
    return 8


def looked(patterns: Patterns, exchange: TopicExchange) -> bool:
    for _ in patterns.count(exchange, 1):
        pass
    return patterns.make_room(exchange)


MANY_KEYS = st.lists(st.integers(0, 40).map(lambda number: f"k.{number % 7}.{number}"), max_size=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(MANY_KEYS, max_size=8))
def test_counts_are_right_but_for_what_is_known_to_be_missed(few, rounds):
    """No message is lost or counted twice for any number of keys, and counts are short by at most `missed`."""
    exchange, patterns = TopicExchange("e"), Patterns()
    bindings = ["#", "k.1.*", "k.*.8", "k.3.3", "other"]
    for number, pattern in enumerate(bindings):
        exchange.bind(number, pattern)
    true: Counter[str] = Counter()
    remembered: dict[str, base.Tally] = {}
    published = 0
    for keys in rounds:
        for key in keys:
            if key not in remembered:
                remembered[key] = exchange.tally(len(exchange.match(key)), key)
            remembered[key].published += 1
            published += 1
            true.update(pattern for pattern in bindings if matches(pattern, key))

            assert published == exchange.published_in
        if looked(patterns, exchange):
            remembered.clear()

        assert (published, true.total()) == (exchange.published_in, exchange.published_out)
        for pattern in bindings:
            counted_ = patterns.counts.get(pattern, 0)
            assert counted_ <= true[pattern] <= counted_ + patterns.missed
        assert len(exchange.tallies) <= few + 5  # one for each number of queues beside
        assert len(patterns._counted) <= few + 5


def test_keys_that_come_late_are_distinguished_in_the_end(few):
    """A frequent key is soon counted individually, whatever was there first, and those in use stay."""
    exchange, patterns = TopicExchange("e"), Patterns()
    exchange.bind("q", "late")
    exchange.bind("q", "busy")
    once = count()
    for _ in range(20):
        for _ in range(50):
            exchange.tally(1, f"once.{next(once)}").published += 1
            exchange.tally(1, "busy").published += 3
        looked(patterns, exchange)
    busy = patterns.counts["busy"]
    for _ in range(3):
        for _ in range(50):
            exchange.tally(1, f"once.{next(once)}").published += 1
            exchange.tally(1, "late").published += 2
            exchange.tally(1, "busy").published += 3
        looked(patterns, exchange)

    assert 20 * 50 * 3 == busy
    assert patterns.counts["late"] >= 100
    assert 23 * 50 * 3 == patterns.counts["busy"]


def test_nothing_is_given_up_without_need():
    """Keys stay individual, used or not, as long as there is room for all of them."""
    exchange, patterns = TopicExchange("e"), Patterns()
    exchange.bind("q", "#")
    for number in range(MOST_COUNTED_KEYS):
        exchange.tally(1, str(number)).published += 1

    assert [False, False] == [looked(patterns, exchange), looked(patterns, exchange)]
    exchange.tally(1, "one more").published += 1
    assert looked(patterns, exchange)
    assert not looked(patterns, exchange)


def test_a_million_keys_need_little_memory():
    """The number of keys that are kept is bounded, with and without sampling."""
    exchange, patterns = TopicExchange("e"), Patterns()
    exchange.bind("q", "#")
    for number in range(1_000_000):
        exchange.tally(1, str(number)).published += 1
        if not number % 100_000:
            looked(patterns, exchange)

    assert 1_000_000 == exchange.published_in
    assert len(exchange.tallies) <= MOST_COUNTED_KEYS + 1
    looked(patterns, exchange)
    assert len(patterns._counted) <= MOST_COUNTED_KEYS + 1


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 1), MANY_KEYS, st.booleans()), min_size=1, max_size=8),
)
def test_publishers_count_with_what_the_exchange_knows(few, tmp_path_factory, rounds):
    """Connections with cached routes lose no message when the exchange stops counting keys that they use."""
    node = Node(export=ExportConfig(dir=tmp_path_factory.mktemp("export")))
    clients = [Client(node), Client(node, port=40_001)]
    clients[0].declare("q")
    clients[0].ask(make(Queue.Bind, 0, "q", "amq.topic", "k.1.*", False, {}))
    exchange = node.vhosts["/"].router.exchanges["amq.topic"]
    rows = Rows(node, node="n", boot_id="b", clock=node.loop.monotonic)
    published: Counter[bool] = Counter()
    for number, keys, again in rounds:
        for key in keys:
            for _ in range(3 if again else 1):
                clients[number].publish(key, exchange="amq.topic")
                published[key.startswith("k.1.")] += 1
        found = [
            row
            for row in rows.take(node.wall_clock(), Process(0, 0, 0, 0), 0)
            if isinstance(row, TOPIC_PATTERN.struct) and row.pattern == "k.1.*"
        ]

        assert (published.total(), published[True]) == (exchange.published_in, exchange.published_out)
        for row in found:
            assert row.matches <= published[True] <= row.matches + row.error
        assert len(exchange.tallies) <= few + 2

"""How many messages binding keys match, beside matching each message with each key."""

import re
from collections import Counter

from hypothesis import given, strategies as st

from broker.export.patterns import MOST, Patterns
from exchanges.base import KEYS_TOLD_APART
from exchanges.topic import TopicExchange

WORDS = st.sampled_from(["a", "b", "c"])
KEYS = st.lists(WORDS, max_size=4).map(".".join)
BINDINGS = st.lists(
    st.lists(WORDS | st.sampled_from(["*", "#"]), min_size=1, max_size=4).map(".".join), max_size=6
)


def matches(pattern: str, key: str) -> bool:
    """Whether a topic pattern matches, by a regular expression over words that all end with a dot."""
    words = {"*": r"[^.]*\.", "#": r"([^.]*\.)*"}
    expression = "".join(words.get(word, re.escape(word) + r"\.") for word in pattern.split("."))
    return re.fullmatch(expression, key + "." if key else "") is not None


def counted(patterns: Patterns, exchange: TopicExchange, generation: int) -> dict[str, int]:
    for _ in patterns.count(exchange, generation):
        pass
    return {pattern: count for pattern, count in patterns.counts.items() if count}


@given(BINDINGS, st.lists(st.lists(KEYS, max_size=20), max_size=4))
def test_each_binding_key_counts_what_it_matches(bindings, rounds):
    """Looking now and then finds for each key the messages that it has matched since the beginning."""
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
    """What is bound anew counts from then on."""
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


def test_what_is_not_told_apart_is_missed():
    """Messages with keys beyond those that are counted one by one are the error of every count."""
    exchange, patterns = TopicExchange("e"), Patterns()
    exchange.bind("q", "#")
    for number in range(KEYS_TOLD_APART + 30):
        exchange.tally(1, str(number)).published += 1

    assert {"#": KEYS_TOLD_APART} == counted(patterns, exchange, 1)
    assert 30 == patterns.missed


def test_the_most_matched_are_told():
    """Of many binding keys those that matched most, the most first."""
    exchange, patterns = TopicExchange("e"), Patterns()
    for number in range(MOST + 40):
        exchange.bind("q", str(number))
        exchange.tally(1, str(number)).published += number
    counted(patterns, exchange, 1)

    assert [(str(number), number) for number in range(MOST + 39, 39, -1)] == patterns.most_matched()

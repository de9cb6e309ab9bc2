import itertools
import random
import time
from collections import deque

import pytest
from hypothesis import given, strategies as st

from bench.topic import match_afresh
from leveret.exchanges import topic as topic_module
from leveret.exchanges.topic import TopicExchange, TopicTrie, _shortest


def unbind_all(exchange, destination) -> int:
    """Remove all bindings to a destination; how many there were."""
    bound = exchange.detach(destination)
    return 0 if bound is None else len(list(exchange.sweep(destination, bound)))


# The facts of RabbitMQ's own routing test: binding key and queue (there is no t24; t27 is bound twice there,
# with different arguments).
PATTERNS = {
    "t1": "a.b.c",
    "t2": "a.*.c",
    "t3": "a.#.b",
    "t4": "a.b.b.c",
    "t5": "#",
    "t6": "#.#",
    "t7": "#.b",
    "t8": "*.*",
    "t9": "a.*",
    "t10": "*.b.c",
    "t11": "a.#",
    "t12": "a.#.#",
    "t13": "b.b.c",
    "t14": "a.b.b",
    "t15": "a.b",
    "t16": "b.c",
    "t17": "",
    "t18": "*.*.*",
    "t19": "vodka.martini",
    "t20": "a.b.c",
    "t21": "*.#",
    "t22": "#.*.#",
    "t23": "*.#.#",
    "t25": "*",
    "t26": "#.b.#",
    "t27": "args-test",
}
EXPECTED = {
    "a.b.c": "t1 t2 t5 t6 t10 t11 t12 t18 t20 t21 t22 t23 t26",
    "a.b": "t3 t5 t6 t7 t8 t9 t11 t12 t15 t21 t22 t23 t26",
    "a.b.b": "t3 t5 t6 t7 t11 t12 t14 t18 t21 t22 t23 t26",
    "": "t5 t6 t17",
    "b.c.c": "t5 t6 t18 t21 t22 t23 t26",
    "a.a.a.a.a": "t5 t6 t11 t12 t21 t22 t23",
    "vodka.gin": "t5 t6 t8 t21 t22 t23",
    "vodka.martini": "t5 t6 t8 t19 t21 t22 t23",
    "b.b.c": "t5 t6 t10 t13 t18 t21 t22 t23 t26",
    "nothing.here.at.all": "t5 t6 t21 t22 t23",
    "oneword": "t5 t6 t21 t22 t23 t25",
    "args-test": "t5 t6 t21 t22 t23 t25 t27",
}
REMOVED = ("t1", "t5", "t11", "t19", "t21")
ARGUMENTS = [{"foo": ("longstr", "bar")}, {"foo": ("longstr", "baz")}]

# Asked of a real RabbitMQ 3.10.8: pattern, key, whether they match.
EMPTY_WORDS = [
    ("*", "", False),
    ("#", "", True),
    ("", "", True),
    ("#.#", "", True),
    ("*.#", "", False),
    ("*.*", ".", True),
    (".", ".", True),
    ("a.*", "a.", True),
    ("a.", "a.", True),
    ("a", "a.", False),
    ("a.#", "a.", True),
    ("a.#", "a", True),
    ("a..b", "a..b", True),
    ("a.*.b", "a..b", True),
    ("a.#.b", "a..b", True),
    ("*", "*", True),
    ("*", "#", True),
    ("#", "*", True),
    ("a.*", "a.*", True),
]


def naive_match(pattern, key):
    """Match lists of words by trying everything."""
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(naive_match(pattern[1:], key[at:]) for at in range(len(key) + 1))
    return bool(key) and pattern[0] in {"*", key[0]} and naive_match(pattern[1:], key[1:])


def words(text):
    return text.split(".") if text else []


def bound_exchange():
    exchange = TopicExchange("vectors")
    for queue, pattern in PATTERNS.items():
        for arguments in ARGUMENTS if queue == "t27" else [None]:
            assert exchange.bind(queue, pattern, arguments)
    return exchange


@pytest.mark.parametrize("key", EXPECTED)
def test_vectors(key):
    """Each key of RabbitMQ's vectors reaches the queues that it reaches there."""
    assert set(EXPECTED[key].split()) == set(bound_exchange().match(key))


@pytest.mark.parametrize("key", EXPECTED)
def test_vectors_after_unbinding(key):
    """Unbinding takes away exactly the unbound; a queue bound twice with different arguments stays."""
    exchange = bound_exchange()
    for queue in REMOVED:
        assert exchange.unbind(queue, PATTERNS[queue])
    assert exchange.unbind("t27", "args-test", ARGUMENTS[1])
    assert set(EXPECTED[key].split()) - set(REMOVED) == set(exchange.match(key))


@pytest.mark.parametrize(("pattern", "key", "expected"), EMPTY_WORDS)
def test_empty_and_special_words(pattern, key, expected):
    """Empty words are words, the empty key has none, and wildcards in keys are words like others."""
    trie = TopicTrie()
    trie.add(pattern, "q")
    assert (("q",) if expected else ()) == trie.match(key) == match_afresh(trie, key)


WORD = st.sampled_from(["a", "b", "", "*", "#"])
TEXT = st.lists(WORD, max_size=6).map(".".join)


@given(
    changes=st.lists(st.tuples(st.booleans(), TEXT, st.integers(0, 3)), max_size=25),
    keys=st.lists(TEXT, min_size=1, max_size=8),
    limit=st.sampled_from([0, 3, 1000]),
    large=st.sampled_from([1, 2, 1000]),
)
def test_trie_matches_like_the_naive_matcher(changes, keys, limit, large):
    """After any adding and removing the trie agrees with trying everything, and nothing is left of an empty one."""
    trie = TopicTrie()
    model = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_module, "_TRANSITIONS_AT_MOST", limit)
        patch.setattr(topic_module, "_OTHER_WORDS_LIMIT", 1)
        patch.setattr(topic_module, "_LARGE", large)
        patch.setattr(topic_module, "_PIECE", large)
        for adding, pattern, destination in changes:
            if adding:
                trie.add(pattern, destination)
                model.add((pattern, destination))
            else:
                trie.remove(pattern, destination)
                model.discard((pattern, destination))
            for key in keys:
                expected = {to for known, to in model if naive_match(words(known), words(key))}
                for found in (trie.match(key), trie.match(key), match_afresh(trie, key)):
                    assert sorted(expected) == sorted(found)
                deque(trie.steps_to(key) or (), maxlen=0)
                assert sorted(expected) == sorted(trie.match(key))
    for pattern, destination in model:
        assert not trie.is_empty()
        trie.remove(pattern, destination)
    assert trie.is_empty()
    assert trie._nodes == 0


def test_hash_heavy_patterns_stay_polynomial():
    """Sixty `#` against a key of a hundred words take milliseconds, first matched and remembered."""
    trie = TopicTrie()
    for length in range(1, 60):
        trie.add(".".join(["#"] * length), length)
        trie.add(".".join(["#", "a"] * length), -length)
    chance = random.Random(1)
    keys = [".".join(chance.choices("ab", k=100)) for _ in range(10)]
    start = time.process_time()
    for key in keys:
        assert len(trie.match(key)) >= 59
        assert set(trie.match(key)) == set(match_afresh(trie, key))
    assert time.process_time() - start < 5.0


def test_what_is_remembered_is_bounded():
    """Keys with unique words do not grow the memory without limit."""
    trie = TopicTrie()
    trie.add("sensor.*.temperature", "q")
    for number in range(5000):
        assert trie.match(f"sensor.{number}.temperature") == ("q",)
        assert trie.match(f"{number}.{number}") == ()
    assert len(trie._states) < 20
    assert trie._remembered < 1100


def hostile(depth: int) -> TopicTrie:
    """A trie in which a key of so many times `a` matches as many patterns as there are."""
    trie = TopicTrie()
    for pattern in itertools.product("*a", repeat=depth):
        trie.add(".".join(pattern), "q")
    return trie


def test_large_sets_are_not_remembered():
    """The nodes of all states that are remembered are bounded, however many patterns match the same beginnings."""
    trie = hostile(11)
    assert ("q",) == trie.match(".".join("a" * 11))
    assert 4096 > max(len(state.nodes) for state in trie._states.values())
    assert sum(len(state.nodes) for state in trie._states.values()) == trie._members
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_module, "_MEMBERS_AT_MOST", 100)
        trie.forget()
        for number in range(2000):
            trie.match(".".join("a" * (number % 9)) + f".{number}")
            assert 100 + 1024 > trie._members


def test_a_long_match_can_be_made_in_steps():
    """Each step looks at a bounded number of nodes, the result waits, and a change in between means another try."""
    trie = hostile(12)
    key = ".".join("a" * 12)
    steps = trie.steps_to(key)
    assert steps is not None
    for _ in range(3):
        next(steps)
    trie.add(key, "r")
    assert 12 < sum(1 for _ in steps) < 40
    assert trie.steps_to(key) is None
    assert {"q", "r"} == set(trie.match(key))
    trie.remove(key, "r")
    assert ("q",) == trie.match(key)
    assert hostile(9).steps_to("a.a.a.a.a.a.a.a.a") is None


def test_forgetting_starts_anew_when_the_keys_change():
    """A full memory goes on matching, and is given to other keys after a while."""
    trie = TopicTrie()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_module, "_TRANSITIONS_AT_MOST", 4)
        trie.add("#.a.*.*", "q")
        for number in range(500):
            key = ".".join(f"{number:09b}").replace("0", "a")
            assert (("q",) if key[-5] == "a" else ()) == trie.match(key)
    assert trie._remembered <= 4


def test_many_destinations_of_one_pattern():
    """A thousand destinations of one pattern come and go without a trace."""
    exchange = TopicExchange("x")
    for number in range(1000):
        exchange.bind(number, "a.*")
    assert set(range(1000)) == set(exchange.match("a.b"))
    for number in range(1000):
        assert unbind_all(exchange, number) == 1
    assert exchange.match("a.b") == ()
    assert exchange._trie is None


def test_destination_bound_by_two_patterns_is_found_once():
    """A queue that two patterns lead to is one destination."""
    exchange = TopicExchange("x")
    exchange.bind("q", "a.#")
    exchange.bind("q", "*.b")
    assert exchange.match("a.b") == ("q",)


def test_hashes_side_by_side_are_one():
    """Patterns that differ only in how many `#` stand side by side match the same and take the place of one."""
    exchange = TopicExchange("x")
    exchange.bind("q", "a." + ".".join(["#"] * 50))
    exchange.bind("q", "a.#")
    nodes = exchange._trie._nodes
    found = [exchange.match(key) for key in ("a", "a.b.c", "b")]
    exchange.unbind("q", "a.#")
    left = exchange.match("a.b")
    exchange.unbind("q", "a." + ".".join(["#"] * 50))

    assert (2, [("q",), ("q",), ()], ("q",), ()) == (nodes, found, left, exchange.match("a.b"))


@pytest.mark.parametrize(
    ("pattern", "shortest"),
    [("#.#", "#"), ("#.#.a.#.#.#", "#.a.#"), ("a#.#b", "a#.#b"), ("*.#.#.*", "*.#.*"), (".#.#.", ".#.")],
)
def test_only_whole_words_are_hashes(pattern, shortest):
    """A pattern loses the words `#` that follow one, and nothing else."""
    assert shortest == _shortest(pattern)

"""Benchmark of topic matching: 2,000 patterns against 1,000,000 generated topics, and the route cache in front.

Patterns and topics have 2-6 words out of a vocabulary of 26; in patterns a word is `*` with 10 % and `#` with 1 %
probability. "matched" uses no whole-key cache: the topic exchange splits and matches every key. "afresh" remembers no
transitions either, which is the cost of each first match after a bind. "repeated" uses the router's cache with keys
that it has. Run: python -m bench.topic [--topics N] [--patterns N] [--seed N]
"""

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from leveret.exchanges.router import Router
from leveret.exchanges.topic import TopicExchange, TopicTrie, _accepted, _closure, _Node, _step, _words

VOCABULARY = "abcdefghijklmnopqrstuvwxyz"
LIMIT_SECONDS = 6.0
LIMIT_REPEATED_US = 0.3


def naive_match(pattern: Sequence[str], key: Sequence[str]) -> bool:
    if not pattern:
        return not key
    if pattern[0] == "#":
        return any(naive_match(pattern[1:], key[at:]) for at in range(len(key) + 1))
    return bool(key) and pattern[0] in {"*", key[0]} and naive_match(pattern[1:], key[1:])


def match_afresh(trie: TopicTrie, key: str) -> tuple[object, ...]:
    """Match without remembered states: the reference for tests, and the cost of a first match."""
    nodes: Iterable[_Node] = _closure((trie._root,))
    for word in _words(key):
        nodes = _step(nodes, word)
        if not nodes:
            return ()
    return _accepted(nodes)


def generate(patterns: int, topics: int, seed: int) -> tuple[list[str], list[str]]:
    chance = random.Random(seed)

    def pattern_word() -> str:
        die = chance.random()
        return "*" if die < 0.10 else "#" if die < 0.11 else chance.choice(VOCABULARY)

    made = [".".join(pattern_word() for _ in range(chance.randint(2, 6))) for _ in range(patterns)]
    asked = [".".join(chance.choices(VOCABULARY, k=chance.randint(2, 6))) for _ in range(topics)]
    return made, asked


def measure(match: Callable[[str], Sequence[object]], topics: list[str]) -> tuple[float, int]:
    found = 0
    start = time.process_time()
    for topic in topics:
        found += len(match(topic))
    return time.process_time() - start, found


def report(name: str, seconds: float, count: int, found: int) -> None:
    each = 1e6 * seconds / count
    print(f"{name:20} {count:9,} topics {seconds:6.2f} s CPU {each:6.2f} us/topic {found:10,} matches")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--topics", type=int, default=1_000_000)
    parser.add_argument("--patterns", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    patterns, topics = generate(options.patterns, options.topics, options.seed)

    router = Router()
    exchange = router.declare("bench", "topic")
    assert isinstance(exchange, TopicExchange)
    start = time.process_time()
    for number, pattern in enumerate(patterns):
        router.bind("bench", number, pattern)
    print(f"{len(patterns):,} patterns bound in {time.process_time() - start:.3f} s CPU")
    trie = exchange._trie
    assert isinstance(trie, TopicTrie)

    seconds, found = measure(exchange.match, topics)
    report("matched", seconds, len(topics), found)
    print(f"  {len(set(topics)):,} distinct topics, {trie._nodes:,} nodes, {len(trie._states):,} states")
    some = topics[: max(1, len(topics) // 20)]
    afresh, found = measure(partial(match_afresh, trie), some)
    report("afresh (no memo)", afresh, len(some), found)

    strangers = [f"{topic}.{number:x}" for number, topic in enumerate(some)]
    unique, found = measure(exchange.match, strangers)
    report("unique last word", unique, len(strangers), found)

    repeated = list(dict.fromkeys(topics))[:1000] * (len(topics) // 1000)
    route = router.route_key
    cached, found = measure(lambda topic: route(exchange, topic), repeated)
    report("repeated, route_key", cached, len(repeated), found)
    cached_list, found = measure(lambda topic: router.route(exchange, (topic,)), repeated)
    report("repeated, route", cached_list, len(repeated), found)

    split = [pattern.split(".") for pattern in patterns]
    for topic in topics[:: max(1, len(topics) // 200)]:
        words = topic.split(".")
        expected = {number for number, pattern in enumerate(split) if naive_match(pattern, words)}
        assert expected == set(exchange.match(topic)) == set(match_afresh(trie, topic)), topic
    print("a sample of 200 agrees with a naive matcher")

    passed = seconds <= LIMIT_SECONDS and 1e6 * cached <= LIMIT_REPEATED_US * len(repeated)
    verdict = "met" if passed else "MISSED"
    print(f"bars: <= {LIMIT_SECONDS} s matched, <= {LIMIT_REPEATED_US} us repeated: {verdict}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

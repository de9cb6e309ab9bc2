"""The part of Prometheus' query language needed to find the metrics and labels that an expression asks for."""

import re
from collections.abc import Iterator
from typing import NamedTuple

FUNCTIONS = {
    "sum", "count", "min", "max", "rate", "irate", "increase", "histogram_quantile", "predict_linear", "min_over_time",
    "max_over_time", "label_values", "delta", "topk",
}  # fmt: skip
OPERATORS = {"and", "or", "unless"}
RATES = {"rate", "irate", "increase"}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<name>[A-Za-z_:][\w:]*)
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<range>\[[^\]]+\])
      | (?P<matchers>\{[^}]*\})
      | (?P<sign>[=!<>]=|[-+*/(),<>])
    )""",
    re.VERBOSE,
)
_MATCHER = re.compile(r'\s*(\w+)\s*(=|!=|=~|!~)\s*"([^"]*)"\s*(?:,|$)')


class Selector(NamedTuple):
    """A metric that is asked for.

    Attributes:
        metric: its name.
        matchers: label, operator, value.
        function: what it stands in, '' for nothing.
        is_range: whether it is asked for over a time.

    """

    metric: str
    matchers: tuple[tuple[str, str, str], ...]
    function: str
    is_range: bool


class Parsed(NamedTuple):
    """Parts of an expression: metrics, labels to join on, to take over and to sum by."""

    selectors: list[Selector]
    joined: set[str]
    taken: set[str]
    by: set[str]


def tokens(text: str) -> Iterator[tuple[str, str]]:
    """The words of an expression with their kinds; raises ValueError for what is none."""
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"cannot read {text[at:]!r}")
        assert match.lastgroup is not None
        yield match.lastgroup, match[match.lastgroup]
        at = match.end()


def parse(text: str) -> Parsed:
    """Return the metrics and labels of an expression."""
    found = Parsed([], set(), set(), set())
    words = list(tokens(text))
    lists = {"on": found.joined, "group_left": found.taken, "by": found.by}
    function = ""
    at = 0
    if words[0][1] == "label_values":  # Grafana's own: a metric, and perhaps matchers, then a label
        found.by.add(words[-2][1])
        words = words[2:-3]
    while at < len(words):
        kind, word = words[at]
        at += 1
        if kind != "name" or word in OPERATORS:
            continue
        if word in lists:
            assert words[at] == ("sign", "(")
            end = words.index(("sign", ")"), at)
            lists[word].update(name for kind, name in words[at:end] if kind == "name")
            at = end + 1
        elif word in FUNCTIONS:
            function = word
        else:
            matchers, is_range = (), False
            if at < len(words) and words[at][0] == "matchers":
                matchers = tuple(_MATCHER.findall(words[at][1][1:-1]))
                at += 1
            if at < len(words) and words[at][0] == "range":
                is_range = True
                at += 1
            found.selectors.append(Selector(word, matchers, function if is_range else "", is_range))
    return found

"""Conditions on messages: the language, its limits, and what it costs."""

import re
import time
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from leveret.broker.message_filter.message_filter import MOST_DEPTH, FilterError, MessageFilter

ROOT = Path(__file__).resolve().parents[3]


@dataclass
class Letter:
    headers: dict[str, Any] = field(default_factory=dict)
    properties: dict[str, Any] = field(default_factory=dict)
    exchange: str = "shop"
    routing_key: str = "order.new"
    redelivered: bool = False
    age: float | None = 90.0
    due_in: float | None = None
    size: int = 2048
    death: dict[str, Any] | None = None


DEAD = Letter(
    headers={"kind": "retry", "n": 3, "price": Decimal("1.5"), "ok": True, "raw": b"\xffab", "list": [1], "no": None,
             "odd name": "x", "a.b": "dotted", "or": 1},
    properties={"type": "order", "priority": 4, "message_id": "m-1"},
    redelivered=True,
    death={"reason": "rejected", "queue": "orders", "count": 1},
)  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("", True),
        ("  ", True),
        ('headers.kind == "retry"', True),
        ("headers.kind == 'retry'", True),
        ('headers.kind != "retry"', False),
        ('headers.kind != "other"', True),
        ("headers.kind != 1", True),
        ("headers.kind == 1", False),
        ("headers.kind > 1", False),
        ('headers.none == "x"', False),
        ('headers.none != "x"', False),
        ('not headers.none == "x"', True),
        ('headers.none not in ("x")', False),
        ("headers.none exists", False),
        ("headers.no exists", True),
        ("headers.no == 0", False),
        ("headers.list exists and not headers.list == 1", True),
        ("headers.n >= 3 and headers.n < 3.5", True),
        ("headers.n == 3.0", True),
        ("headers.n == true", False),
        ("headers.price == 1.5", True),
        ("headers.ok", True),
        ("not headers.ok", False),
        ("headers.ok == true", True),
        ("headers.kind", False),
        ('headers.raw =~ "ab$"', True),
        ('headers."odd name" == "x"', True),
        ('headers.a.b == "dotted"', True),
        ("headers.or == 1", True),
        ('headers.kind in ("a", "retry")', True),
        ('headers.kind not in ("a", "b")', True),
        ("headers.n in (1, 2)", False),
        ('properties.type == "order"', True),
        ("properties.priority > 3", True),
        ('properties.app_id == ""', False),
        ("properties.app_id exists", False),
        ('routing_key =~ "^order\\\\."', True),
        ('routing_key =~ "(?i)NEW"', True),
        ('routing_key =~ "^new"', False),
        ('exchange == "shop"', True),
        ('exchange < "t"', True),
        ("redelivered", True),
        ("redelivered == false", False),
        ("age > 1m and age < 2m", True),
        ("age >= 90 and age <= 90s", True),
        ("size == 2KiB", True),
        ("size > 2kB", True),
        ("size > -1", True),
        ('death.reason == "rejected" and death.queue == "orders"', True),
        ('death.reason in ("expired", "maxlen")', False),
        ("NOT (redelivered AND size > 1) OR true_ exists", None),
        ("not (redelivered and size > 1) or redelivered", True),
        ("redelivered or size > 1 and size < 0", True),
        ("(redelivered or size > 1) and size < 0", False),
        ("NOT redelivered OR size == 2048", True),
    ],
)
def test_conditions(condition, expected):
    """Comparisons, lists, negation and their precedence; a field that is absent compares false, also with `!=`."""
    if expected is None:
        with pytest.raises(FilterError):
            MessageFilter(condition)
    else:
        assert MessageFilter(condition).matches(DEAD) is expected


def test_an_unknown_age_compares_false():
    """A message of unknown age is neither older nor younger than anything."""
    letter = Letter(age=None)

    assert not MessageFilter("age > 0 or age <= 0 or age != 1 or age exists").matches(letter)
    assert not MessageFilter("death.reason exists or death.queue != 'a'").matches(letter)


@pytest.mark.parametrize(
    ("condition", "column", "text"),
    [
        ("size >", 7, "a text in quotes, a number, true or false is expected, not the end"),
        ("size = 1", 6, "equality is '=='"),
        ("size == 1 && age > 1", 11, "use 'and'"),
        ("size == 1 age > 1", 11, "'and', 'or' or the end is expected"),
        ('size == "1"', 9, "size is a number, not a text"),
        ("redelivered == 1", 16, "redelivered is a boolean, not a number"),
        ("redelivered > true", 15, "needs a number or a text"),
        ("size", 5, "a comparison is expected after size"),
        ("headers. == 1", 1, "the name of a header is missing"),
        ("headers == 1", 1, "unknown field 'headers'"),
        ("routing-key == 'a'", 1, "did you mean routing_key?"),
        ("properties.messageid == 'a'", 1, "did you mean properties.message_id?"),
        ("death.count == 1", 1, "unknown field"),
        ("(size > 1", 10, "')' is expected, not the end"),
        ("size > 1)", 9, "'and', 'or' or the end is expected, not ')'"),
        ("routing_key == 'abc", 16, "no closing quote"),
        ("routing_key == 'a\\d'", 18, "is no escape"),
        ("routing_key =~ 'a('", 16, "invalid regular expression"),
        ("routing_key =~ '(a)\\\\1'", 16, "invalid regular expression"),
        ("routing_key =~ 5", 16, "a regular expression in quotes is expected"),
        ("size =~ 'a'", 6, "'=~' needs a text"),
        ("size in 1", 9, "'(' is expected, not a number"),
        ("size in ()", 10, "a text in quotes, a number"),
        ("size not 1", 10, "'in' is expected after 'not'"),
        ("size > 3h", 8, "size has no unit 'h'"),
        ("size > 3parsecs", 8, "unknown unit 'parsecs'"),
        ("age > 3KiB", 7, "age has no unit 'KiB'"),
        ("headers.x > 3s", 13, "headers.x has no unit 's'"),
        ("1 == 1", 1, "a field is expected, not a number"),
        ("size > 1 and exists headers.x", 14, "a field is expected, not 'exists': write 'FIELD exists'"),
        ("__import__('os')", 1, "unknown field '__import__'"),
        ("headers.x == ü", 14, "unexpected 'ü'"),
    ],
)
def test_errors_name_the_column(condition, column, text):
    """A condition that is not in the language is refused with the column of its first mistake, and with advice."""
    with pytest.raises(FilterError) as refused:
        MessageFilter(condition)

    assert column == refused.value.column
    assert f"column {column}: " in str(refused.value)
    assert text in str(refused.value)


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 100_000,
        "not " * 1000 + "redelivered",
        "(" * (MOST_DEPTH + 1) + "redelivered" + ")" * (MOST_DEPTH + 1),
        " or ".join(["size > 1"] * 200),
        f"size in ({', '.join(['1'] * 300)})",
        "size > " + "9" * 4000,
        "headers." + "a" * 5000 + " exists",
        "routing_key =~ '(a{1000}){1000}'",
        "routing_key =~ '(?:a?){900}'",
        " and ".join([f"routing_key =~ '{'a' * 200}'"] * 6),
        "\x00",
        "headers.\ud800 == 1",
    ],
)
def test_conditions_beyond_the_limits_are_refused(condition):
    """Length, depth, values and the size of patterns are bounded, whatever else is wrong."""
    with pytest.raises(FilterError):
        MessageFilter(condition)


@pytest.mark.parametrize(
    "pattern",
    [".*a.{100}", "(?:a?){150}a{150}", "(.*a.{10}){8}", "[ab]*a[ab]{12}c", "(?i)([a-z]{1,5}){1,20}x"],
)
def test_a_hostile_pattern_costs_milliseconds(pattern):
    """The patterns that cost most, over the text that costs most, take no more than a step of the loop may."""
    condition = MessageFilter(f"headers.x =~ '{pattern}'")
    letter = Letter(headers={"x": "ab" * 60_000 + "aab" * 100})
    took = []
    for _ in range(5):
        began = time.thread_time()
        condition.matches(letter)
        took.append(time.thread_time() - began)

    assert min(took) < 0.05


def test_the_examples_of_the_page_are_conditions():
    """Every condition of docs/filters.md is in the language, and its error text is the one that is shown."""
    blocks = (ROOT / "docs" / "filters.md").read_text().split("```text\n")[1:]
    examples, error = (block.split("```")[0].splitlines() for block in blocks)

    assert len(examples) > 4
    for example in examples:
        MessageFilter(example)
    with pytest.raises(FilterError) as refused:
        MessageFilter("size = 1")
    assert error == [str(refused.value)]


def test_the_hints_of_the_web_page_are_conditions():
    """Every example in the fields of the web page, and in its guide, is in the language."""
    sources = "".join(
        each.read_text() for each in (ROOT / "broker" / "page" / "static" / "pages").glob("*.js")
    )
    hints = re.findall(r'"(?:Such as )?(headers\.[^";]+)', sources)
    guide = (ROOT / "docs" / "howto" / "use-the-web-page.md").read_text()
    examples = re.findall(r"^(headers\..+)$", guide, re.MULTILINE)

    assert len(hints) > 2
    assert examples
    for example in hints + examples:
        MessageFilter(example)


# -- generated conditions ------------------------------------------------------------------------------------------------

NAMES = ("a", "b", "x-y", "odd name")
scalars = st.one_of(
    st.integers(-3, 3), st.sampled_from([0.5, 1.0]), st.booleans(), st.sampled_from(["", "a", "b", "a'\\\"b"])
)
letters = st.builds(
    Letter,
    headers=st.dictionaries(st.sampled_from(NAMES), st.one_of(scalars, st.none(), st.just([1]))),
    properties=st.fixed_dictionaries({}, optional={"type": st.sampled_from(["a", "b"]), "priority": st.integers(0, 3)}),
    exchange=st.sampled_from(["", "a"]),
    routing_key=st.sampled_from(["a", "ab", "b"]),
    redelivered=st.booleans(),
    age=st.one_of(st.none(), st.floats(0, 4)),
    size=st.integers(0, 4),
    death=st.one_of(st.none(), st.fixed_dictionaries({}, optional={"reason": st.sampled_from(["a", "b"])})),
)  # fmt: skip


def text_of(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def name_of(name: str) -> str:
    return f'headers."{name}"' if " " in name else f"headers.{name}"


headers = st.sampled_from(NAMES).map(lambda name: (name_of(name), f"headers:{name}", scalars))
numbers = st.sampled_from(["size", "age", "properties.priority"]).map(
    lambda name: (name, name, st.integers(-1, 4))
)
texts = st.sampled_from(["routing_key", "exchange", "properties.type", "death.reason"]).map(
    lambda name: (name, name, st.sampled_from(["", "a", "b", "ab"]))
)
bits = st.just(("redelivered", "redelivered", st.booleans()))


@st.composite
def comparisons(draw) -> tuple[str, Any]:
    """A comparison as text and as a tree for the naive evaluator."""
    written, name, values = draw(st.one_of(headers, numbers, texts, bits))
    kind = draw(st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in", "exists"]))
    if kind == "exists":
        return f"{written} exists", ("exists", name)
    if kind in {"in", "not in"}:
        several = draw(st.lists(values, min_size=1, max_size=3))
        return f"{written} {kind} ({', '.join(map(text_of, several))})", (kind, name, several)
    value = draw(values)
    if isinstance(value, bool) and kind not in {"==", "!="}:
        kind = "=="
    return f"{written} {kind} {text_of(value)}", (kind, name, value)


def joined(inner: st.SearchStrategy[tuple[str, Any]]) -> st.SearchStrategy[tuple[str, Any]]:
    return st.one_of(
        inner.map(lambda each: (f"not ({each[0]})", ("not", each[1]))),
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3)).map(
            lambda pair: (
                f" {pair[0]} ".join(f"({each[0]})" for each in pair[1]),
                (pair[0], *[each[1] for each in pair[1]]),
            )
        ),
    )


conditions = st.recursive(comparisons(), joined, max_leaves=8)


def kind_of(value: Any) -> str | None:
    for kind, types in (("boolean", bool), ("number", (int, float)), ("text", str)):
        if isinstance(value, types):
            return kind
    return None


def naive(tree: Any, letter: Letter) -> bool:
    """Evaluate a condition by the definition of the language, without any of the code under test."""
    head = tree[0]
    if head == "not":
        return not naive(tree[1], letter)
    if head in {"and", "or"}:
        values = [naive(each, letter) for each in tree[1:]]
        return all(values) if head == "and" else any(values)
    group, _, name = tree[1].replace(".", ":", 1).partition(":")
    owner = {"headers": letter.headers, "properties": letter.properties, "death": letter.death or {}}.get(
        group
    )
    if owner is None:
        there, found = getattr(letter, group) is not None, getattr(letter, group)
    else:
        there, found = name in owner, owner.get(name)
    if head == "exists" or not there:
        return there
    if head in {"in", "not in"}:
        return any(naive(("==", tree[1], each), letter) for each in tree[2]) is (head == "in")
    alike = kind_of(found) == kind_of(tree[2])
    if head == "!=":
        return not (alike and found == tree[2])
    compared = {"==": "__eq__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}[head]
    if kind_of(found) == "number" and alike:
        found, other = float(found), float(tree[2])
        return bool(getattr(found, compared)(other))
    return alike and bool(getattr(found, compared)(tree[2]))


@given(conditions, letters)
def test_generated_conditions(condition, letter):
    """A compiled condition says of every message what its definition says."""
    text, tree = condition

    assert naive(tree, letter) is MessageFilter(text).matches(letter)


def column_of_error(text: str) -> int:
    """Return the column of the error of a condition; 1 if it has none, and says something of a message."""
    try:
        assert MessageFilter(text).matches(DEAD) in {True, False}
    except FilterError as error:
        return error.column
    return 1


@given(st.text(st.sampled_from(list("abx01.\"'\\()=~<>!,- ")) | st.characters(), max_size=60))
def test_any_text_is_a_condition_or_an_error_with_a_column(text):
    """Nothing but a FilterError, whose column is in the text or behind it, comes of any text."""
    assert 1 <= column_of_error(text) <= len(text) + 1


WORDS = (
    "and", "or", "not", "in", "exists", "true", "false", "(", ")", ",", "==", "!=", "<", "=~", "size", "age", "redelivered",
    "headers.a", "headers.", '"a"', "'[a'", "5", "5s", "-1", "routing_key", "death.reason", "properties.type",
)  # fmt: skip


@given(st.lists(st.sampled_from(WORDS), max_size=30))
def test_any_tokens_are_a_condition_or_an_error_with_a_column(words):
    """Texts that have only tokens of the language are judged like any other."""
    text = " ".join(words)
    assert 1 <= column_of_error(text) <= len(text) + 1

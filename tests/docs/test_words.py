"""Words of docstrings and of the texts that people read, and the length of pages and of their sentences."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from size.run import pages

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("analytics", "bench", "broker", "confirm", "exchanges", "leveret", "storage", "tests")
PRODUCT = ("analytics", "broker", "confirm", "exchanges", "storage")
RIDDLES = re.compile(
    r"\b(?:told|anew|whoever|let go|put off|tried again|given back|given up|waits? for it|look(?:ed|ing)? at"
    r"|look of|tells? of|is gone|are gone|not there|nothing is known|nothing that|no room|that somebody wants)\b"
)
"""Paraphrases of what a standard term says: reported, again, released, deferred, retried, deleted, missing, disk full."""
VAGUE = re.compile(
    r"\b(?:told|anew|whoever|let go|put off|tried again|given up|somebody|nobody|anybody|everybody|is gone|are gone)\b"
)
"""Words of docstrings for which there is a noun or a verb of the field: client, caller, notified, released, ended."""
OCTETS = re.compile(r"\boctets?\b", re.IGNORECASE)
WIRE = ("broker/amqp/", "broker/connection/")
"""Folders whose texts may speak of the octets of frames."""
MOST_BYTES = 12 * 1024
MOST_WORDS = 40
QUESTIONS = ("What", "Who", "Whether", "How", "Where", "When", "Why", "The same")


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions and attributes.

    Those of handlers are not among them: they are the texts of the reference beside the paths of the routes.
    """
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        is_handler = any(isinstance(each, ast.Name) and "ROUTES" in each.id for each in heads(node))
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):
            for statement in getattr(node, field, ()):
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))) if field == "body" and not is_handler:
                        yield text
                pending.append(statement)


def heads(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the object whose method decorates a function, for each decorator."""
    for decorator in getattr(node, "decorator_list", ()):
        head = decorator
        while isinstance(head, ast.Call | ast.Attribute):
            head = head.func if isinstance(head, ast.Call) else head.value
        yield head


@cache
def strings_of(folder: str) -> list[tuple[str, list[str], list[str]]]:
    """Return for each file of a folder its name, its docstrings, and the texts of the product: parsing takes seconds."""
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        if not path.is_symlink() and (folder != "leveret" or path.parent == ROOT / "leveret"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for_people = [*texts(tree)] if folder in PRODUCT else []
            found.append((path.relative_to(ROOT).as_posix(), [*docstrings(tree)], for_people))
    return found


def asks(text: str) -> bool:
    """Return whether a docstring opens like a question or refers to the one before it."""
    words = text.replace(",", " ").split()
    return any(words[: len(opening.split())] == opening.split() for opening in QUESTIONS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_open_with_a_term_or_a_verb(folder: str):
    """No docstring opens with What, Who, Whether, How, Where, When, Why or The same."""
    found = [
        f"{name}: {text.strip().splitlines()[0]}"
        for name, written, _ in strings_of(folder)
        for text in written
        if text.strip() and asks(text)
    ]

    assert found == []


@pytest.mark.parametrize("folder", PRODUCT)
def test_docstrings_name_who_acts(folder: str):
    """No docstring of the product has somebody, nobody, whoever or another word in place of the field's noun."""
    found = [
        f"{name}: {text.strip().splitlines()[0]}"
        for name, written, _ in strings_of(folder)
        for text in written
        if VAGUE.search(re.sub(r"`[^`]*`", "", text))
    ]

    assert found == []


def test_a_docstring_that_asks_is_found():
    """Docstrings of classes, functions and attributes are looked at, and openings are compared as whole words."""
    source = '"""Whatever."""\nclass A:\n    """What it is."""\n    x = 1\n    """The same, but one."""\n'
    source += 'def f():\n    """Howls."""\n'

    assert ["What it is.", "The same, but one."] == [
        text for text in docstrings(ast.parse(source)) if asks(text)
    ]


def texts(tree: ast.Module) -> Iterator[str]:
    """Yield the string literals that are no docstrings and have a space; placeholders of f-strings are left out."""
    statements = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if " " in text.strip() and id(node) not in statements:
                yield text


@pytest.mark.parametrize("folder", PRODUCT)
def test_texts_for_people_have_plain_words(folder: str):
    """Log lines, errors, help texts, reports and reference pages use standard terms, and bytes outside the wire."""
    found = [
        f"{name}: {text}"
        for name, _, for_people in strings_of(folder)
        for text in for_people
        if RIDDLES.search(text) or (OCTETS.search(text) and not name.startswith(WIRE))
    ]

    assert found == []


def test_a_paraphrase_is_found():
    """Literals of calls and assignments are looked at, f-strings too; docstrings and names are not."""
    source = '"""Told."""\nlog.error("nobody was told", "octets")\nx = f"a queue that is gone: {anew}"\n'

    assert ["nobody was told", "a queue that is gone: "] == [
        text for text in texts(ast.parse(source)) if RIDDLES.search(text)
    ]


def sentences(page: str) -> Iterator[str]:
    """Yield the sentences of a page: those of its paragraphs and list items, without tables, headings and programs."""
    page = re.sub(r"^ *```.*?^ *```$|<!--.*?-->", "", page, flags=re.MULTILINE | re.DOTALL)
    page = re.sub(r"^ *(\||#|:::|\().*$", "", page, flags=re.MULTILINE)
    page = re.sub(r"`[^`]*`", "code", page)
    page = re.sub(r"\]\([^)]*\)", "]", page)
    for paragraph in re.split(r"\n\s*\n|^ *(?:[-*]|\d+\.) ", page, flags=re.MULTILINE):
        yield from re.split(r"(?<=[.!?])[*_)\"]* ", " ".join(paragraph.split()))


def words_of(sentence: str) -> int:
    """Return the number of words of a sentence; marks alone are none."""
    return sum(bool(re.search(r"\w", word)) for word in sentence.split())


PAGES = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)


@PAGES
def test_a_page_is_short(page: Path):
    """A page that is written by hand has at most 12 KiB."""
    assert len(page.read_bytes()) <= MOST_BYTES


@PAGES
def test_sentences_are_short(page: Path):
    """No sentence of a page has more than 40 words."""
    assert [] == [each for each in sentences(page.read_text(encoding="utf-8")) if words_of(each) > MOST_WORDS]


def test_a_long_sentence_is_found():
    """Sentences of paragraphs and items are counted, each alone; tables, code and programs are not."""
    long = "word " * 41 + "end."
    page = (
        f"# {long}\n\nShort. {long} Short.\n- {long}\n- Short\n\n| {long} |\n\n```\n{long}\n```\n`{long}`\n"
    )

    assert 2 == sum(words_of(each) > MOST_WORDS for each in sentences(page))

"""Openings of docstrings: the first words are a term or a verb, not a question."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("analytics", "bench", "broker", "confirm", "exchanges", "leveret", "storage", "tests")
QUESTIONS = ("What", "Who", "Whether", "How", "Where", "When", "Why", "The same")


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module, its classes, functions and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", ())
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    yield text


def asks(text: str) -> bool:
    """Return whether a docstring opens like a question or refers to the one before it."""
    words = text.replace(",", " ").split()
    return any(words[: len(opening.split())] == opening.split() for opening in QUESTIONS)


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_open_with_a_term_or_a_verb(folder: str):
    """No docstring opens with What, Who, Whether, How, Where, When, Why or The same."""
    found = [
        f"{path.relative_to(ROOT)}: {text.strip().splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.is_symlink() and (folder != "leveret" or path.parent == ROOT / "leveret")
        for text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if text.strip() and asks(text)
    ]

    assert found == []


def test_a_docstring_that_asks_is_found():
    """Docstrings of classes, functions and attributes are looked at, and openings are compared as whole words."""
    source = '"""Whatever."""\nclass A:\n    """What it is."""\n    x = 1\n    """The same, but one."""\n'
    source += 'def f():\n    """Howls."""\n'

    assert ["What it is.", "The same, but one."] == [
        text for text in docstrings(ast.parse(source)) if asks(text)
    ]

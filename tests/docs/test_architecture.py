"""docs/behaviours.md names functions that exist, and docs/folders.md each folder."""

import ast
import re

import pytest
from processes.running import ROOT

PAGE = (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8")
BEHAVIOURS = 70
ROW = re.compile(r"\| (.+) \| `([\w/]+\.py)` \| `([\w.]+)` \|")


def rows():
    """The rows of the table, without the two lines above them; each has to be of the form."""
    return [ROW.fullmatch(line).groups() for line in re.findall(r"^\|.*$", PAGE, re.MULTILINE)[2:]]


def defines(source, name):
    """True if a module has a function of that name, which is dotted for a method of a class."""
    found = ast.parse(source).body
    *classes, function = name.split(".")
    for each in classes:
        found = [
            part
            for node in found
            if isinstance(node, ast.ClassDef) and node.name == each
            for part in node.body
        ]
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function for node in found
    )


def test_behaviours_are_listed_once_each():
    """The page has the behaviours, all different."""
    behaviours = [behaviour for behaviour, _, _ in rows()]

    assert BEHAVIOURS == len(behaviours) == len(set(behaviours))


def test_each_behaviour_is_where_the_page_says():
    """Each listed file exists and defines the function listed with it."""
    assert [] == [path for _, path, _ in rows() if not (ROOT / path).is_file()]
    assert [] == [row for row in rows() if not defines((ROOT / row[1]).read_text(encoding="utf-8"), row[2])]


@pytest.mark.parametrize("name", ["fly", "Queue.fly", "Flier.run", "Queue", "run"])
def test_functions_that_do_not_exist_are_noticed(name):
    """A missing function, a missing class, a class alone and a method without its class do not count as defined."""
    source = "class Queue:\n    def run(self): ...\n\ndef spread(): ...\n"

    assert defines(source, "Queue.run")
    assert defines(source, "spread")
    assert not defines(source, name)


def test_each_package_is_among_the_folders():
    """The page of folders has every package of the product, each with a description."""
    page = (ROOT / "docs" / "folders.md").read_text(encoding="utf-8")
    packages = [
        path.parent.relative_to(ROOT).as_posix()
        for top in ("broker", "confirm", "exchanges", "storage")
        for path in (ROOT / top).rglob("__init__.py")
    ]

    assert [] == [
        folder for folder in packages if not re.search(rf"^\| `{folder}/` \| \w.+ \|$", page, re.MULTILINE)
    ]

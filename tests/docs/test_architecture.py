"""The tables at the top of docs/architecture.md name functions and folders that exist."""

import ast
import re

import pytest
from processes.running import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
BEHAVIOURS = 47
ROW = re.compile(r"\| (.+) \| `([\w/]+\.py)` \| `([\w.]+)` \|")
FOLDER = re.compile(r"\| `([\w/]+)/` \|.*")


def rows_of(heading, form):
    """The rows of the table below a heading, without the two lines above them; each has to be of that form."""
    _, _, text = PAGE.partition(f"\n## {heading}\n")
    section, _, _ = text.partition("\n## ")
    return [form.fullmatch(line).groups() for line in re.findall(r"^\|.*$", section, re.MULTILINE)[2:]]


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


def folders_from_the_top():
    """The folders of `broker/` and of what it stands on, as tests/test_layering.py has them from the ground up."""
    tree = ast.parse((ROOT / "tests" / "test_layering.py").read_text(encoding="utf-8"))
    (order,) = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "FOLDERS"
    ]
    return [name.replace(".", "/") for name in reversed(order) if not name.startswith("leveret")]


def test_behaviours_are_listed_once_each():
    """The page opens with behaviours, all different."""
    behaviours = [behaviour for behaviour, _, _ in rows_of("Where to look", ROW)]

    assert BEHAVIOURS == len(behaviours) == len(set(behaviours))


def test_each_behaviour_is_where_the_page_says():
    """Each listed file exists and defines the function listed with it."""
    rows = rows_of("Where to look", ROW)
    missing = [path for _, path, _ in rows if not (ROOT / path).is_file()]

    assert [] == missing
    assert [] == [row for row in rows if not defines((ROOT / row[1]).read_text(encoding="utf-8"), row[2])]


@pytest.mark.parametrize("name", ["fly", "Queue.fly", "Flier.run", "Queue", "run"])
def test_functions_that_do_not_exist_are_noticed(name):
    """A missing function, a missing class, a class alone and a method without its class do not count as defined."""
    source = "class Queue:\n    def run(self): ...\n\ndef spread(): ...\n"

    assert defines(source, "Queue.run")
    assert defines(source, "spread")
    assert not defines(source, name)


def test_folders_are_in_the_order_of_imports():
    """The page lists the folders from the top down, in the order that the test of imports enforces."""
    assert folders_from_the_top() == [folder for (folder,) in rows_of("Folders", FOLDER)]

"""The documents agree with the code and with each other, and every test has a docstring."""

import ast
import importlib
import inspect
import re
from functools import cache
from pathlib import Path

import pytest

import leveret
from docs.generate import FILES
from leveret.broker.amqp.commands import Access, Frame
from leveret.broker.config.config import load
from leveret.broker.config.keys import KEYS

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PACKAGES = ("broker", "exchanges", "storage", "confirm", "analytics")
SHIPPED = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
NAMING_CODE = [
    ROOT / "docs" / name for name in ("architecture.md", "behaviours.md", "confirms.md", "folders.md")
]
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w.*-]+(/[\w.*-]+)*(\.(py|md|toml)|/)")
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
MAX_LINES = 600


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    """Each relative link in a page names a file that exists."""
    targets = [target.partition("#")[0] for target in LINK.findall(page.read_text(encoding="utf-8"))]
    local = [
        target for target in targets if target and "://" not in target and not target.startswith("mailto:")
    ]

    assert [] == [target for target in local if not (page.parent / target).exists()]


def test_the_example_file_loads(tmp_path):
    """docs/leveret.conf, the example of docs/configuration.md, loads without a warning."""
    config = load([ROOT / "docs" / "leveret.conf"], settings=[f"data_dir={tmp_path}"])

    assert [] == list(config.warnings)


def test_every_key_can_be_linked_to():
    """Each key of the configuration is in one topic, under an anchor of its own name."""
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")

    assert len(KEYS) == len({key.name for key in KEYS})
    assert [] == [key.name for key in KEYS if page.count(f'<a id="{key.name}"') != 1]


@pytest.mark.parametrize("path", FILES, ids=named)
def test_a_generated_file_is_current(path):
    """Each page that is generated from declarations, and the file of tables, are; `make docs` brings them up to date."""
    assert FILES[path]() == path.read_text(encoding="utf-8")


def test_the_version_has_an_entry_in_the_changelog():
    """The version of the project heads a section of the changelog."""
    assert f"## [{leveret.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_decisions_have_a_number_and_a_status():
    """No two decision records share a number, and each has a status."""
    records = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
    numbers = [int(record.name[:4]) for record in records]

    assert records
    assert len(set(numbers)) == len(numbers)
    assert [] == [
        named(record) for record in records if "status" not in record.read_text(encoding="utf-8").lower()
    ]


def test_every_lint_exception_has_its_reason():
    """Each rule that ruff ignores has a comment with the reason."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    rules = re.findall(r'^ {4}"[A-Z]+[0-9]*",.*$', text, re.MULTILINE)

    assert rules
    assert [] == [rule for rule in rules if not re.search(r"# \S", rule)]


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


@pytest.mark.parametrize("path", TESTS, ids=named)
def test_every_test_says_what_is_true(path):
    """Each test has a docstring: one sentence with the fact it shows."""
    assert [] == [
        test.name for test in functions(path) if not (ast.get_docstring(test) or "").strip().endswith(".")
    ]


@cache
def modules() -> dict[str, object]:
    """Return every shipped module, by each of its names: `broker.amqp.codec`, `amqp.codec` and `codec`."""
    found: dict[str, object] = {}
    for path in SHIPPED:
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if parts[-1] == "__main__":
            continue
        module = importlib.import_module(".".join(("leveret", *parts)))
        for at in range(len(parts)):
            found.setdefault(".".join(parts[at:]), []).append(module)
    return found


@cache
def classes() -> set[type]:
    """Return every class of a shipped module."""
    return {
        thing
        for found in modules().values()
        for module in found
        for thing in vars(module).values()
        if inspect.isclass(thing) and thing.__module__.startswith("leveret.")
    }


def has(thing: object, name: str) -> bool:
    """Return whether a module or class has a name, also only as an attribute of its instances."""
    if hasattr(thing, name):
        return True
    if not inspect.isclass(thing):
        return False
    return any(
        name in vars(base).get("__annotations__", ())
        or (base.__module__.startswith("leveret.") and re.search(rf"self\.{name}\b", inspect.getsource(base)))
        for base in thing.__mro__
    )


def exists(name: str) -> bool:
    """Return whether a dotted name is a module, something in a module, or an attribute of a class in one."""
    known = modules()
    parts = name.split(".")
    if name in known:
        return True
    starts = [
        (module, parts[at:]) for at in range(1, len(parts)) for module in known.get(".".join(parts[:at]), ())
    ]
    starts += [(each, parts[1:]) for each in classes() if each.__name__ == parts[0] and parts[1:]]
    for thing, rest in starts:
        for step in rest[:-1]:
            thing = getattr(thing, step, None)  # noqa: PLW2901 - one step further down
        if has(thing, rest[-1]):
            return True
    return False


def methods_on_the_wire() -> set[str]:
    """Return AMQP's methods as they are written in prose: `basic.publish`."""
    frames = [*Frame.__subclasses__(), Access.Request, Access.RequestOk]
    return {frame.name.lower().replace("ok", "-ok") for frame in frames} | {
        "basic.publish",
        "connection.blocked",
    }


@pytest.mark.parametrize("page", NAMING_CODE, ids=named)
def test_pages_about_the_code_name_what_exists(page):
    """Every file and every dotted name in backticks exists in the project."""
    marked = CODE.findall(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))
    files = [name for name in marked if "/" in name and FILE.fullmatch(name)]
    names = [
        name
        for name in marked
        if DOTTED.fullmatch(name) and not FILE.fullmatch(name) and name not in methods_on_the_wire()
    ]

    assert [] == [name for name in files if not list(ROOT.glob(name.rstrip("/")))]
    assert [] == [name for name in names if not exists(name)]


@pytest.mark.parametrize(
    "name", ["queue.Queue.fly", "queue.fly", "Queue.fly", "flying.Queue", "Flier.fly", "asyncio.run"]
)
def test_names_that_do_not_exist_are_noticed(name):
    """The check of names finds a name that does not exist, and ignores one that is not ours."""
    assert not exists(name)


def test_long_files_are_accounted_for():
    """A shipped file of more than 600 lines is named in a decision record with the reason or the plan for it."""
    records = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
    long = [path for path in SHIPPED if len(path.read_text(encoding="utf-8").splitlines()) > MAX_LINES]

    assert [] == [named(path) for path in long if f"`{named(path)}`" not in records]

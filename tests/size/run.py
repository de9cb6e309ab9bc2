"""Prints how large the product and its documentation are, by folder, beside the recorded sizes: `make size`.

`--write` records the sizes of today in `sizes.toml`, which `test_size.py` holds the folders to.
"""

import ast
import sys
import tomllib
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
RECORD: Final = Path(__file__).with_name("sizes.toml")
PRODUCT: Final = ("analytics", "broker", "confirm", "exchanges", "leveret", "storage")
SPLIT: Final = frozenset({"broker", "storage"})
"""Folders whose folders have lines of their own."""
GENERATED: Final = frozenset(
    {"command-line", "configuration", "coverage", "export", "folders", "http-api", "metrics", "python-api"}
)
"""Pages of `docs/` that are generated from the code."""


class Size(NamedTuple):
    """Physical lines; lines of code: neither blank, nor of a docstring, nor beginning with `#`; and files."""

    lines: int
    code: int
    files: int


def python_files(folder: Path) -> Iterator[Path]:
    """Yield the modules of a folder; folders of packages are linked into `leveret`, and counted where they are."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and path.name != "__pycache__":
            yield from python_files(path)
        elif path.suffix == ".py":
            yield path


def size_of(text: str) -> tuple[int, int]:
    """Return the lines of a module, and those of code."""
    told = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for each in body if isinstance(body, list) else ():
            if (
                isinstance(each, ast.Expr)
                and isinstance(each.value, ast.Constant)
                and isinstance(each.value.value, str)
            ):
                told.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    lines = text.splitlines()
    code = sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in told
        for number, line in enumerate(lines, 1)
    )
    return len(lines), code


@cache
def sizes(root: Path = ROOT) -> dict[str, Size]:
    found: dict[str, Size] = {}
    for top in PRODUCT:
        for path in python_files(root / top):
            inside = path.relative_to(root / top).parts
            name = f"{top}/{inside[0]}" if top in SPLIT and len(inside) > 1 else top
            lines, code = size_of(path.read_text())
            before = found.get(name, Size(0, 0, 0))
            found[name] = Size(before.lines + lines, before.code + code, before.files + 1)
    return found


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages of the documentation that are written by hand."""
    inside = (root / "docs").rglob("*.md")
    return sorted([*root.glob("*.md"), *(path for path in inside if path.stem not in GENERATED)])


def words(root: Path = ROOT) -> int:
    """Return the number of words of the documentation that is written by hand."""
    return sum(len(path.read_text().split()) for path in pages(root))


def recorded() -> dict[str, Size]:
    return {name: Size(*size) for name, size in tomllib.loads(RECORD.read_text())["folders"].items()}


def total(found: dict[str, Size]) -> Size:
    return Size(*map(sum, zip(*found.values(), strict=True)))


def main(arguments: Sequence[str]) -> None:
    """Print the sizes, or record them."""
    found = sizes()
    if "--write" in arguments:
        rows = "".join(
            f'"{name}" = [{size.lines}, {size.code}, {size.files}]\n' for name, size in sorted(found.items())
        )
        RECORD.write_text(
            f"# Lines, lines of code and files of each folder: `make size ARGS=--write`.\n[folders]\n{rows}"
        )
    before = recorded()
    print(f"{'folder':<26}{'lines':>8}{'code':>8}{'files':>7}{'lines recorded':>16}")
    for name, size in [*sorted(found.items()), ("all", total(found))]:
        old = total(before) if name == "all" else before.get(name)
        print(f"{name:<26}{size.lines:>8,}{size.code:>8,}{size.files:>7,}{old.lines if old else 0:>16,}")
    for name in ("docs", "tests"):  # no part of the product: what generates pages, and tests
        lines = [path.read_text().count("\n") for path in python_files(ROOT / name)]
        print(f"{name:<26}{sum(lines):>8,}{'':>8}{len(lines):>7,}")
    print(f"words of documentation written by hand: {words():,}")


if __name__ == "__main__":
    main(sys.argv[1:])

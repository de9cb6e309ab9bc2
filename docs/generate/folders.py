"""The page of the folders of the source tree, from the docstrings of their packages and the order of imports."""

import ast
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_HEAD: Final = """\
# Folders

This page is generated from the docstring of each package (`make docs`), in the order of `FOLDERS` in
`tests/test_layering.py`: a module imports from its own folder and from lower rows only. `exchanges/` and `storage/`
do not import each other.

| Folder | Contents |
|---|---|
"""


def folders() -> list[str]:
    """Return the folders from the top of the imports down."""
    tree = ast.parse((_ROOT / "tests" / "test_layering.py").read_text(encoding="utf-8"))
    (order,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOLDERS"
    ]
    return [name.replace(".", "/") for name in reversed(ast.literal_eval(order)) if name[:7] != "leveret"]


def _contents(folder: str) -> str:
    """Return the first sentence of a package's docstring."""
    text = ast.get_docstring(ast.parse((_ROOT / folder / "__init__.py").read_text(encoding="utf-8")))
    return (text or "").split("\n\n")[0].replace("\n", " ").removesuffix(".").replace("|", "\\|")


def render() -> str:
    """Return the page."""
    return _HEAD + "".join(f"| `{each}/` | {_contents(each)} |\n" for each in folders())

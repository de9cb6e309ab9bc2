"""Makes pages of the documentation, and the declaration of the export's tables, from the code.

`python -m docs.generate`, at the top of the project, writes them; no part of the product uses this package.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from docs.generate import (
    command_line,
    configuration,
    export,
    folders,
    http_api,
    metrics,
    python_api,
    tables_json,
)

_ROOT: Final = Path(__file__).parents[2]
FILES: Final[Mapping[Path, Callable[[], str]]] = {
    _ROOT / "docs" / "command-line.md": command_line.render,
    _ROOT / "docs" / "configuration.md": configuration.render,
    _ROOT / "docs" / "leveret.conf": lambda: configuration.EXAMPLE,
    _ROOT / "docs" / "export.md": export.render,
    _ROOT / "docs" / "folders.md": folders.render,
    _ROOT / "docs" / "metrics.md": metrics.render,
    _ROOT / "docs" / "http-api.md": http_api.render,
    _ROOT / "docs" / "python-api.md": python_api.render,
    _ROOT / "analytics" / "tables.json": tables_json.render,
}
"""Each generated file, and what returns its text."""

"""How the pages become a site: Sphinx and MyST. `make docs` builds it into build/site, and a warning is an error."""

import tomllib
from pathlib import Path

_PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8"))[
    "project"
]

project = "Leveret"
project_copyright = "the Leveret authors"
version = release = _PROJECT["version"]

extensions = ["myst_parser", "sphinxcontrib.mermaid"]
root_doc = "index"
source_suffix = {".md": "markdown"}

# The pages are read on a forge as well, so links and diagrams are written as there.
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
# The script that draws the diagrams is loaded by the reader's browser; without it their text is shown.
mermaid_version = "11.12.1"

html_theme = "furo"
html_title = f"Leveret {release}"
html_copy_source = False

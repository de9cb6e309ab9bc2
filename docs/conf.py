"""How the pages become a site: Sphinx and MyST. `make docs` builds it into build/site, and a warning is an error."""

import sys
from pathlib import Path

import leveret

_DOCS = Path(__file__).parent
sys.path.append(str(_DOCS))  # for sequence.py, which draws the diagrams

project = "Leveret"
project_copyright = "the Leveret authors"
version = release = leveret.__version__

extensions = ["myst_parser", "sequence"]
root_doc = "index"
source_suffix = {".md": "markdown"}

# The pages are read on a forge as well, so links and diagrams are written as there.
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]

html_theme = "furo"
html_title = f"Leveret {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_search_scorer = str(_DOCS / "search_scorer.js")

"""The pages become a site without a warning."""

import subprocess
import sys

import pytest
from running import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md"))
SECONDS = 240


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-d", folder / "trees", DOCS, folder],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )  # fmt: skip

    assert (0, "") == (done.returncode, done.stderr)
    return folder


@pytest.mark.timeout(SECONDS)
def test_every_page_is_in_the_site(site):
    """No page is left out, and none is without a title."""
    missing = [page for page in PAGES if not (site / page.with_suffix(".html")).exists()]
    untitled = [
        page for page in PAGES if "<title>&lt;no title&gt;" in (site / page.with_suffix(".html")).read_text()
    ]

    assert ([], []) == (missing, untitled)


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```mermaid" in (DOCS / page.with_suffix(".md")).read_text()]
)
def test_diagrams_are_drawn(site, page):
    """Each diagram of a page is there as what the script that draws looks for, and the script is loaded."""
    source = (DOCS / page.with_suffix(".md")).read_text()
    html = (site / page.with_suffix(".html")).read_text()

    assert source.count("```mermaid\n") == html.count('class="mermaid"')
    assert "mermaid.esm" in html

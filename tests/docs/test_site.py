"""The pages become a site without a warning, whose links lead somewhere, and that needs nothing from elsewhere."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from processes.commands import execute
from processes.running import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(page.relative_to(DOCS).with_suffix("") for page in DOCS.rglob("*.md"))
SECONDS = 240


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    done = execute(
        [
            sys.executable,
            "-m",
            "sphinx",
            "--fail-on-warning",
            "--keep-going",
            "--quiet",
            "-d",
            folder / "trees",
            DOCS,
            folder,
        ],
        timeout=SECONDS,
    )

    assert (0, "") == (done.returncode, done.stderr)
    return folder


@pytest.mark.timeout(SECONDS)
def test_every_page_is_in_the_site(site):
    """Every page is in the site, and has a title."""
    missing = [page for page in PAGES if not (site / page.with_suffix(".html")).exists()]
    untitled = [
        page for page in PAGES if "<title>&lt;no title&gt;" in (site / page.with_suffix(".html")).read_text()
    ]

    assert ([], []) == (missing, untitled)


class Page(HTMLParser):
    """Links of a page of the site, and the targets in it."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(file.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes where an element leads, what it loads, and its name."""
        found = {name: value for name, value in attrs if value}
        self.anchors.add(found.get("id", ""))
        if tag == "a":
            self.links.add(found.get("href", ""))
        else:
            self.loaded |= {found[name] for name in ("href", "src") if name in found}


def away(address: str) -> bool:
    """Return whether it leads out of the site."""
    return bool(urlsplit(address).scheme or urlsplit(address).netloc)


@pytest.fixture(scope="module")
def pages(site):
    return {file: Page(file) for file in sorted(site.rglob("*.html"))}


@pytest.mark.timeout(SECONDS)
def test_links_lead_to_what_is_there(site, pages):
    """Each link inside the site leads to one of its files, and behind a # to a place in it that exists."""
    lost = []
    for file, page in pages.items():
        for link in page.links - {""}:
            if away(link):
                continue
            parts = urlsplit(link)
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            anchors = pages[target].anchors if target in pages else set()
            if not target.is_file() or unquote(parts.fragment) not in anchors | {""}:
                lost.append(f"{file.relative_to(site)}: {link}")

    assert [] == lost


@pytest.mark.timeout(SECONDS)
def test_the_site_is_read_without_a_network(site, pages):
    """Scripts, styles and pictures are files of the site: nothing is fetched from elsewhere."""
    loaded = {(file, address) for file, page in pages.items() for address in page.loaded}

    assert loaded
    assert [] == [address for _file, address in loaded if away(address) and not address.startswith("data:")]
    assert [] == [
        f"{file.relative_to(site)}: {address}"
        for file, address in loaded
        if not away(address) and not (file.parent / urlsplit(address).path).exists()
    ]


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```mermaid" in (DOCS / page.with_suffix(".md")).read_text()]
)
def test_diagrams_are_drawn(site, page):
    """Each diagram of a page is there as a picture."""
    source = (DOCS / page.with_suffix(".md")).read_text()
    html = (site / page.with_suffix(".html")).read_text()

    assert source.count("```mermaid\n") == html.count('<svg class="sequence"')


def test_every_decision_is_listed():
    """The page of decisions links each of them once, by its number."""
    listed = re.findall(r"\[(\d{4})\]\((.*?)\)", (DOCS / "adr" / "README.md").read_text())
    records = sorted(record.name for record in (DOCS / "adr").glob("[0-9]*.md"))

    assert [(name[:4], name) for name in records] == sorted(listed)


GUIDES = {
    "dead letter": "howto/dead-letters-and-ttl",
    "dead letter exchange": "howto/dead-letters-and-ttl",
    "TTL": "howto/dead-letters-and-ttl",
    "retry": "howto/dead-letters-and-retries",
    "confirm": "howto/choose-a-confirm-mode",
    "confirms": "howto/choose-a-confirm-mode",
    "grafana": "howto/watch-with-grafana",
    "prometheus": "howto/watch-with-grafana",
    "docker": "howto/run-as-a-service",
    "systemd": "howto/run-as-a-service",
    "migrate": "howto/migrate-from-rabbitmq",
    "spark": "howto/analyse-with-spark",
    "upgrade": "upgrade",
    "pytest": "howto/test-an-application",
    "celery": "howto/celery",
    "cookbook": "howto/test-failures",
}


@pytest.mark.timeout(SECONDS)
@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node to run the search of the site")
def test_a_search_finds_the_guide_first(site):
    """The search of the site puts the how-to guide about a subject before references and design decisions."""
    done = execute(
        ["node", ROOT / "tests" / "docs" / "search.js", site, *GUIDES], timeout=SECONDS, check=True
    )

    assert GUIDES == {query: pages[0] for query, pages in zip(GUIDES, json.loads(done.stdout), strict=True)}

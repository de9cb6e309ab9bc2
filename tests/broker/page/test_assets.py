"""The files of the page."""

import gzip
import re
from posixpath import dirname, normpath

from leveret.broker.page.assets import ASK_AGAIN, FOR_EVER, STATIC, assets

MOST_OCTETS = 264_000
MOST_LINES = 250


def test_what_never_changes_is_kept_by_browsers():
    """The document names files in a folder after their hash, and browsers ask for the document only."""
    found = assets()
    document = found[""].content.decode()
    named = set(re.findall(r'(?:src|href)="(static/[^"]+)"', document))

    assert named
    assert named <= found.keys()
    assert ASK_AGAIN == found[""].cache_control
    assert {FOR_EVER} == {asset.cache_control for path, asset in found.items() if path}


def test_the_document_names_what_the_first_page_needs():
    """All modules that the program imports, so that they are asked for at once; other pages are loaded later."""
    document = assets()[""].content.decode()
    named = {path.split("/", 2)[2] for path in re.findall(r'href="(static/[^"]+[.]js)">', document)}

    assert {"pages/overview.js", "shell/api.js", "shell/elements.js", "pages.js"} <= named
    assert not {"pages/queues.js", "shell/table.js", "app.js"} & named
    for name in named:
        for path in re.findall(r'^import .* from "([^"]+)";$', (STATIC / name).read_text(), re.MULTILINE):
            assert normpath(f"{dirname(name) or '.'}/{path}") in named


def test_a_page_that_is_opened_has_its_modules_fetched_at_once():
    """All that it imports beyond the program has its name, for `first_paint.js`, which comes after the names."""
    document = assets()[""].content.decode()
    named: dict[str, set[str]] = {}
    for path, pages in re.findall(r'href="(static/[^"]+[.]js)" data-pages="([^"]+)">', document):
        for page in pages.split():
            named.setdefault(page, set()).add(path.split("/", 2)[2])

    imported = re.compile(r'^import .* from "([^"]+)";$', re.MULTILINE)
    first = {path.split("/", 2)[2] for path in re.findall(r'href="(static/[^"]+[.]js)">', document)}
    assert {"queues", "dead-letters", "about"} <= named.keys()
    assert named["queues"] > {"pages/queues.js", "shell/table.js", "shell/table_rows.js"}
    for modules in named.values():
        for name in modules:
            for path in imported.findall((STATIC / name).read_text()):
                assert normpath(f"{dirname(name) or '.'}/{path}") in modules | first
    assert document.index("data-pages") < document.index("first_paint.js")


def test_all_files_are_there_compressed_too():
    """Each has its type."""
    found = assets()
    names = {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()}

    assert names - {"index.html"} == {path.split("/", 2)[2] for path in found if path}
    for path, asset in found.items():
        assert asset.content == gzip.decompress(asset.packed)
        assert asset.content_type.startswith(("text/", "image/svg")), path


def test_the_page_is_small():
    """All files together, unpacked, and each module by its lines."""
    files = [path for path in STATIC.rglob("*") if path.is_file()]

    assert MOST_OCTETS >= sum(path.stat().st_size for path in files)
    assert [] == [
        path.name
        for path in files
        if path.suffix == ".js" and len(path.read_text(encoding="utf-8").splitlines()) > MOST_LINES
    ]


def test_nothing_comes_from_elsewhere():
    """No file names another host: the page works without a network."""
    allowed = {
        "http://www.w3.org/2000/svg",
        "http://127.0.0.1",
    }  # the second in an example of a setting, as text
    for path in STATIC.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            assert allowed >= set(re.findall(r"https?://[\w./-]+", text)), path.name


def test_markup_is_never_made_from_text():
    """Escaping by construction: no module uses what parses text as markup or as a program."""
    words = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser|srcdoc|setHTML"
    for path in STATIC.rglob("*.js"):
        assert [] == re.findall(words, path.read_text(encoding="utf-8")), path.name


def test_the_login_form_is_in_the_document():
    """Without a script, too; nothing in the document is inline."""
    document = assets()[""].content.decode()

    assert re.search(r"<label[^>]*>\s*Password", document)
    assert None is re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", document)

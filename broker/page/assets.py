"""The files of the page with what a response needs to say about them.

The document names a folder after the hash of all files. What is in that folder never changes, so browsers keep it
without asking again, and never have modules of two versions together.
"""

import gzip
import re
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import NamedTuple

STATIC = Path(__file__).parent / "static"
DOCUMENT = "index.html"
PROGRAM = "app.js"  # the module that the document loads
PAGES = "pages.js"  # the module that loads a page when it is shown
FOR_EVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HASH_DIGITS = 16
_FOLDER = b"static/"  # the name in the document of the folder of the files
_MODULES, _PAGES = b"<!-- modules -->", b"<!-- pages -->"
_PAGE = re.compile(rb'^  "?([a-z-]+)"?: \(\) => import\("(\./[^"]+)"\),$', re.MULTILINE)
_IMPORT = re.compile(rb'^import .*?from "(\./[^"]+|\.\./[^"]+)";$', re.MULTILINE)


class Asset(NamedTuple):
    """A file: its octets, also `packed` by gzip, its type, its hash, and how long browsers keep it."""

    content: bytes
    packed: bytes
    content_type: str
    etag: str
    cache_control: str


@cache
def assets() -> dict[str, Asset]:
    """Read all files, once; returns them by their paths, of which the document's is ''.

    It reads from disk and compresses, which takes some twenty milliseconds: call it in a thread.
    """
    files = {
        path.relative_to(STATIC).as_posix(): path.read_bytes()
        for path in sorted(STATIC.rglob("*"))
        if path.suffix in TYPES
    }
    whole = sha256()
    for name, content in files.items():
        whole.update(b"%b\0%d\0%b" % (name.encode(), len(content), content))
    folder = b"static/%b/" % whole.hexdigest()[:_HASH_DIGITS].encode()
    first = _imported(files, PROGRAM)
    links = [_preload(folder, name) for name in sorted(first - {PROGRAM})]
    later = [_preload(folder, *each) for each in sorted(_pages(files).items()) if each[0] not in first]
    document = files.pop(DOCUMENT).replace(_FOLDER, folder)
    for place, elements in ((_MODULES, links), (_PAGES, later)):
        document = document.replace(place, b"\n".join(elements))
    found = {f"{folder.decode()}{name}": _asset(name, content, FOR_EVER) for name, content in files.items()}
    return {"": _asset(DOCUMENT, document, ASK_AGAIN), **found}


def _preload(folder: bytes, name: str, pages: Iterable[str] = ()) -> bytes:
    """Return the element that makes a browser fetch a module before it is imported; `pages` for `first_paint.js`."""
    wanted_by = b' data-pages="%b"' % " ".join(pages).encode() if pages else b""
    return b'<link rel="modulepreload" href="%b%b"%b>' % (folder, name.encode(), wanted_by)


def _pages(files: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Return the pages that need each module, by the names that they have in addresses."""
    found: dict[str, list[str]] = {}
    for name, module in _PAGE.findall(files[PAGES]):
        for each in _imported(files, normpath(module.decode())):
            found.setdefault(each, []).append(name.decode())
    return found


def _imported(files: Mapping[str, bytes], name: str) -> set[str]:
    """Return a module and all that must be there before it can run; not those that it loads when they are needed."""
    found, todo = set[str](), [name]
    while todo:
        module = todo.pop()
        if module not in found:
            found.add(module)
            paths = [path.decode() for path in _IMPORT.findall(files[module])]
            todo += [normpath(join(dirname(module), path)) for path in paths]
    return found


def _asset(name: str, content: bytes, cache_control: str) -> Asset:
    return Asset(
        content,
        gzip.compress(content, mtime=0),
        TYPES[Path(name).suffix],
        f'"{sha256(content).hexdigest()[:_HASH_DIGITS]}"',
        cache_control,
    )

"""Requests for the files of the page."""

import pytest
from api import respond
from fakes import Node

from leveret.broker.http.call import Request
from leveret.broker.http.dispatch import Response
from leveret.broker.management.routes import ROUTER
from leveret.broker.page.assets import assets


def ask(path: str, method: str = "GET", host_names=None, **headers: str) -> Response:
    """Return the response to a client without a login."""
    steps = respond(Node(), ROUTER, Request(method, path, {}, headers, "127.0.0.1", host_names))
    given = None
    try:
        while True:
            need = steps.send(given)
            given = need() if callable(need) else None
    except StopIteration as done:
        return done.value


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_document_needs_no_login(method):
    """It has all headers that keep other pages and foreign scripts out."""
    response = ask("/", method)

    assert (200, "text/html; charset=utf-8") == (response.status, response.headers["content-type"])
    policy = response.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "unsafe" not in policy
    for part in ("frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'", "trusted-types 'none'"):
        assert part in policy
    assert "nosniff" == response.headers["x-content-type-options"]
    assert "no-referrer" == response.headers["referrer-policy"]
    assert "same-origin" == response.headers["cross-origin-opener-policy"]
    assert b"Password" in b"".join(filter(None, response.pieces))


def test_files_are_kept_and_compressed():
    """A browser that has a file already gets no body, and one that can unpack gets it packed."""
    for path, asset in assets().items():
        packed = ask(f"/{path}", **{"accept-encoding": "gzip, br"})
        assert (200, "gzip") == (packed.status, packed.headers["content-encoding"])
        assert asset.packed == b"".join(filter(None, packed.pieces))
        known = ask(f"/{path}", **{"if-none-match": asset.etag})
        assert (304, []) == (known.status, list(known.pieces))


@pytest.mark.parametrize(
    "path", ["/index.html", "/static/", "/static/../assets.py", "/static/%2e%2e/assets.py", "/x", "outside"]
)
def test_nothing_else_is_there(path):
    """Neither files of other folders."""
    assert 404 == ask(path).status


def test_nothing_can_be_changed():
    """Other methods are not found, as before there was a page."""
    assert 404 == ask("/", "POST").status


def test_a_listener_on_loopback_has_a_name():
    """A page of another site with the address of this host gets nothing, neither the document nor the API."""
    for path in ("/", "/api/auth"):
        assert 421 == ask(path, host_names=(), host="evil.example").status
        assert 200 == ask(path, host_names=("evil.example",), host="evil.example").status
        assert 200 == ask(path, host_names=(), host="localhost:15672").status
        assert 200 == ask(path, host="broker.example").status

"""The web page against pages of others and hostile names: SEC-23, 25. `tests/page` shows the same in a browser."""

import http.client
import re
from typing import Any

import pytest

from leveret.broker.page.assets import STATIC

SECONDS = 20.0
PAGE = {"x-requested-with": "leveret"}


def ask(
    broker: Any, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str]]:
    """Return the status and the headers of the answer to a client without a login."""
    connection = http.client.HTTPConnection(*broker.management, timeout=SECONDS)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def login(broker: Any) -> str:
    """Return the header `Set-Cookie` of a login."""
    return ask(broker, "POST", "/api/login", b"username=guest&password=guest")[1]["set-cookie"]


@pytest.mark.parametrize("site", ["cross-site", "same-site", None])
def test_sec_23_other_origins_get_nothing(broker, site):
    """Neither an answer nor a change, with the cookie that the browser adds."""
    headers = {"cookie": login(broker).partition(";")[0], "origin": "http://127.0.0.1:1"}
    headers |= {} if site is None else {"sec-fetch-site": site}

    assert 401 == ask(broker, "GET", "/api/overview", **headers)[0]
    assert 401 == ask(broker, "PUT", "/api/vhosts/v", b"{}", **headers, **PAGE)[0]
    assert 401 == ask(broker, "POST", "/api/logout", **headers, **PAGE)[0]


def test_sec_23_foreign_names_of_the_host_get_nothing(broker):
    """A site that gives its name the address of this host reaches nothing, not even with a login."""
    headers = {"host": "evil.example", "authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}

    for path in ("/", "/api/overview", "/api/leveret/events?topics=overview"):
        assert 421 == ask(broker, "GET", path, **headers)[0]


def test_sec_23_scripts_cannot_read_the_cookie(broker):
    """Nor does the browser send it from other sites."""
    parts = {part.strip() for part in login(broker).split(";")[1:]}

    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= parts


def test_sec_25_browsers_refuse_other_scripts(broker):
    """The policy allows files of the page alone, and no text to become a script."""
    status, headers = ask(broker, "GET", "/")
    policy = dict(part.strip().partition(" ")[::2] for part in headers["content-security-policy"].split(";"))

    assert 200 == status
    assert ("'none'", "'self'") == (policy["default-src"], policy["script-src"])
    assert ("'script'", "'none'") == (policy["require-trusted-types-for"], policy["trusted-types"])


def test_sec_25_no_module_makes_markup_of_text():
    """Elements are made of names, attributes and texts, and attributes are neither listeners nor styles."""
    parsers = r"innerHTML|outerHTML|insertAdjacentHTML|\bwrite\(|DOMParser|createContextualFragment|\beval\(|new Function"
    for path in STATIC.rglob("*.js"):
        assert None is re.search(parsers, path.read_text(encoding="utf-8")), path.name

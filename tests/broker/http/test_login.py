"""Rules for requests of browsers."""

import pytest

from leveret.broker.http.errors import ApiError
from leveret.broker.http.login import check_host, check_origin, cookie_with, is_of_a_script, token_of

OWN = {"host": "127.0.0.1:15672", "origin": "http://127.0.0.1:15672"}
PAGE = {"x-requested-with": "leveret"}


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {}),
        ("GET", {"sec-fetch-site": "same-origin"}),
        ("GET", {"sec-fetch-site": "none"}),
        ("GET", OWN),
        ("DELETE", {**PAGE, "sec-fetch-site": "same-origin"}),
        ("POST", {**PAGE, **OWN}),
        (
            "PUT",
            {**PAGE, "sec-fetch-site": "same-origin", "origin": "https://proxy.example", "host": "127.0.0.1"},
        ),
    ],
)
def test_the_page_itself_may_use_its_cookie(method, headers):
    """By the browser's word, or by the origin if it has none; also through a proxy with a name of its own."""
    check_origin(method, headers)


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {"sec-fetch-site": "same-site"}),
        ("GET", {"sec-fetch-site": "cross-site"}),
        ("GET", {**OWN, "origin": "http://127.0.0.1:8000"}),
        ("GET", {**OWN, "origin": "null"}),
        ("POST", {"sec-fetch-site": "same-origin"}),
        ("POST", OWN),
        ("POST", PAGE),
        ("DELETE", {**PAGE, "sec-fetch-site": "same-site", **OWN}),
        ("DELETE", {**PAGE, **OWN, "origin": "http://evil.example"}),
        ("PUT", {**PAGE, "sec-fetch-site": "none"}),
    ],
)
def test_other_pages_may_not(method, headers):
    """Nor those of another port of the host; and what changes something needs the header of the page, too."""
    with pytest.raises(ApiError) as raised:
        check_origin(method, headers)
    assert 401 == raised.value.status


@pytest.mark.parametrize(
    "host",
    [
        "", "127.0.0.1:15672", "localhost", "LOCALHOST:15672", "[::1]:15672", "10.1.2.3", "rabbit:80",
        "app.localhost:1", "broker.example.org", "Broker.Example.ORG.:443",
    ],
)  # fmt: skip
def test_names_of_a_listener_on_loopback(host):
    """Addresses, names without dots, those below localhost, and those that are listed."""
    check_host(host, {"broker.example.org"})


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example:15672", "example.org", "1.2.3", "[x.y]"]
)
def test_other_names_are_refused(host):
    """They may be another site's, which has given its name the address of this host."""
    with pytest.raises(ApiError) as raised:
        check_host(host, {"broker.example.org"})
    assert (421, "misdirected_request") == (raised.value.status, raised.value.body["error"])


def test_scripts_never_see_the_cookie():
    """It is not sent with requests of other sites either, nor without TLS if it was set with TLS."""
    assert "leveret_session=t; Path=/; HttpOnly; SameSite=Strict" == cookie_with("t", {})
    assert cookie_with("t", {"x-forwarded-proto": "https"}).endswith("; Secure")
    assert "leveret_session=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0" == cookie_with("", {})
    assert "t" == token_of({"cookie": "a=b; leveret_session=t"})


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, False),
        ({"sec-fetch-mode": "navigate"}, False),
        ({"sec-fetch-mode": "cors"}, True),
        (PAGE, True),
        ({"accept": "text/event-stream"}, True),
    ],
)
def test_a_browser_asks_for_a_password_only_itself(headers, expected):
    """For the address that somebody has typed, not for a request of a script."""
    assert expected == is_of_a_script(headers)

"""Logging in by a form, and what the cookie is good for."""

import logging

import pytest
from doubles.fakes import Node
from services.api import Answer, Api, respond

from leveret.broker.http.call import Request
from leveret.broker.management.routes import ROUTER

OWN = {"sec-fetch-site": "same-origin", "x-requested-with": "leveret"}


def login(node: Node, user: str = "guest", password: str = "guest", **headers: str) -> Answer:
    body = f"username={user}&password={password}".encode()
    return Api(node, "").request("POST", "login", body, **headers)


def cookie_of(answer: Answer) -> str:
    return answer.headers["set-cookie"].partition(";")[0]


@pytest.fixture
def browser(node):
    """A browser that has logged in: sends a request with its cookie and the headers of the page."""
    cookie = cookie_of(login(node))

    def send(method: str, path: str, body=None, **headers: str) -> Answer:
        return Api(node, "").request(method, path, body, **{"cookie": cookie, **OWN, **headers})

    return send


def test_the_cookie_is_a_login(browser, node):
    """To look and to change; a login in the request counts more."""
    assert "guest" == browser("GET", "whoami").body["name"]
    assert 201 == browser("PUT", "vhosts/made").status
    assert "made" in node.vhosts
    assert 401 == browser("GET", "whoami", authorization="Basic eDp5").status


def test_a_login_is_logged_with_its_user(node, caplog):
    """The log names who has logged in; one that was refused is of nobody."""
    with caplog.at_level(logging.INFO, "leveret.management"):
        login(node)
        login(node, password="wrong")
    lines = [record.getMessage() for record in caplog.records if "login refused" not in record.getMessage()]

    assert [
        "user 'guest' logged in to the page from 127.0.0.1",
        "a client without login from 127.0.0.1: POST /api/login: 401",
    ] == lines


def test_the_page_learns_without_an_error_whether_it_has_a_session(node, browser):
    """The ways to log in name the user of the session, and nobody without one."""
    assert "user" not in Api(node, "").get("auth")
    assert {"name": "guest", "tags": ["administrator"]} == browser("GET", "auth").body["user"]
    assert 204 == browser("POST", "logout").status
    assert "user" not in browser("GET", "auth").body


def test_a_wrong_password_begins_no_session(node):
    """The answer is delayed as that to any wrong login."""
    answer = login(node, password="wrong")

    assert (401, "not_authorized") == (answer.status, answer.body["error"])
    assert "set-cookie" not in answer.headers
    assert 0 == len(node.sessions)


def test_a_user_without_a_tag_gets_no_session(node):
    """It may not use the API at all."""
    node.administration.users.put(None, "app", password="x", tags=())

    assert (401, "Not management user") == ((answer := login(node, "app", "x")).status, answer.body["reason"])
    assert 0 == len(node.sessions)


def test_a_logout_ends_it(browser, node):
    """The token is worth nothing from then on, and the browser forgets it."""
    answer = browser("POST", "logout")

    assert (204, True) == (answer.status, "Max-Age=0" in answer.headers["set-cookie"])
    assert 401 == browser("GET", "whoami").status
    assert 204 == browser("POST", "logout").status


def test_a_browser_does_not_ask_for_a_password(browser):
    """The page has a form for it: without a session its requests are refused without the header for that."""
    answer = browser("GET", "whoami", cookie="leveret_session=old")

    assert (401, "not_authorized") == (answer.status, answer.body["error"])
    assert "WWW-Authenticate" not in answer.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none", "x-requested-with": "x"},
    ],
)
def test_other_pages_change_nothing(browser, node, headers):
    """Nor do they log out."""
    assert 401 == browser("PUT", "vhosts/made", **headers).status
    assert "made" not in node.vhosts
    assert 401 == browser("POST", "logout", **headers).status
    assert 200 == browser("GET", "whoami").status


def test_other_pages_do_not_log_in(node):
    """Else they could have somebody work under another name."""
    assert 401 == login(node, **{"sec-fetch-site": "cross-site"}).status
    assert 401 == login(node, origin="http://evil.example", host="127.0.0.1:15672").status
    assert 0 == len(node.sessions)


def test_a_form_without_the_header_changes_nothing(node):
    """Of a browser that does not tell its origin."""
    cookie = cookie_of(login(node))

    assert 401 == Api(node, "").request("DELETE", "vhosts/%2F", None, cookie=cookie).status
    assert "/" in node.vhosts


@pytest.mark.parametrize("change", ["password", "tags", "deletion"])
def test_a_changed_user_logs_in_again(browser, node, change):
    """Everywhere, at once."""
    if change == "deletion":
        node.administration.users.delete(None, "guest")
    else:
        tags = ("administrator",) if change == "password" else ("management",)
        node.administration.users.put(None, "guest", password="new", tags=tags)

    assert 401 == browser("GET", "whoami").status


def test_one_can_log_in_while_the_disk_is_full(node):
    """To see why: the answer does not wait for the disk, as nothing of a session is on it."""
    request = Request("POST", "/api/login", peer="127.0.0.1")
    with pytest.raises(StopIteration) as done:
        next(respond(node, ROUTER, request, b"username=guest&password=guest"))

    assert 200 == done.value.value.status


def test_secret_tokens_are_not_logged(node, caplog):
    """Nor the password."""
    caplog.set_level("DEBUG")
    token = cookie_of(login(node)).partition("=")[2]

    assert "logged in" in caplog.text
    assert token not in caplog.text

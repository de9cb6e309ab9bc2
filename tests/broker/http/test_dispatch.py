"""The answer to a request: methods, logins, errors, and the files of the page."""

import base64
import logging

import pytest
from doubles.fakes import Node
from services.api import OPERATOR, Api, respond

from leveret.broker.http.call import Request
from leveret.broker.http.dispatch import Response
from leveret.broker.management.routes import ROUTER
from leveret.broker.page.assets import assets

REALM = 'Basic realm="RabbitMQ Management"'


@pytest.fixture
def api() -> Api:
    """The API of a new broker, used by its administrator."""
    return Api(Node())


def _run(api: Api, request: Request) -> Response:
    steps = respond(api.node, ROUTER, request)
    try:
        while True:
            next(steps)
    except StopIteration as done:
        return done.value


def test_options_need_no_login(api):
    """They name the methods of the path."""
    answer = Api(api.node, "").request("OPTIONS", "users/ann")

    assert (200, b"") == (answer.status, answer.body)
    assert "HEAD, GET, PUT, DELETE, OPTIONS" == answer.headers["allow"]


def test_other_methods_are_not_allowed(api):
    """405 names those that are."""
    answer = api.request("PATCH", "users")

    assert (405, "HEAD, GET, OPTIONS") == (answer.status, answer.headers["allow"])


def test_every_answer_has_the_headers_of_the_api(api):
    """Also errors and answers without a body; the type is exactly that of JSON."""
    for path in ("users", "users/none"):
        answer = api.request("GET", path)
        assert "application/json" == answer.headers["content-type"]
        assert "no-cache" == answer.headers["cache-control"]
        assert "accept, accept-encoding, origin" == answer.headers["vary"]
    assert "content-type" not in api.request("PUT", "vhosts/v").headers


@pytest.mark.parametrize(
    "given", [None, "", "Basic", "Basic !", "Basic Z3Vlc3Q=", "Bearer x", "Basic \udcff"]
)
def test_without_a_login_one_is_asked_for(api, given):
    """Browsers ask the user then."""
    headers = {} if given is None else {"authorization": given}
    answer = Api(api.node, "").request("GET", "whoami", **headers)

    assert (401, b"", REALM) == (answer.status, answer.body, answer.headers["WWW-Authenticate"])


@pytest.mark.parametrize("login", ["guest:wrong", "nobody:guest", "guest:", ":", "\xe9:\xe9"])
def test_a_wrong_login_is_refused(api, login):
    """Browsers must not ask again, and whether the user exists cannot be seen."""
    answer = Api(api.node, login).request("GET", "whoami")

    assert (401, {"error": "not_authorized", "reason": "Not_Authorized"}) == (answer.status, answer.body)
    assert "WWW-Authenticate" not in answer.headers
    assert 1 == api.node.context.totals.auth_failed


def test_failed_logins_are_delayed_more_and_more(api):
    """For that address and that name only."""

    def delay(login: str, peer: str = "127.0.0.1") -> float:
        encoded = base64.b64encode(login.encode()).decode()
        headers = {"authorization": f"Basic {encoded}"}
        return _run(api, Request("GET", "/api/whoami", headers=headers, peer=peer)).delay

    first, *others = [delay("guest:wrong") for _ in range(4)]
    assert 0 < first < others[-1]
    assert first == delay("other:wrong") == delay("guest:wrong", "10.0.0.1")
    assert 0 == delay("guest:guest")


def test_a_loopback_user_comes_from_this_host(api):
    """`guest` is refused from elsewhere, with a reason of its own."""
    for peer, status in (("127.0.0.1", 200), ("::1", 200), ("10.0.0.1", 401)):
        answer = Api(api.node, peer=peer).request("GET", "whoami")
        assert status == answer.status, peer
    assert {"error": "not_authorised", "reason": "User can only log in via localhost"} == answer.body


def test_the_operator_needs_no_login(api):
    """On the socket of the data directory."""
    assert 200 == Api(api.node, OPERATOR).request("GET", "users").status


def test_slashes_and_encodings(api):
    """The vhost `/` and names with anything in them."""
    for path in ("vhosts/%2F", "vhosts/%2f/", "vhosts/%2F?columns=name"):
        assert "/" == api.get(path)["name"]
    assert 201 == api.put("users/a%2Fb%20c+d%25", {"tags": ""})
    assert "a/b c+d%" == api.get("users/a%2Fb%20c+d%25")["name"]


def test_what_is_not_below_api_is_not_found(api):
    """With RabbitMQ's body."""
    answer = next(iter(_run(api, Request("GET", "/other", peer="x")).pieces))

    assert b'{"error":"Object Not Found","reason":"Not Found"}' == answer


def test_a_change_that_is_not_on_disk_is_not_confirmed(api):
    """503 while the disk is full."""
    encoded = base64.b64encode(b"guest:guest").decode()
    headers = {"authorization": f"Basic {encoded}"}
    steps = respond(api.node, ROUTER, Request("PUT", "/api/vhosts/v", headers=headers, peer="127.0.0.1"))
    next(steps)
    with pytest.raises(StopIteration) as done:
        steps.send(False)

    assert 503 == done.value.value.status


def test_changes_are_logged_with_who_made_them(api, caplog):
    """Without the body; names cannot forge lines, and reads are not logged."""
    with caplog.at_level(logging.INFO, "leveret.management"):
        api.put("users/ann", {"tags": "", "password": "secret-word"})
        api.request("DELETE", "users/a%0Ab")
        Api(api.node, OPERATOR).put("vhosts/v")
        Api(api.node, "").put("vhosts/w")
        api.get("users")
    lines = [record.getMessage() for record in caplog.records]

    assert "user 'guest' from 127.0.0.1: PUT /api/users/ann: 201" == lines[0]
    assert "user 'guest' from 127.0.0.1: DELETE /api/users/a%0Ab: 404" == lines[1]
    assert "the operator: PUT /api/vhosts/v: 201" == lines[2]
    assert "a client without login from 127.0.0.1: PUT /api/vhosts/w: 401" == lines[3]
    assert 4 == len(lines)
    assert "secret-word" not in caplog.text


def test_bodies_are_not_nested_without_end(api):
    """Such a body is no JSON for us."""
    for body in (b"[" * 100_000, b'{"a":' * 100_000, b'{"value":' * 5000 + b"1" + b"}" * 5000):
        assert 400 == api.request("PUT", "global-parameters/x", body).status


def test_a_name_cannot_pass_for_a_loopback_user(api):
    """A wrong password of a user called `localhost` is answered, and delayed, as any other."""
    answer = Api(api.node, "localhost:wrong").request("GET", "whoami")
    encoded = base64.b64encode(b"localhost:wrong").decode()
    request = Request("GET", "/api/whoami", headers={"authorization": f"Basic {encoded}"}, peer="127.0.0.1")

    assert {"error": "not_authorized", "reason": "Not_Authorized"} == answer.body
    assert 0 < _run(api, request).delay


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

"""Logging in to the web page, and out: `/api/login`, `/api/logout`; by an identity provider: `/api/leveret/oauth`."""

from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from leveret.broker.administration.access import Right, authorize
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.sessions import renewal_of
from leveret.broker.auth.users import BackendUser, LoginRefusedError, User
from leveret.broker.http.call import Answer, Call, Callback, Done, Item, Steps
from leveret.broker.http.errors import ApiError, basic_disabled, not_found
from leveret.broker.http.login import (
    check_failures,
    check_origin,
    cookie_with,
    judged,
    log_in,
    refuse_foreign,
    token_of,
    user_of_session,
)
from leveret.broker.http.route import Routes, required

ROUTES = Routes("login")
HERE = "127.0.0.1"  # the address of the operator, for what needs one


@ROUTES.get("auth", needs=None)
def get_auth(call: Call) -> Answer:
    """Ways to log in, and the user who has a session already."""
    provider = _provider(call)
    user = user_of_session(call.broker, token_of(call.headers))
    known = {} if user is None else {"user": {"name": user.name, "tags": list(user.tags)}}
    if provider is None:
        return Item({**known, "oauth_enabled": False})
    settings = provider.settings
    return Item({
        **known,
        "oauth_enabled": True,
        "oauth_disable_basic_auth": _takes_no_passwords(call),
        "oauth_client_id": settings.client_id,
        "oauth_provider_url": provider.provider_url,
        "oauth_scopes": settings.scopes,
        "oauth_metadata_url": settings.metadata_url,
        "oauth_resource_id": provider.resource,
    })  # fmt: skip


def _provider(call: Call) -> Any:
    backends = call.broker.backends
    return None if backends is None else backends.code_login


def _takes_no_passwords(call: Call) -> bool:
    provider = _provider(call)
    return call.broker.config.management.disable_basic_auth or (
        provider is not None and provider.settings.disable_basic_auth
    )


@ROUTES.post("login", needs=None, body=(required("username"), required("password")), is_stored=False)
def login(call: Call) -> Steps:
    """Check the name and password of a form (`application/x-www-form-urlencoded`), and begin a session:
    the cookie `leveret_session` of the answer is accepted instead of a login. With it, requests that
    change something need the header `X-Requested-With`.
    """
    refuse_foreign(call.headers)
    if _takes_no_passwords(call):
        raise basic_disabled()
    form = dict(parse_qsl(call.content.decode("utf-8", "replace"), keep_blank_values=True))
    name, password = form.get("username", ""), form.get("password", "")
    user = yield from log_in(call.broker, name, password, call.peer or HERE)
    return session_of(call, user)


def session_of(call: Call, user: User, refresh: Password | None = None) -> Answer:
    """Begin a session of a user who has logged in; raises ForbiddenError if the user may not use the API.

    With a token `refresh` the login is renewed.
    """
    authorize(call.broker.users, user, Right.MANAGEMENT)
    if isinstance(user, BackendUser):
        user = user.in_session(call.broker.wall_clock())
    renewal = None
    if refresh is not None and isinstance(user, BackendUser):
        renewal = renewal_of(user.expires, refresh, call.peer or HERE, call.broker.wall_clock())
    call.actor = user  # so that the log names who has logged in
    token = call.broker.sessions.begin(user, call.broker.now(), renewal)
    if renewal is not None:
        broker = call.broker
        broker.backends.keep_sessions(broker.sessions, broker.audit, broker.wall_clock)
    return Item("ok", {"set-cookie": cookie_with(token, call.headers)})


@ROUTES.post("logout", needs=None, is_stored=False, statuses=(204,))
def logout(call: Call) -> Answer:
    """End the session."""
    if token := token_of(call.headers):
        check_origin("POST", call.headers)
        call.broker.sessions.end(token)
    return Done(headers={"set-cookie": cookie_with("", call.headers)})


# -- by an identity provider ------------------------------------------------------------------------------------------


@ROUTES.get("leveret/oauth", needs=None)
def get_provider(call: Call) -> Steps:
    """Where an identity provider lets users log in to the page."""
    backends = _backends(call)
    found = yield Callback(backends.find_provider)
    if isinstance(found, LoginRefusedError):
        raise ApiError(503, "service_unavailable", str(found))
    settings = backends.code_login.settings
    return Item({
        "authorization_endpoint": found,
        "client_id": settings.client_id,
        "scopes": settings.scopes,
    })  # fmt: skip


@ROUTES.post(
    "leveret/oauth",
    needs=None,
    body=(
        required("code", doc="of the provider"),
        required("code_verifier", doc="whose hash the provider knows (PKCE)"),
        required("redirect_uri", doc="where the browser has come back to"),
    ),
    is_stored=False,
)
def login_by_code(call: Call) -> Steps:
    """Begin a session of the page by the code of an identity provider."""
    backends = _backends(call)
    refuse_foreign(call.headers)
    body = call.body("code", "code_verifier", "redirect_uri")
    values = [body.text(key) for key in ("code", "code_verifier", "redirect_uri")]
    peer = call.peer or HERE
    check_failures(call.broker, "", peer)
    verdict = yield Callback(partial(backends.log_in_by_code, *values, peer))
    found, refresh = (verdict, None) if isinstance(verdict, LoginRefusedError) else verdict
    name = found.name if isinstance(found, BackendUser) else ""
    user = judged(call.broker, name, peer, found)
    return session_of(call, user, refresh)


def _backends(call: Call) -> Any:
    if _provider(call) is None:
        raise not_found()
    return call.broker.backends

"""Logging in to the web page, and out: `/api/login`, `/api/logout`."""

from urllib.parse import parse_qsl

from leveret.broker.administration.access import Right, authorize
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.rights import BackendUser
from leveret.broker.auth.sessions import renewal_of
from leveret.broker.auth.users import User
from leveret.broker.http.browsers import check_origin, cookie_with, refuse_foreign, token_of
from leveret.broker.http.call import Answer, Call, Done, Item, Steps
from leveret.broker.http.errors import basic_disabled
from leveret.broker.http.login import log_in
from leveret.broker.http.route import Routes, required

ROUTES = Routes("login")
HERE = "127.0.0.1"
"""The address of the operator, for what needs one."""


@ROUTES.get("auth", needs=None)
def get_auth(call: Call) -> Answer:
    """Ways to log in."""
    backends = call.broker.backends
    provider = None if backends is None else backends.code_login
    if provider is None:
        return Item({"oauth_enabled": False})
    settings = provider.settings
    return Item({
        "oauth_enabled": True,
        "oauth_disable_basic_auth": _takes_no_passwords(call),
        "oauth_client_id": settings.client_id,
        "oauth_provider_url": provider.provider_url,
        "oauth_scopes": settings.scopes,
        "oauth_metadata_url": settings.metadata_url,
        "oauth_resource_id": provider.resource,
    })  # fmt: skip


def _takes_no_passwords(call: Call) -> bool:
    """Return whether the page takes no names and passwords."""
    backends = call.broker.backends
    provider = None if backends is None else backends.code_login
    return call.broker.is_basic_disabled or (provider is not None and provider.settings.disable_basic_auth)


@ROUTES.post(
    "login", needs=None, body=(required("username"), required("password")), is_stored=False, statuses=(200,)
)
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

    Args:
        call: the call.
        user: the user.
        refresh: the token by which the login is renewed; None if it is not.

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
        call.broker.backends.keep_sessions(call.broker)
    return Item("ok", {"set-cookie": cookie_with(token, call.headers)})


@ROUTES.post("logout", needs=None, is_stored=False)
def logout(call: Call) -> Answer:
    """End the session."""
    if token := token_of(call.headers):
        check_origin("POST", call.headers)
        call.broker.sessions.end(token)
    return Done(headers={"set-cookie": cookie_with("", call.headers)})

"""Logging in to the web page by an identity provider: `/api/leveret/oauth`."""

from functools import partial
from typing import Any

from leveret.broker.auth.rights import BackendUser
from leveret.broker.auth.users import LoginRefusedError
from leveret.broker.http.browsers import refuse_foreign
from leveret.broker.http.call import Call, Callback, Item, Steps, text
from leveret.broker.http.errors import ApiError, not_found
from leveret.broker.http.login import check_failures, judged
from leveret.broker.http.route import Routes, required
from leveret.broker.management.login import HERE, session_of

ROUTES = Routes("login")


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
    statuses=(200,),
)
def login_by_code(call: Call) -> Steps:
    """Begin a session of the page by the code of an identity provider."""
    backends = _backends(call)
    refuse_foreign(call.headers)
    body = call.body("code", "code_verifier", "redirect_uri")
    values = [text(body, key) for key in ("code", "code_verifier", "redirect_uri")]
    peer = call.peer or HERE
    check_failures(call.broker, "", peer)
    verdict = yield Callback(partial(backends.log_in_by_code, *values, peer))
    found, refresh = (verdict, None) if isinstance(verdict, LoginRefusedError) else verdict
    name = found.name if isinstance(found, BackendUser) else ""
    user = judged(call.broker, name, peer, found)
    return session_of(call, user, refresh)


def _backends(call: Call) -> Any:
    """Return the backends; raises ApiError if there is no provider."""
    backends = call.broker.backends
    if backends is None or backends.code_login is None:
        raise not_found()
    return backends

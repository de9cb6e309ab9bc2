"""The login of a request: the user of its password or session, and rules for the requests of browsers. Pure.

Theory. A browser adds the cookie of a session to requests that any page makes, so a cookie alone must not be enough:

* `SameSite=Strict` keeps it from requests of other sites. Sites, however, do not differ by port, so a page of another
  program on the same host could still send requests with it. Therefore a request with the cookie is refused if the
  browser says that it comes from another origin, and one that changes something needs both a header that only scripts
  of the own page can set and a browser that says that the origin is the own one.
* A page whose name resolves to the address of the broker after it was loaded is of the own origin (DNS rebinding).
  Such a name has dots, so a listener on loopback answers to names with dots only if the administrator has listed them.
"""

import base64
import logging
from collections.abc import Generator, Iterable, Mapping
from functools import partial
from math import ceil
from typing import Any

from leveret.broker.administration.access import AdministeredBroker
from leveret.broker.auth.login_throttle import TooManyFailuresError, shown
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.sessions import cookies
from leveret.broker.auth.users import BackendUser, LoginRefusedError, LoopbackOnlyError, User
from leveret.broker.config.values import is_address
from leveret.broker.http.auditing import audit_login
from leveret.broker.http.call import SAFE, Callback, Need, Request
from leveret.broker.http.errors import (
    ApiError,
    basic_disabled,
    login_required,
    not_authorised,
    not_authorized,
)
from leveret.broker.http.route import decoded

log = logging.getLogger("leveret.management")
USER_HEADER = "x-leveret-user"  # of a request by the front, with the name, percent-encoded


class UndecidedLogin(Exception):  # noqa: N818 - not an error: backends have to be asked
    """Backends have to decide about the user of a request: it is to be admitted again, with their decision.

    `user` is that of a session, whose access to vhosts is to be asked again, None for a login; `vhost` the one that the
    request concerns, None if it may concern all of them.
    """

    def __init__(
        self, name: str, password: str, user: BackendUser | None = None, vhost: str | None = None
    ) -> None:
        super().__init__("undecided")
        self.name = name
        self.password = password
        self.user = user
        self.vhost = vhost


Verdict = BackendUser | LoginRefusedError  # A decision of backends about a login


def only_vhost(path: str, names: Mapping[str, str]) -> str | None:
    """Return the vhost in the path of a request, if it is the only one that the request can concern."""
    return None if path.startswith(("parameters", "transfers")) else names.get("vhost")


async def verdict_of(broker: AdministeredBroker, login: UndecidedLogin, peer: str) -> Verdict:
    """Return what the backends decide about a login, and which vhosts they allow to the user."""
    backends, vhosts = broker.backends, broker.vhosts
    user: Verdict | None = login.user
    if user is None:
        user = await backends.logged_in(login.name, Password(login.password), peer)
    if isinstance(user, LoginRefusedError):
        return user
    asked = [login.vhost] if login.vhost in vhosts else list(vhosts)
    seen: BackendUser = await backends.seeing(user, asked, peer)
    return seen


def authenticate(
    broker: AdministeredBroker, request: Request, verdict: Verdict | None = None, vhost: str | None = None
) -> User | None:
    """Return the user of a request; None for the operator.

    `verdict` is what backends have decided about its login, None if they have not been asked; `vhost` the one that the
    request concerns. Raises ApiError if there is no login or it is wrong, and UndecidedLogin.
    """
    if not request.peer:
        return user_of_front(broker, request.headers) if broker.place == "process" else None
    if "authorization" not in request.headers:
        user = _of_session(broker, request)
        if not isinstance(user, BackendUser):
            return user
        if isinstance(verdict, BackendUser):
            return verdict
        raise UndecidedLogin(user.name, "", user, vhost)
    name, secret = _credentials(broker, request.headers["authorization"])
    if broker.backends is None:
        return check_login(broker, name, secret, request.peer)
    if verdict is None:
        check_failures(broker, name, request.peer)
        raise UndecidedLogin(name, secret, vhost=vhost)
    return judged(broker, name, request.peer, verdict)


def user_of_front(broker: AdministeredBroker, headers: Mapping[str, str]) -> User | None:
    """Return the user for whom the front asks a process of virtual hosts; None for the operator. Raises ApiError."""
    if USER_HEADER not in headers:
        return None
    user: User | None = broker.users.get(decoded(headers[USER_HEADER]))
    if user is None:
        raise not_authorised("Not_Authorized")
    return user


def _credentials(broker: AdministeredBroker, header: str) -> tuple[str, str]:
    """Return the name and the password, or '' and the token, of a header `Authorization`; raises ApiError."""
    scheme, _, given = header.partition(" ")
    if scheme.lower() == "bearer" and broker.backends is not None:
        return "", given.strip()
    if scheme.lower() != "basic":
        raise login_required()
    if broker.config.management.disable_basic_auth:
        raise basic_disabled()
    try:
        octets = base64.b64decode(given.strip(), validate=True)
    except ValueError:
        raise login_required() from None
    name, colon, password = octets.decode("utf-8", "surrogateescape").partition(":")
    if not colon:
        raise login_required()
    return name, password


def _of_session(broker: AdministeredBroker, request: Request) -> User:
    token = token_of(request.headers)
    if token:
        check_origin(request.method, request.headers)
        if (user := user_of_session(broker, token)) is not None:
            return user
    raise not_authorized() if token or is_of_a_script(request.headers) else login_required()


def user_of_session(broker: AdministeredBroker, token: str) -> User | None:
    """Return the user of the session with a token; None if there is none, or it is over."""
    user: User | None = broker.sessions.find(token, broker.now())
    if isinstance(user, BackendUser) and user.is_over(broker.wall_clock()):
        broker.sessions.end(token)
        return None
    return user


def check_failures(broker: AdministeredBroker, name: str, peer: str) -> None:
    """Refuse a login unread if too many from the address have failed; raises ApiError."""
    try:
        broker.logins.throttle.check(peer, name, broker.now)
    except TooManyFailuresError as error:
        judged(broker, name, peer, error)


def check_login(broker: AdministeredBroker, name: str, password: str, peer: str) -> User:
    """Return the user who logs in from an address; raises ApiError, whose answer is delayed, if it is refused."""
    check_failures(broker, name, peer)
    try:
        user: User | LoginRefusedError = broker.users.authenticate(name, Password(password), peer)
    except LoginRefusedError as error:
        user = error
    return judged(broker, name, peer, user)


def log_in(broker: AdministeredBroker, name: str, password: str, peer: str) -> Generator[Need, Any, User]:
    """Return the user who logs in by name and password, in steps; raises ApiError as `check_login`."""
    backends = broker.backends
    if backends is None:
        return check_login(broker, name, password, peer)
    check_failures(broker, name, peer)
    verdict = yield Callback(partial(backends.log_in, name, Password(password), peer))
    return judged(broker, name, peer, verdict)


def judged(broker: AdministeredBroker, name: str, peer: str, verdict: User | LoginRefusedError) -> User:
    """Return the user of an accepted login, and count it.

    `verdict` is the user, or the reason for which the login is refused: raises ApiError then, whose answer is delayed.
    """
    now = broker.now()
    if not isinstance(verdict, LoginRefusedError):
        broker.logins.throttle.succeeded(peer, name)
        broker.logins.count_http(peer, name, ok=True)
        audit_login(broker, name, peer, now=now)
        return verdict
    times = broker.logins.throttle.failed(peer, name, now)
    broker.context.totals.auth_failed += 1
    broker.logins.count_http(peer, name, ok=False)
    text = str(verdict).replace(name, shown(name)) if name else str(verdict)
    audit_login(broker, name, peer, text, now=now)
    if broker.logins.refusal_log.admit(peer, now):
        log.warning("HTTP request from %s: login refused: %s", peer, text)
    if isinstance(verdict, TooManyFailuresError):
        reason, after = "too many logins from this address have failed", str(ceil(verdict.seconds))
        raise ApiError(429, "too_many_requests", reason, headers={"retry-after": after})
    if isinstance(verdict, LoopbackOnlyError):
        raise not_authorised("User can only log in via localhost")
    raise not_authorized(broker.config.auth_failure_delay * times)


# -- browsers ---------------------------------------------------------------------------------------------------------


COOKIE = "leveret_session"
PAGE_HEADER = "x-requested-with"  # scripts of the page set it: no form and no picture of another page can
SECURE_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Headers of the documents of the page. No script can be made from text (`trusted-types`)."""


def token_of(headers: Mapping[str, str]) -> str:
    """Return the token of a session that a request has; '' if it has none."""
    return cookies(headers.get("cookie", "")).get(COOKIE, "")


def cookie_with(token: str, headers: Mapping[str, str]) -> str:
    """Return the header `Set-Cookie` for a token; '' ends the session in the browser.

    Over TLS (a proxy says so) the browser must not send the cookie without.
    """
    secure = "; Secure" if headers.get("x-forwarded-proto", "").strip().lower() == "https" else ""
    end = "" if token else "; Max-Age=0"
    return f"{COOKIE}={token}; Path=/; HttpOnly; SameSite=Strict{secure}{end}"


def is_of_a_script(headers: Mapping[str, str]) -> bool:
    """Return whether a script in a browser made the request: the browser must not ask for a password by itself then."""
    return (
        PAGE_HEADER in headers
        or headers.get("accept", "").startswith("text/event-stream")
        or headers.get("sec-fetch-mode", "navigate") != "navigate"
    )


def refuse_foreign(headers: Mapping[str, str]) -> None:
    """Refuse a request of a page of another origin; raises ApiError. Other clients than browsers have no origin."""
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    is_foreign = site is not None and site not in {"same-origin", "none"}
    if origin is not None and site is None:
        is_foreign = origin.partition("://")[2] != headers.get("host", "")
    if is_foreign:
        raise not_authorised("The request comes from another origin")


def check_origin(method: str, headers: Mapping[str, str]) -> None:
    """Check that a request with the cookie comes from the page; raises ApiError if not, or if unsure."""
    refuse_foreign(headers)
    if method in SAFE:
        return
    if PAGE_HEADER not in headers:
        raise not_authorised(f"With a session a change needs the header {PAGE_HEADER}")
    if headers.get("sec-fetch-site") != "same-origin" and "origin" not in headers:
        raise not_authorised("The browser does not tell the origin of the request")


def check_host(host: str, allowed: Iterable[str]) -> None:
    """Check the name (the header `Host`) under which a client on the same host reached a listener on loopback.

    Addresses, names without dots and those below `localhost` cannot be another site's. Clients that are no browsers may
    send none. Raises ApiError: 421, another name than those and the allowed ones.
    """
    name = host.lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].removesuffix(".")
    if "." not in name or name.endswith(".localhost") or name in allowed or is_address(name):
        return
    raise ApiError(
        421,
        "misdirected_request",
        "The listener is on loopback, and this is not a name of it: list it in management.host_names",
    )

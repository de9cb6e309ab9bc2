"""Rules for requests of browsers: sessions in a cookie, and attacks that other pages in the browser could try. Pure.

Theory. A browser adds the cookie to requests that any page makes, so a cookie alone must not be enough:

* `SameSite=Strict` keeps it from requests of other sites. Sites, however, do not differ by port, so a page of another
  program on the same host could still send requests with it. Therefore a request with the cookie is refused if the
  browser says that it comes from another origin, and one that changes something needs both a header that only scripts
  of the own page can set and a browser that says that the origin is the own one.
* A page whose name resolves to the address of the broker after it was loaded is of the own origin (DNS rebinding).
  Such a name has dots, so a listener on loopback answers to names with dots only if the administrator has listed them.
"""

import ipaddress
from collections.abc import Iterable, Mapping

from leveret.broker.auth.sessions import cookies
from leveret.broker.http.errors import ApiError, not_authorised

COOKIE = "leveret_session"
PAGE_HEADER = "x-requested-with"
"""Header that scripts of the page set: no form and no picture of another page can."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
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

    Args:
        token: the token.
        headers: those of the request; over TLS (a proxy says so) the browser must not send the cookie without.

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
    if is_foreign or (origin is not None and site is None and not _is_own(origin, headers)):
        raise not_authorised("The request comes from another origin")


def check_origin(method: str, headers: Mapping[str, str]) -> None:
    """Check that a request with the cookie comes from the page itself.

    Args:
        method: its method.
        headers: its headers by their names in lower case.

    Raises:
        ApiError: it does not, or its browser does not tell.

    """
    refuse_foreign(headers)
    if method in SAFE:
        return
    if PAGE_HEADER not in headers:
        raise not_authorised(f"With a session a change needs the header {PAGE_HEADER}")
    if headers.get("sec-fetch-site") != "same-origin" and "origin" not in headers:
        raise not_authorised("The browser does not tell the origin of the request")


def _is_own(origin: str, headers: Mapping[str, str]) -> bool:
    """Return whether an origin is the address to which the request was sent."""
    return origin.partition("://")[2] == headers.get("host", "")


def check_host(host: str, allowed: Iterable[str]) -> None:
    """Check the name under which a client on the same host reached a listener on loopback.

    Addresses, names without dots and those below `localhost` cannot be another site's.

    Args:
        host: the header `Host`; '' if there is none, as of clients that are no browsers.
        allowed: further names.

    Raises:
        ApiError: 421, another name.

    """
    name = host.lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].removesuffix(".")
    if "." not in name or name.endswith(".localhost") or name in allowed or _is_address(name):
        return
    raise ApiError(
        421,
        "misdirected_request",
        "The listener is on loopback, and this is not a name of it: list it in management.host_names",
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True

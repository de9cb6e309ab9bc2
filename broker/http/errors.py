"""Errors of the API: a status, and RabbitMQ's JSON body for it."""

from typing import Any

from leveret.broker.administration import (
    AdministrationError,
    BadRequestError,
    BusyError,
    ForbiddenError,
    NotFoundError,
    ProtectedError,
)

REALM = 'Basic realm="RabbitMQ Management"'


class ApiError(Exception):
    """A request is answered with an error; `error` is '' for no body, `delay` the seconds before the answer."""

    def __init__(
        self,
        status: int,
        error: str,
        reason: Any,
        *,
        headers: dict[str, str] | None = None,
        delay: float = 0.0,
    ) -> None:
        super().__init__(f"{status} {error}: {reason}")
        self.status = status
        self.body = {"error": error, "reason": reason} if error else None
        self.headers = headers or {}
        self.delay = delay


def bad_request(reason: Any) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError(400, "bad_request", reason)


def escaped(text: str) -> str:
    """Return a text in which nothing is HTML, as RabbitMQ 3 writes the texts of some errors."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def not_found() -> ApiError:
    """Return the error for an object that does not exist, with RabbitMQ's fixed text."""
    return ApiError(404, "Object Not Found", "Not Found")


def vhost_not_found() -> ApiError:
    """Return the error for a change in a vhost that does not exist."""
    return ApiError(404, "not_found", "vhost_not_found")


def not_authorised(reason: str) -> ApiError:
    """Return the error for a user who may not do something: 401, spelt as RabbitMQ spells it here."""
    return ApiError(401, "not_authorised", reason)


def not_authorized(delay: float = 0.0) -> ApiError:
    """Return the error for a failed login, spelt as RabbitMQ spells it there. Browsers must not ask for a password."""
    return ApiError(401, "not_authorized", "Not_Authorized", delay=delay)


def basic_disabled() -> ApiError:
    """Return the error for a name and a password where only tokens are taken."""
    return not_authorised("HTTP access denied: basic auth disabled")


def login_required() -> ApiError:
    """Return the error for a request without a login; browsers ask the user for one."""
    return ApiError(401, "", "", headers={"WWW-Authenticate": REALM})


def translated(error: AdministrationError) -> ApiError:
    """Return the API's error for an operation that was not carried out."""
    if isinstance(error, NotFoundError):
        return not_found()
    if isinstance(error, ForbiddenError):
        return not_authorised(str(error))
    if isinstance(error, ProtectedError):
        return ApiError(412, "precondition_failed", str(error))
    if isinstance(error, BusyError):
        return ApiError(429, "too_many_requests", str(error))
    assert isinstance(error, BadRequestError)  # noqa: S101 - there are five
    return bad_request(error.reason or str(error))

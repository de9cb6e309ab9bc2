"""The answer to a request: who asks, which route, may they, the handler, and the response in pieces. Pure."""

import base64
import logging
from collections.abc import Generator, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

from leveret.broker.administration import AdministrationError, ForbiddenError
from leveret.broker.administration.access import Right, authorize
from leveret.broker.auth.login_throttle import shown
from leveret.broker.auth.passwords import Password
from leveret.broker.auth.users import LoginRefusedError, User
from leveret.broker.http.call import (
    Answer,
    Call,
    Content,
    Done,
    Item,
    Listing,
    ManagedBroker,
    Need,
    Stored,
)
from leveret.broker.http.errors import (
    ApiError,
    login_required,
    not_authorised,
    not_authorized,
    not_found,
    translated,
)
from leveret.broker.http.listing import Columns, encode_listing, encoded
from leveret.broker.http.route import Operation, Router, Scope

log = logging.getLogger("leveret.management")

PREFIX = "/api/"
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
HEADERS = {"cache-control": "no-cache", "vary": "accept, accept-encoding, origin"}
JSON = "application/json"


class Request(NamedTuple):
    """A request as it was received.

    Attributes:
        method: the method.
        path: the path, percent-encoded.
        query: the parameters of the query.
        headers: by their names in lower case.
        peer: address of the client; '' for the socket of the data directory, whose users may do everything.

    """

    method: str
    path: str
    query: Mapping[str, str] = {}
    headers: Mapping[str, str] = {}
    peer: str = ""


class Response(NamedTuple):
    """A response.

    Attributes:
        status: the status.
        headers: the headers; the length is not among them.
        pieces: the body in pieces, and None where others may have a turn.
        delay: seconds to wait before it is sent.

    """

    status: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes | None]
    delay: float = 0.0


class Admitted(NamedTuple):
    """A request whose route was found and whose user may call it; its body has not been looked at.

    Attributes:
        request: the request.
        operation: what it calls.
        actor: the user; None for the operator, or without a login.
        names: the names in the path.

    """

    request: Request
    operation: Operation
    actor: User | None
    names: Mapping[str, str]


def admit(broker: ManagedBroker, router: Router, request: Request) -> Admitted | Response:
    """Find what a request calls, and check that its user may: before its body is read, which may be large.

    Args:
        broker: the broker.
        router: finds the routes.
        request: the request; its body is not used.

    Returns:
        The admitted request, or the response to one that is not.

    """
    actor: User | None = None
    try:
        if not request.path.startswith(PREFIX):
            raise not_found()
        found = router.find(request.path.removeprefix(PREFIX))
        if found is None:
            raise not_found()
        route, names = found
        operation = route.operations.get("GET" if request.method == "HEAD" else request.method)
        if operation is None:
            status = 200 if request.method == "OPTIONS" else 405
            return _empty(status, {"allow": ", ".join(route.methods)})
        if operation.needs is not None:
            actor = authenticate(broker, request)
            check_rights(broker, actor, operation, names)
        return Admitted(request, operation, actor, names)
    except AdministrationError as error:
        response = failed(translated(error))
    except ApiError as error:
        response = failed(error)
    if request.method not in SAFE:
        _audit(request, actor, response.status)
    return response


def answer(broker: ManagedBroker, admitted: Admitted, content: bytes) -> Generator[Need, Any, Response]:
    """Answer an admitted request, in steps (see `call.Need`).

    Args:
        broker: the broker.
        admitted: the request.
        content: its body.

    Returns:
        The response.

    """
    request, operation, actor, names = admitted
    try:
        call = Call(broker, actor, names, request.query, content, request.headers, request.peer)
        made = operation.handler(call)
        found: Answer = (yield from made) if isinstance(made, Generator) else made
        if request.method in SAFE or (yield Stored()):
            response = yield from _rendered(broker, call, found)
        else:
            response = failed(ApiError(503, "disk_full", "the disk is full: the change is not stored yet"))
    except AdministrationError as error:
        response = failed(translated(error))
    except ApiError as error:
        response = failed(error)
    if request.method not in SAFE:
        _audit(request, actor, response.status)
    return response


def authenticate(broker: ManagedBroker, request: Request) -> User | None:
    """Return the user of a request; None for the operator.

    Raises:
        ApiError: there is no login, or it is wrong.

    """
    if not request.peer:
        return None
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        raise login_required()
    try:
        octets = base64.b64decode(given.strip(), validate=True)
    except ValueError:
        raise login_required() from None
    name, colon, password = octets.decode("utf-8", "surrogateescape").partition(":")
    if not colon:
        raise login_required()
    return check_login(broker, name, password, request.peer)


def check_login(broker: ManagedBroker, name: str, password: str, peer: str) -> User:
    """Return the user who logs in by name and password from an address.

    Raises:
        ApiError: the login is refused; the answer is delayed.

    """
    now = broker.now()
    try:
        user = broker.users.authenticate(name, Password(password), peer)
    except LoginRefusedError as error:
        times = broker.login_throttle.failed(peer, name, now)
        broker.context.totals.auth_failed += 1
        broker.http_logins.failed += 1
        if broker.refusal_log.admit(peer, now):
            text = str(error).replace(name, shown(name)) if name else str(error)
            log.warning("HTTP request from %s: login refused: %s", peer, text)
        if "localhost" in str(error):
            raise not_authorised("User can only log in via localhost") from None
        raise not_authorized(broker.auth_failure_delay * times) from None
    broker.login_throttle.succeeded(peer, name)
    broker.http_logins.succeeded += 1
    return user


def check_rights(
    broker: ManagedBroker, actor: User | None, operation: Operation, names: Mapping[str, str]
) -> None:
    """Check that a user may call an operation; a vhost that does not exist is for the handler to report.

    Raises:
        ForbiddenError: with RabbitMQ's text.

    """
    needs = operation.needs
    assert needs is not None  # noqa: S101 - the caller has looked
    authorize(broker.users, actor, Right.MANAGEMENT)
    vhost = names.get("vhost")
    if needs is Right.POLICYMAKER:
        try:
            authorize(broker.users, actor, needs, vhost if vhost in broker.vhosts else None)
        except ForbiddenError:
            raise ForbiddenError("User not authorised to access object") from None
        return
    authorize(broker.users, actor, needs)
    if actor is None or operation.scope is Scope.NONE or vhost is None or vhost not in broker.vhosts:
        return
    tags = actor.tags
    sees_all = Right.ADMINISTRATOR in tags or (operation.scope is Scope.VISIBLE and Right.MONITORING in tags)
    if operation.scope is Scope.CLIENT or not sees_all:
        authorize(broker.users, actor, Right.MANAGEMENT, vhost, change=True)


def _rendered(broker: ManagedBroker, call: Call, answer: Answer) -> Generator[Need, Any, Response]:
    match answer:
        case Listing():
            pieces = encode_listing(answer, call.query, broker.patterns)
            # up to the first piece, because until then it may still be an error
            while (first := next(pieces)) is None:
                yield None
            return Response(200, _headers(JSON), chain((first,), pieces))
        case Item():
            columns = Columns.asked(call.query)
            value = answer.value if columns is None else columns.reduce(answer.value)
            return Response(answer.status, _headers(JSON, answer.headers), iter((encoded(value),)))
        case Content():
            return Response(200, _headers(answer.content_type, answer.headers), iter(answer.pieces))
        case Done():
            return _empty(answer.status, {"location": answer.location} if answer.location else {})


def failed(error: ApiError) -> Response:
    """Return the response for an error."""
    if error.body is None:
        return _empty(error.status, error.headers)
    return Response(error.status, _headers(JSON, error.headers), iter((encoded(error.body),)), error.delay)


def _empty(status: int, headers: Mapping[str, str]) -> Response:
    return Response(status, {**HEADERS, **headers}, iter(()))


def _headers(content_type: str, more: Mapping[str, str] | None = None) -> Mapping[str, str]:
    return {**HEADERS, "content-type": content_type, **(more or {})}


def _audit(request: Request, actor: User | None, status: int) -> None:
    """Log a request that changes something, without its body, which may have passwords in it."""
    whom = f"user '{shown(actor.name)}' from {request.peer}" if actor else "the operator"
    if not actor and request.peer:
        whom = f"a client without login from {request.peer}"
    log.info("%s: %s %s: %d", whom, request.method, shown(request.path), status)

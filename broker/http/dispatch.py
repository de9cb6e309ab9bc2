"""The answer to a request: who asks, which route, may they, the handler, and the response in pieces. Pure."""

from collections.abc import Generator, Hashable, Iterator, Mapping
from http import HTTPStatus
from itertools import chain
from typing import Any, Final, NamedTuple

from leveret.broker.administration import AdministrationError, ForbiddenError
from leveret.broker.administration.access import AdministeredBroker, Right, authorize
from leveret.broker.administration.definitions_document import encoded
from leveret.broker.auth.users import BackendUser, User
from leveret.broker.errors import NotYet
from leveret.broker.http.auditing import audit_request, audited_event, check_writable, log_request, state_of
from leveret.broker.http.call import (
    SAFE,
    Answer,
    Call,
    Content,
    Done,
    Events,
    Item,
    Listing,
    Need,
    Request,
    Steps,
    Stored,
    Stream,
    Values,
    signal,
)
from leveret.broker.http.errors import ApiError, bad_request, not_found, translated
from leveret.broker.http.listing import Columns, ListCache, encode_listing, encoded_pieces
from leveret.broker.http.login import SECURE_HEADERS, Verdict, authenticate, check_host, only_vhost
from leveret.broker.http.route import Operation, Router, Scope
from leveret.broker.page.assets import assets
from leveret.broker.process.shares import origin
from leveret.broker.scheduling.node_context import INTERNAL, OPERATOR

PREFIX = "/api/"
HEADERS = {"cache-control": "no-cache", "vary": "accept, accept-encoding, origin"}
JSON = "application/json"
LINES = "application/x-ndjson"  # accepted by a front, from its processes
MOST_DECISIONS = 64  # maximum number of permissions that a request waits for, one after the other


class Response(NamedTuple):
    """A response, without the length; its pieces are None where others may have a turn."""

    status: int
    headers: Mapping[str, str]
    pieces: Iterator[bytes | None]
    delay: float = 0.0  # seconds to wait before it is sent
    stream: Stream | None = None  # the body instead of `pieces`, if it has no end; must be closed
    events: Events | None = None  # instead of a body, events until the client leaves; None for none
    octets: int = 0  # what the pieces keep in memory until they are written, as far as it is much


class Admitted(NamedTuple):
    """A request whose route was found and whose user may call it; its body has not been looked at.

    The actor is None for the operator, or without a login; `event` is its name in the audit log, '' for none.
    """

    request: Request
    operation: Operation
    actor: User | None
    names: Mapping[str, str]
    event: str = ""

    @property
    def owner(self) -> str:
        """The owner of a request's share: the user, '' for the operator, the address without a login."""
        if self.actor is not None:
            return self.actor.name
        return origin(self.request.peer) if self.request.peer else ""


def admit(
    broker: AdministeredBroker, router: Router, request: Request, verdict: Verdict | None = None
) -> Admitted | Response:
    """Find what a request calls, and check that its user may: before its body is read, which may be large.

    `verdict` is what backends have decided about its login, None if they have not been asked: raises UndecidedLogin if
    they have to be. Returns the response to a request that is not admitted.
    """
    actor: User | None = None
    event, names = "", dict[str, str]()
    try:
        if request.host_names is not None:
            check_host(request.headers.get("host", ""), request.host_names)
        if not request.path.startswith(PREFIX):
            is_of_page = request.path == "/" or request.path.startswith("/static/")
            if request.method not in {"GET", "HEAD"} or not is_of_page:
                raise not_found()
            return Admitted(request, _PAGE, None, {"path": request.path.removeprefix("/")})
        found = router.find(request.path.removeprefix(PREFIX))
        if found is None:
            raise not_found()
        route, names = found
        operation = route.operations.get("GET" if request.method == "HEAD" else request.method)
        if operation is None or request.method not in route.methods:
            status = 200 if request.method == "OPTIONS" else 405
            return _empty(status, {"allow": ", ".join(route.methods)})
        if operation.needs is not None:
            actor = authenticate(broker, request, verdict, only_vhost(route.path, names))
            event = audited_event(route.path, request.method, operation)
            check_rights(broker, actor, operation, names)
            check_place(broker.place, route.path, request.method, is_part=PART_HEADER in request.headers)
            check_writable(broker, request.method)
        return Admitted(request, operation, actor, names, event)
    except (AdministrationError, ApiError) as error:
        response = failed(error)
        if event:
            audit_request(broker, event, names, actor, request.peer, response.status, reason=_reason(error))
    if request.method not in SAFE:
        log_request(request.method, request.path, request.peer, actor, response.status)
    return response


def answer(
    broker: AdministeredBroker, admitted: Admitted, content: bytes, lists: ListCache | None = None
) -> Generator[Need, Any, Response]:
    """Answer an admitted request, in steps (see `call.Need`); `lists` are long lists that may be given again."""
    request, operation, actor, names, event = admitted
    if lists is not None and request.method not in SAFE:
        lists.clear()
    asked = _asked(broker, admitted) if lists is not None and operation.kind == "array" else None
    if lists is not None and asked is not None and (kept := lists.find(asked)):
        return Response(200, _headers(JSON), kept)
    status, reason = 0, "broken off"
    before = after = None
    call = Call(broker, actor, Values(names), Values(request.query), content, request.headers, request.peer)
    try:
        call.is_head = request.method == "HEAD"
        former = state_of(operation, call, event)
        found = yield from _handled(operation, call)
        before, after = former, state_of(operation, call, event)
        if request.method in SAFE or not operation.is_stored or (yield Stored()):
            response = yield from _rendered(broker, call, found, lists, asked)
            status, reason = response.status, ""
        else:
            status, reason = 503, "the disk is full: the change is not stored yet"
            response = failed(ApiError(status, "disk_full", reason))
    except (AdministrationError, ApiError) as error:
        response = failed(error)
        status, reason = response.status, _reason(error)
    finally:  # also if the client has left meanwhile
        if event:
            audit_request(broker, event, names, actor, request.peer, status, content, reason, (before, after))
    if request.method not in SAFE:
        log_request(request.method, request.path, request.peer, call.actor, response.status)
    return response


def _reason(error: AdministrationError | ApiError) -> str:
    if isinstance(error, AdministrationError):
        return str(error)
    return str(error.body["reason"]) if error.body else str(error)


def check_rights(
    broker: AdministeredBroker, actor: User | None, operation: Operation, names: Mapping[str, str]
) -> None:
    """Check that a user may call an operation, also for an unknown vhost; ForbiddenError has RabbitMQ's text."""
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


# -- what the front of several processes has ---------------------------------------------------------------------------


OF_NODE: Final = frozenset({
    "users", "permissions", "topic-permissions", "vhosts", "vhost-limits", "user-limits", "global-parameters",
    "cluster-name",
})  # fmt: skip
"""First words of paths of what the front has."""
_WHOLE: Final = frozenset({"definitions", "all-configuration", "leveret/definitions"})
"""Paths that would change users, too."""
PART_HEADER: Final = "x-leveret-part"  # of definitions that are a part, without users, by the front


def check_place(place: str, path: str, method: str, *, is_part: bool = False) -> None:
    """Refuse a change that a process of virtual hosts leaves to the front; raises ApiError.

    `place` is that of the broker (`AdministeredBroker.place`), `path` that of the route. A part of definitions, which
    the front divides, has no users.
    """
    is_of_node = path.partition("/")[0] in OF_NODE or path in _WHOLE
    if place == "process" and method not in SAFE and is_of_node and not is_part:
        raise bad_request(
            "users, rights, limits and virtual hosts are changed in the front, whose data directory is two "
            "levels above that of this process"
        )


# -- the handler, and what it returns ----------------------------------------------------------------------------------


def _handled(operation: Operation, call: Call) -> Generator[Need, Any, Answer]:
    """Call the handler, again once backends have decided about a permission; nothing has changed before that."""
    context, actor = call.broker.context, OPERATOR if call.actor is None else call.actor.name
    for _ in range(MOST_DECISIONS):
        try:
            try:
                context.actor = actor
                made = operation.handler(call)
            finally:
                context.actor = INTERNAL  # others act until the next step
            if isinstance(made, Generator):
                made = yield from context.acting(actor, made)
            return made or Done()
        except NotYet as wait:
            yield signal(wait.subscribe)
    raise ApiError(503, "service_unavailable", "the authentication backends do not decide")


def _asked(broker: AdministeredBroker, admitted: Admitted) -> Hashable:
    """Return what the contents of a list depend on but for figures: who asks, for what, and which objects there are."""
    # As in RabbitMQ, a list that is kept has figures of a moment ago, and never lacks a queue, an exchange or a
    # binding that a client has just declared.
    request, actor = admitted.request, admitted.actor
    seen = actor.vhosts if isinstance(actor, BackendUser) else None
    who = None if actor is None else (actor.name, tuple(actor.tags), seen)
    totals = broker.context.totals
    routers = [vhost.router for vhost in broker.vhosts.values()]
    objects = (
        totals.queues_created,
        totals.queues_deleted,
        hash(tuple([(router.generation, len(router.exchanges)) for router in routers])),
    )
    return who, request.path, tuple(sorted(request.query.items())), request.headers.get("x-vhost"), objects


def _rendered(
    broker: AdministeredBroker, call: Call, answer: Answer, lists: ListCache | None, asked: Hashable
) -> Generator[Need, Any, Response]:
    match answer:
        case Listing():
            is_part = broker.place == "process" and call.headers.get("accept") == LINES
            made = encode_listing(answer, call.query, broker.directory.patterns, is_part=is_part)
            pieces = made if lists is None or asked is None else lists.collect(asked, made)
            # up to the first piece, because until then it may still be an error
            while (first := next(pieces)) is None:
                yield None
            headers = _headers(JSON, answer.headers)
            return Response(200, headers, chain((first,), pieces), octets=answer.octets)
        case Item():
            columns = Columns.asked(call.query)
            value = answer.value if columns is None else columns.reduce(answer.value)
            return Response(answer.status, _headers(JSON, answer.headers), encoded_pieces(value))
        case Content():
            headers = _headers(answer.content_type, answer.headers)
            return Response(answer.status, headers, iter(answer.pieces))
        case Events():
            headers = _headers("text/event-stream", {"x-accel-buffering": "no"})
            return Response(200, headers, iter(()), events=None if call.is_head else answer)
        case Stream():
            return Response(200, _headers(answer.content_type), iter(()), stream=answer)
        case Done():
            location = {"location": answer.location} if answer.location else {}
            return _empty(answer.status, {**location, **answer.headers})


def failed(error: ApiError | AdministrationError) -> Response:
    """Return the response for an error."""
    if isinstance(error, AdministrationError):
        error = translated(error)
    if error.body is None:
        return _empty(error.status, error.headers)
    return Response(error.status, _headers(JSON, error.headers), iter((encoded(error.body),)), error.delay)


def _empty(status: int, headers: Mapping[str, str]) -> Response:
    return Response(status, {**HEADERS, **headers}, iter(()))


def _headers(content_type: str, more: Mapping[str, str] | None = None) -> Mapping[str, str]:
    return {**HEADERS, "content-type": content_type, **(more or {})}


# -- the web page -----------------------------------------------------------------------------------------------------


def _page_file(call: Call) -> Steps:
    found = (assets() if assets.cache_info().currsize else (yield assets)).get(call.names["path"])
    if found is None:
        raise not_found()
    headers = {
        **SECURE_HEADERS,
        "etag": found.etag,
        "cache-control": found.cache_control,
        "vary": "accept-encoding",
    }
    if call.has(found.etag):
        return Content((), found.content_type, headers, HTTPStatus.NOT_MODIFIED)
    if "gzip" in call.headers.get("accept-encoding", ""):
        return Content((found.packed,), found.content_type, {**headers, "content-encoding": "gzip"})
    return Content((found.content,), found.content_type, headers)


_PAGE = Operation(_page_file, "A file of the web page.", None, kind="text")

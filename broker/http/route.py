"""Routes: paths of the API, the operations on them, the rights that they need, their description as OpenAPI 3.1."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

from leveret.broker.administration.access import Right
from leveret.broker.http.call import Answer, Call, Steps, Values, require
from leveret.broker.http.errors import bad_request

Handler = Callable[[Call], Answer | Steps | None]  # answers a call, at once or in steps; None for `Done()`
H = TypeVar("H", bound=Callable[..., Answer | Steps | None])

_BAD_PERCENT = re.compile("%(?![0-9A-Fa-f]{2})")


class Scope(StrEnum):
    """The objects that an operation concerns, beside the tag that its user needs."""

    NONE = "none"  # no vhost, or those that the user may see: the handler shows no others
    VHOST = "vhost"  # the vhost of the path: the user must have permissions in it or be an administrator
    VISIBLE = "visible"  # the vhost of the path: as above, and monitoring users see it, too
    CLIENT = "client"  # vhost of the path, with the permissions that a client of the user would need there


class Work(StrEnum):
    """The cost of an operation: each kind has places of its own, so that none of them waits for another."""

    SHORT = "short"
    LONG = "long"  # it may take seconds: a search, an import
    BODIES = "bodies"  # its answer has bodies of messages, which are in memory until it is written


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a body, for the reference; its kind is a type of JSON, or `any`."""

    name: str
    kind: str = "string"
    is_required: bool = False
    doc: str = ""


def required(name: str, kind: str = "string", doc: str = "") -> Key:
    """Return a key that must be there."""
    return Key(name, kind, is_required=True, doc=doc)


def exact_body(call: Call, keys: Collection[Key]) -> Values:
    """Return a body that has no other keys than these, and the required ones; raises ApiError.

    It is for operations on messages: without its misspelt `dry_run` or `where` one would concern more than was meant.
    """
    body, known = call.body(), sorted(key.name for key in keys)
    if unknown := sorted(body.keys() - set(known)):
        raise bad_request(f"unknown key '{unknown[0]}': there are {', '.join(known)}")
    require(body, *[key.name for key in keys if key.is_required])
    return body


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path."""

    handler: Handler  # answers; raises `ApiError` or an error of the service layer
    doc: str  # one sentence for the reference
    needs: Right | None = Right.MANAGEMENT  # the right that the user needs; None if no login is needed
    scope: Scope = Scope.NONE  # the objects concerned
    body: tuple[Key, ...] = ()  # keys of the body
    query: tuple[Key, ...] = ()  # parameters of the query beside those of all lists
    statuses: tuple[int, ...] = (200,)  # the statuses of success
    work: Work = Work.SHORT  # what it costs
    is_large: bool = False  # True if the body may be large, and the handler reads it in steps
    is_long: bool = False  # True if the work may take minutes, and must not be cut off
    is_audited: bool = False  # True if it is recorded although it changes nothing, because it shows messages
    is_forwarded: bool = False  # True if a front leaves it to the process of the vhost in the path
    is_stored: bool = True  # False if nothing changes on disk, so that the answer need not wait for it
    state: Callable[[Call], Any] | None = None
    """Returns what it changes, as a value of JSON, for the audit log; None if that is not recorded."""
    kind: str = "object"
    """JSON type of the answer with status 200; text for one that is not JSON, events for a stream of them."""


@dataclass(frozen=True, slots=True)
class Route:
    """A path: its segments after `/api/`, of which `{name}` is a name of an object; OPTIONS is always there.

    `group` is the heading in the reference; `has_head` is false if HEAD is not there with GET.
    """

    path: str
    group: str
    operations: Mapping[str, Operation] = field(default_factory=dict)
    has_head: bool = True

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods of the path, as in the header `Allow`."""
        head = ("HEAD",) if self.has_head and "GET" in self.operations else ()
        return (*head, *self.operations, "OPTIONS")


class Routes:
    """The routes of a module: each is declared by a decorator of its handler, whose docstring is the summary.

    Handlers of one path become one route, with its methods in the order in which they are declared. Arguments of a
    handler that are named as those of a path get the names in it. The statuses of a handler that returns None, by its
    annotation, are 204; those of others the usual ones of the method.

    Args:
        group: heading of the routes in the reference.
        defaults: fields of `Operation` that most of them have; `scope` is that of the paths with a vhost.
    """

    def __init__(self, group: str, **defaults: Any) -> None:
        self._group = group
        self._defaults = defaults
        self._routes: dict[str, Route] = {}

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes.values())

    def get(self, *paths: str, **fields: Any) -> Callable[[H], H]:
        """Declare a handler of GET for some paths.

        `fields` are those of `Operation` and `Route` beside the defaults, such as another summary (`doc`), and
        `arguments`, those of the handler that are the same for each call.
        """
        return self._declare("GET", paths, (200,), fields)

    def list(self, *paths: str, **fields: Any) -> Callable[[H], H]:
        """Declare a handler of GET that answers with a list; the arguments are those of `get`."""
        return self.get(*paths, kind="array", **fields)

    def put(self, *paths: str, **fields: Any) -> Callable[[H], H]:
        """Declare a handler of PUT, of an object that is created or changed; the arguments are those of `get`."""
        return self._declare("PUT", paths, (201, 204), fields)

    def post(self, *paths: str, **fields: Any) -> Callable[[H], H]:
        """Declare a handler of POST that answers with what it returns; the arguments are those of `get`."""
        return self._declare("POST", paths, (200,), fields)

    def delete(self, *paths: str, **fields: Any) -> Callable[[H], H]:
        """Declare a handler of DELETE; the arguments are those of `get`."""
        return self._declare("DELETE", paths, (204,), fields)

    def _declare(
        self, method: str, paths: tuple[str, ...], statuses: tuple[int, ...], fields: Mapping[str, Any]
    ) -> Callable[[H], H]:
        def declare(handler: H) -> H:
            doc = " ".join((handler.__doc__ or "").split())
            usual = (204,) if handler.__annotations__.get("return", statuses) is None else statuses
            given = {"doc": doc, "statuses": usual, **self._defaults, **fields}
            group, has_head = given.pop("group", self._group), given.pop("has_head", True)
            called = partial(handler, **given.pop("arguments")) if "arguments" in given else handler
            for path in paths:
                scope = {} if "{vhost}" in path else {"scope": fields.get("scope", Scope.NONE)}
                names = tuple(name for name in handler.__annotations__ if f"{{{name}}}" in path)
                operation = Operation(_with_names(called, names), **given | scope)
                route = self._routes.get(path) or Route(path, group, has_head=has_head)
                self._routes[path] = Route(
                    path, route.group, {**route.operations, method: operation}, route.has_head
                )
            return handler

        return declare


def _with_names(handler: Callable[..., Any], names: tuple[str, ...]) -> Handler:
    """Return a handler that gets these names of the path as arguments."""
    return (lambda call: handler(call, **{name: call.names[name] for name in names})) if names else handler


class Router:
    """Finds routes by path; of two that match, the one with a fixed segment where they differ first is taken."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root: dict[str | None, Any] = {}
        for route in routes:
            node = self._root
            for segment in route.path.split("/"):
                node = node.setdefault(None if segment.startswith("{") else segment, {})
            node["/"] = route

    def find(self, path: str) -> tuple[Route, dict[str, str]] | None:
        """Find the route of a path (percent-encoded, after `/api/`; one slash at its end does not matter).

        Returns the route, and the decoded names by those of their segments; None if there is none. Raises ApiError if a
        percent sign is not followed by two hexadecimal digits.
        """
        if _BAD_PERCENT.search(path):
            raise bad_request("the path is not percent-encoded: write % as %25")
        segments = [decoded(each) for each in path.removesuffix("/").split("/")]
        route = _descend(self._root, segments, 0)
        if route is None:
            return None
        pairs = zip(route.path.split("/"), segments, strict=True)
        return route, {name[1:-1]: given for name, given in pairs if name.startswith("{")}


def _descend(node: Mapping[str | None, Any], segments: list[str], at: int) -> Route | None:
    if at == len(segments):
        route: Route | None = node.get("/")
        return route
    for key in (segments[at], None):
        child = node.get(key) if key != "/" else None
        if child is not None and (found := _descend(child, segments, at + 1)) is not None:
            return found
    return None


def decoded(segment: str) -> str:
    """Return a segment of a path without percent-encoding; a plus is a plus."""
    return unquote_to_bytes(segment).decode("utf-8", "surrogateescape")


# -- the description in the form OpenAPI 3.1 ---------------------------------------------------------------------------


COLUMNS = Key("columns", doc="keys of the answer, with commas between them; all if it is not given")
LISTS = (  # parameters of the query of all lists
    Key("sort", doc="of lists: a key of the items, with dots between the keys of nested objects"),
    Key("sort_reverse", "boolean", doc="of lists: true for the opposite order"),
    COLUMNS,
    Key("page", "integer", doc="of long lists: number of a page, from 1"),
    Key("page_size", "integer", doc="of long lists: items of a page, 1 to 500; 100"),
    Key("name", doc="of a page: part of the names"),
    Key("use_regex", "boolean", doc="of a page: true if `name` is a regular expression"),
)
PAGE_HEAD = ("total_count", "item_count", "filtered_count", "page", "page_size", "page_count")
"""Keys of a page beside its items."""
_ERROR = {"$ref": "#/components/responses/Error"}
_COMPONENTS = {
    "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
    "schemas": {
        "Error": {
            "type": "object",
            "properties": {"error": {"type": "string"}, "reason": {}},
            "required": ["error", "reason"],
        },
        "List": {
            "anyOf": [
                {"type": "array", "items": {"type": "object"}},
                {
                    "description": "A page of the list.",
                    "type": "object",
                    "properties": {
                        **{key: {"type": "integer"} for key in PAGE_HEAD},
                        "items": {"type": "array", "items": {"type": "object"}},
                    },
                    "required": [*PAGE_HEAD, "items"],
                },
            ]
        },
    },
    "responses": {
        "Error": {
            "description": "An error.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
    },
}


def described(routes: Iterable[Route], *, title: str, version: str) -> dict[str, Any]:
    """Return the description of an API."""
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "servers": [{"url": "/api"}],
        "security": [{"basic": []}],
        "paths": {f"/{route.path}": _path(route) for route in sorted(routes, key=lambda route: route.path)},
        "components": _COMPONENTS,
    }


def _path(route: Route) -> dict[str, Any]:
    names = re.findall(r"{(\w+)}", route.path)
    operations = {
        method.lower(): _operation(route, method, operation) for method, operation in route.operations.items()
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in names
    ]
    return {"parameters": parameters, **operations} if names else operations


def _operation(route: Route, method: str, operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}_{route.path}").strip("_"),
        "tags": [route.group],
        "summary": operation.doc,
        "description": rights(operation),
        "responses": _responses(operation),
    }
    reduced = {"array": LISTS, "object": (COLUMNS,)}
    query = (*operation.query, *(reduced.get(operation.kind, ()) if method == "GET" else ()))
    if query:
        described["parameters"] = [
            {"name": key.name, "in": "query", "schema": _schema(key), "description": key.doc} for key in query
        ]
    if operation.body:
        schema = {
            "type": "object",
            "properties": {
                key.name: _schema(key) | ({"description": key.doc} if key.doc else {})
                for key in operation.body
            },
            "required": [key.name for key in operation.body if key.is_required],
        }
        described["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    if operation.needs is None:
        described["security"] = []
    return described


def rights(operation: Operation) -> str:
    """Return in words what a user needs to call an operation."""
    if operation.needs is None:
        return "No login is needed."
    scope = {
        Scope.NONE: "",
        Scope.VHOST: ", and permissions in the vhost",
        Scope.VISIBLE: ", and permissions in the vhost or `monitoring`",
        Scope.CLIENT: ", and the permissions that a client needs for it",
    }[operation.scope]
    return f"Needs `{operation.needs}`{scope}."


def _responses(operation: Operation) -> Mapping[str, Any]:
    responses: dict[str, Any] = {}
    for status in operation.statuses:
        response: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if status == HTTPStatus.OK:
            response["content"] = _content(operation.kind)
        elif status == HTTPStatus.SERVICE_UNAVAILABLE:
            response["content"] = _content("object")
        responses[str(status)] = response
    errors = {"400": _ERROR, "401": {"description": "Not logged in, or not permitted."}, "404": _ERROR}
    return {**responses, **errors, "default": _ERROR}


def _content(kind: str) -> Mapping[str, Any]:
    if kind == "events":
        return {"text/event-stream": {"schema": {"type": "string"}}}
    if kind == "text":
        return {"text/plain": {"schema": {"type": "string"}}}
    schema = {"$ref": "#/components/schemas/List"} if kind == "array" else {"type": kind}
    return {"application/json": {"schema": schema}}


def _schema(key: Key) -> dict[str, Any]:
    return {} if key.kind == "any" else {"type": key.kind}

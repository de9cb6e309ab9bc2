"""The description of an API in the form OpenAPI 3.1, made from its routes."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from leveret.broker.http.route import Key, Operation, Route, Scope

COLUMNS = Key("columns", doc="keys of the answer, with commas between them; all if it is not given")
LISTS = (
    Key("sort", doc="of lists: a key of the items, with dots between the keys of nested objects"),
    Key("sort_reverse", "boolean", doc="of lists: true for the opposite order"),
    COLUMNS,
    Key("page", "integer", doc="of long lists: number of a page, from 1"),
    Key("page_size", "integer", doc="of long lists: items of a page, 1 to 500; 100"),
    Key("name", doc="of a page: part of the names"),
    Key("use_regex", "boolean", doc="of a page: true if `name` is a regular expression"),
)
"""Parameters of the query of all lists."""
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
    """Return the description of an API.

    Args:
        routes: its routes.
        title: its name.
        version: its version.

    """
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
            "properties": {key.name: _schema(key) | _described(key) for key in operation.body},
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


def _described(key: Key) -> dict[str, Any]:
    return {"description": key.doc} if key.doc else {}

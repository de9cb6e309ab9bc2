"""The reference of the HTTP API, from its routes."""

from collections.abc import Iterator

from leveret.broker.http.route import LISTS, Key, Operation, Scope
from leveret.broker.management.routes import ROUTES

_HEAD = """\
# Reference of the HTTP API

This page is generated from the table of routes (`make docs`); edit the modules of `broker/management/`, not this file.
How to use the API is described in [management](management.md). The same as an OpenAPI 3.1 document is at
`/api/openapi.json`.

Paths are below `/api/`. A name in braces is that of an object, percent-encoded (`/` is `%2F`); a slash at the end of a
path does not matter. All `GET` paths but those of limits answer `HEAD`, and all paths answer `OPTIONS`.

*Needs* is the tag of the user: `management` stands for any of `management`, `policymaker`, `monitoring`,
`administrator`; an administrator may do everything. The vhost of the path is one in which the user has permissions, but
with † a monitoring user may see any; with ‡ the user needs, even as an administrator, the permissions that a client
would need. Otherwise lists contain what the user may see.

`PUT` answers 201 if something was created and 204 otherwise, `DELETE` 204, all without a body, and only when the change
is on disk. Required keys of a body are **bold**.

Errors are `{"error": "...", "reason": "..."}`: 400 for an invalid request, 401 for a missing or wrong login and for
missing rights, 404 for what does not exist, 405 for a method that the path does not have, 429 after too many failed
logins of an address, and for a transfer while too many run, 503 from a node that waits to lead, and for changes while a
required audit log cannot be written.

## Parameters of lists

| Parameter | Meaning |
|---|---|
"""
_MARKS = {Scope.NONE: "", Scope.VHOST: "", Scope.VISIBLE: " †", Scope.CLIENT: " ‡"}


def render() -> str:
    """Return the page."""
    return "".join(f"{line}\n" for line in _lines())


def _lines() -> Iterator[str]:
    yield from _HEAD.splitlines()
    for key in LISTS:
        yield f"| `{key.name}` | {key.doc} |"
    for group in sorted({route.group for route in ROUTES}):
        yield ""
        yield f"## {group.capitalize()}"
        yield ""
        yield "| Path | Needs | |"
        yield "|---|---|---|"
        for route in sorted(ROUTES, key=lambda route: route.path):
            if route.group == group:
                for method, operation in route.operations.items():
                    yield f"| `{method} {route.path}` | {_needs(operation)} | {_text(operation)} |"


def _needs(operation: Operation) -> str:
    return "no login" if operation.needs is None else f"`{operation.needs}`{_MARKS[operation.scope]}"


def _text(operation: Operation) -> str:
    parts = [operation.doc]
    if operation.body:
        parts.append(f"Body: {', '.join(map(_key, operation.body))}.")
    if operation.query:
        parts.append(f"Query: {', '.join(map(_key, operation.query))}.")
    return " ".join(parts).replace("|", "\\|")


def _key(key: Key) -> str:
    name = f"**`{key.name}`**" if key.is_required else f"`{key.name}`"
    return f"{name} ({key.doc})" if key.doc else name

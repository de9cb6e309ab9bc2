"""Requests to the management API without sockets: the steps of a response are run to their end."""

import base64
import json
from collections.abc import Generator
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from doubles.fakes import DiskNode

from leveret.broker.http.call import Callback, Need, Request, Stored
from leveret.broker.http.dispatch import Response, admit, answer
from leveret.broker.http.route import Router
from leveret.broker.management.routes import ROUTER

OPERATOR = None
"""Instead of a login: the operator on the host."""


def respond(
    node: Any, router: Router, request: Request, content: bytes = b""
) -> Generator[Need, Any, Response]:
    admitted = admit(node, router, request)
    return admitted if isinstance(admitted, Response) else (yield from answer(node, admitted, content))


class Answer(NamedTuple):
    """An answer: its status, its headers, and its body, decoded if it is JSON."""

    status: int
    headers: dict[str, str]
    body: Any


class Api:
    """The API of a broker.

    Args:
        node: the broker (`fakes.Node`).
        login: name and password with a colon; None for the operator.
        peer: address of the client.

    """

    def __init__(self, node: Any, login: str | None = "guest:guest", peer: str = "127.0.0.1") -> None:
        self.node = node
        self.login = login
        self.peer = "" if login is OPERATOR else peer

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send a request; `path` begins after `/api/` and may have a query."""
        path, _, query = path.partition("?")
        if self.login:
            encoded = base64.b64encode(self.login.encode()).decode()
            headers = {"authorization": f"Basic {encoded}", **headers}
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        request = Request(
            method,
            f"/api/{path}",
            dict(parse_qsl(query, keep_blank_values=True)),
            headers,
            self.peer,
        )
        response = self._run(respond(self.node, ROUTER, request, content))
        octets = b"".join(piece for piece in response.pieces if piece)
        is_json = octets and response.headers.get("content-type") == "application/json"
        return Answer(response.status, dict(response.headers), json.loads(octets) if is_json else octets)

    def _run(self, steps: Generator[Need, Any, Response]) -> Response:
        given: Any = None
        while True:
            try:
                need = steps.send(given)
            except StopIteration as done:
                self.node.run_turn()
                response: Response = done.value
                return response
            given = None
            self.node.run_turn()
            if isinstance(need, Stored):
                given = True
            elif isinstance(need, Callback):
                found: list[Any] = []
                need.subscribe(found.append)
                self.node.run_turn()
                if not found and isinstance(self.node, DiskNode):
                    self.node.read()
                    self.node.write_files()
                assert found, "the callback was not called by the next turn"
                given = found[0]
            elif need is not None:
                given = need()

    def get(self, path: str, **headers: str) -> Any:
        """Return the body of a GET, which must succeed."""
        answer = self.request("GET", path, **headers)
        assert answer.status == 200, answer
        return answer.body

    def put(self, path: str, body: Any = None) -> int:
        return self.request("PUT", path, {} if body is None else body).status

    def post(self, path: str, body: Any = None) -> Answer:
        return self.request("POST", path, {} if body is None else body)

    def delete(self, path: str) -> int:
        return self.request("DELETE", path).status

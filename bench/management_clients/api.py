"""The management API of the broker at RabbitMQ's own ports, with plain requests as guest."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from typing import Any

API = "http://127.0.0.1:15672/api"
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
"""The body that gives a user all permissions."""


def ask(method: str, path: str, body: object = None) -> Any:
    """Send a request, and return the decoded answer; None if it is empty.

    Args:
        method: as `PUT`.
        path: after `/api/`, encoded.
        body: becomes JSON; None for none.

    Raises:
        urllib.error.HTTPError: the status is not one of success.
    """
    headers = {"Authorization": "Basic " + b64encode(b"guest:guest").decode()}
    if body is not None:
        headers["Content-Type"] = "application/json"
    sent = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{API}/{path}", sent, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def quoted(name: str) -> str:
    """Return a name as one segment of a path."""
    return urllib.parse.quote(name, safe="")


def await_that(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Ask again and again until a condition holds; TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            message = f"not within {seconds:.0f} s: {condition}"
            raise TimeoutError(message)
        time.sleep(0.2)

"""A broker with shovels: its management API, and waits with a deadline."""

import json
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote, urlsplit

SECONDS = 30.0
"""Time for a condition to become true; much more than any needs, on a busy machine too."""
LOCAL = "amqp://"


class Http:
    """The management API of a broker.

    Args:
        url: its URL, with a login.

    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        login = f"{unquote(parts.username or 'guest')}:{unquote(parts.password or 'guest')}"
        self._base = f"http://{parts.hostname}:{parts.port}/api/"
        self._headers = {
            "authorization": f"Basic {b64encode(login.encode()).decode()}",
            "content-type": "application/json",
        }

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, content, self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                octets, status = response.read(), response.status
        except urllib.error.HTTPError as error:
            octets, status = error.read(), error.code
        return status, json.loads(octets) if octets else None

    def shovel(self, name: str, vhost: str = "/", **definition: Any) -> int:
        """Set a shovel, from the broker to itself unless URIs are given; `_` stands for `-`. Returns the status."""
        value = {"src-uri": LOCAL, "dest-uri": LOCAL}
        value |= {key.replace("_", "-"): each for key, each in definition.items()}
        status, body = self.request(
            "PUT", f"parameters/shovel/{quote(vhost, safe='')}/{name}", {"value": value}
        )
        assert status in {201, 204}, body
        return status

    def delete(self, name: str, vhost: str = "/") -> int:
        return self.request("DELETE", f"parameters/shovel/{quote(vhost, safe='')}/{name}")[0]

    def status(self, name: str) -> dict[str, Any]:
        """Return the status of a shovel; {} if there is none."""
        _, found = self.request("GET", "shovels")
        return next((each for each in found if each["name"] == name), {})

    def await_state(self, name: str, state: str) -> dict[str, Any]:
        """Wait until a shovel has a state ('' for gone), and return its status."""
        latest: dict[str, Any] = {}

        def has_it() -> bool:
            nonlocal latest
            latest = self.status(name)
            return state == latest.get("state", "")

        await_true(has_it, lambda: latest)
        return latest


def await_true(is_true: Callable[[], bool], found: Callable[[], Any] = lambda: None) -> None:
    """Wait until a condition is true; what is `found` tells why it is not."""
    deadline = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < deadline, found()
        time.sleep(0.01)

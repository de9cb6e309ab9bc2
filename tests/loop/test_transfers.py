"""Transfers by a condition, and the search for dead letters, hold the event loop no longer for a long queue."""

import base64
import contextlib
import http.client
import json
import time
from pathlib import Path
from typing import Any

import pytest
from loop.harness import BAR_MS, WAIT_SECONDS, Site, fill, longest_step, queues, size
from running import free_port

LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()
HEADERS = {"n": 1, "x-death": [{"queue": "origin", "reason": "expired"}]}
NOTHING, EVERYTHING = 'headers.n == 2 or routing_key =~ "^none"', "headers.n == 1"
REQUESTS = {
    "move": {"destination": "origin"},
    "copy": {"destination": "origin"},
    "discard": {},
    "retry": {"max_retries": 9},
}


class Api:
    """The management API of a broker.

    Args:
        port: its port.

    """

    def __init__(self, port: int) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Return the body of an answer."""
        octets = None if body is None else json.dumps(body)
        self._client.request(method, f"/api/leveret/{path}", octets, {"authorization": LOGIN})
        answer = self._client.getresponse()
        content = answer.read()
        assert answer.status < http.client.BAD_REQUEST, content
        return json.loads(content)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def transfer(self, action: str, where: str) -> dict[str, Any]:
        """Make a transfer, and return its result."""
        found = self.send("POST", f"queues/%2F/q/{action}", {**REQUESTS[action], "where": where})
        deadline = time.monotonic() + WAIT_SECONDS
        while found["ended"] is None:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
            found = self.send("GET", f"transfers/{found['id']}")
        assert found["state"] == "done", found
        return dict(found)


def case(action: str, port: int, site: Site) -> None:
    """Search a long queue in vain, list its dead letters, then take everything."""
    channel = site.channel()
    queues(channel, ("q", "origin"), durable=True)
    count = size(1_000_000, 30_000)
    fill(channel, "q", count, body=b"x" * 100, delivery_mode=2, headers=HEADERS)
    site.prepared()
    with contextlib.closing(Api(port)) as api:
        assert api.transfer(action, NOTHING)["matched"] == 0
        (row,) = api.send("GET", "dead-letters/%2F")
        assert (row["queue"], row["messages"]) == ("q", count)
        assert api.transfer(action, EVERYTHING)["done"] == count


@pytest.mark.timeout(1200 if size(1, 0) else 240)
@pytest.mark.parametrize("action", REQUESTS)
@pytest.mark.parametrize("is_paged", [False, True], ids=["in memory", "on disk"])
def test_transfers_hold_nobody(tmp_path: Path, action: str, is_paged: bool):
    """Each step of the loop stays below the bar, whether a condition chooses nothing or everything."""
    port = free_port()
    limit = ["storage.ram_limit=1MiB"] if is_paged else []
    settings = ("management.enabled=true", f"management.tcp.port={port}", *limit)
    step = longest_step(tmp_path, lambda site: case(action, port, site), *settings)

    assert step.milliseconds <= BAR_MS, step

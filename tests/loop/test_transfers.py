"""Transfers and searches by a condition, and the search for dead letters, hold nobody, however long the queue."""

import base64
import contextlib
import http.client
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from loop.harness import BAR_MS, WAIT_SECONDS, Site, consume_all, fill, longest_step, queues, size
from processes.running import free_port

LOGIN = "Basic " + base64.b64encode(b"guest:guest").decode()
HEADERS = {"n": 1, "x-death": [{"queue": "origin", "reason": "expired"}]}
NOTHING, EVERYTHING = 'headers.n == 2 or routing_key =~ "^none"', "headers.n == 1"
REQUESTS = {
    "move": {"destination": "origin"},
    "copy": {"destination": "origin"},
    "discard": {},
    "retry": {"max_retries": 9, "destination": "origin"},
    "replay": {"destination": "origin"},
}
RETAINS = {"x-retain-for": 3_600_000, "x-retain-bytes": 1 << 30}


class Api:
    """The management API of a broker.

    Args:
        port: its port.

    """

    def __init__(self, port: int) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        octets = None if body is None else json.dumps(body)
        self._client.request(method, f"/api/leveret/{path}", octets, {"authorization": LOGIN})
        answer = self._client.getresponse()
        content = answer.read()
        assert answer.status < http.client.BAD_REQUEST, content
        return json.loads(content)

    def close(self) -> None:
        self._client.close()

    def retained(self) -> int:
        return int(self.send("GET", "explain/queue/%2F/q")["retention"]["messages"])

    def transfer(self, action: str, where: str) -> dict[str, Any]:
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


def replay(port: int, site: Site) -> None:
    """Ack a long queue that retains, then search what it retains in vain, and replay all of it."""
    channel = site.channel()
    queues(channel, ("q",), durable=True, arguments=RETAINS)
    queues(channel, ("origin",), durable=True)
    count = size(1_000_000, 30_000)
    fill(channel, "q", count, body=b"x" * 100, delivery_mode=2, headers=HEADERS)
    consume_all(channel, "q")
    channel.send("basic.ack", delivery_tag=0, multiple=True)
    with contextlib.closing(Api(port)) as api:
        deadline = time.monotonic() + WAIT_SECONDS
        while api.retained() < count:
            assert time.monotonic() < deadline, api.retained()
            time.sleep(0.05)
        assert api.transfer("replay", NOTHING)["matched"] == 0
        assert api.transfer("replay", EVERYTHING)["done"] == count


def search(port: int, site: Site) -> None:
    """Look at both ends of a long queue, and search all of it for what is not there."""
    channel = site.channel()
    queues(channel, ("q",), durable=True)
    count = size(1_000_000, 30_000)
    fill(channel, "q", count, body=b"x" * 100, delivery_mode=2, headers=HEADERS)
    site.prepared()
    with contextlib.closing(Api(port)) as api:
        for end in ("head", "tail"):
            assert len(api.send("GET", f"queues/%2F/q/messages?count=10&from={end}")["messages"]) == 10
        after, searched = "", 0
        while after is not None:
            query = urlencode({"count": 10, "where": NOTHING} | ({"after": after} if after else {}))
            found = api.send("GET", f"queues/%2F/q/messages?{query}")
            assert found["messages"] == []
            searched += found["searched"]
            after = found["next"]
        assert searched == count


CASES: dict[str, Callable[[int, Site], None]] = {action: partial(case, action) for action in REQUESTS}
CASES |= {"replay": replay, "search": search}


@pytest.mark.timeout(1200 if size(1, 0) else 240)
@pytest.mark.parametrize("action", CASES)
@pytest.mark.parametrize("is_paged", [False, True], ids=["in memory", "on disk"])
def test_transfers_hold_nobody(tmp_path: Path, action: str, is_paged: bool):
    """Each step of the loop stays below the bar, whether a condition chooses nothing or everything."""
    port = free_port()
    limit = ["storage.ram_limit=1MiB"] if is_paged else []
    settings = ("management.enabled=true", f"management.tcp.port={port}", *limit)
    step = longest_step(tmp_path, partial(CASES[action], port), *settings)

    assert step.milliseconds <= BAR_MS, step

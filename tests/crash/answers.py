"""Kill the broker right after it has answered a change, start it on the same data, and compare all that it has.

The changes are made by the management API, whose answer means that the change is on disk; each kind of change is in
turn the last before a kill. What an answer says must be there, and nothing else: changes are made one by one.
"""

import base64
import http.client
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from crash.answered_state import Change, State, found
from crash.changes import ADMINISTRATOR, KINDS, Changes
from crash.kills import Totals, campaign, check_store
from crash.ledger import MANY
from crash.site import Site
from processes.running import BROKER, free_port

BEFORE = 12
"""Changes between two kills at most, beside the last one."""
TRIES = 20
REQUEST_SECONDS = 60.0
LOGIN = "Basic " + base64.b64encode(f"{ADMINISTRATOR}:guest".encode()).decode()
ORACLE = "answered"


class Requests:
    """Requests to the management API of a broker, over one connection.

    Args:
        port: its port.

    """

    def __init__(self, port: int) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_SECONDS)

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Return the body of an answer; raises AssertionError for an error."""
        octets = None if body is None else json.dumps(body).encode()
        self._client.request(method, f"/api/{path}", octets, {"authorization": LOGIN})
        answer = self._client.getresponse()
        content = answer.read()
        assert answer.status < http.client.BAD_REQUEST, (method, path, body, answer.status, content)
        return json.loads(content) if content else None

    def close(self) -> None:
        self._client.close()

    def state(self, expected: State) -> State:
        """Return what the broker has; the passwords that the model has are tried."""
        document = self.send("GET", "definitions")
        queues = self.send("GET", "queues?columns=vhost,name,messages")
        passwords = {}
        for key, value in expected.items():
            if key[0] == "user":
                body = {"username": key[1], "password": value[1]}
                if self.send("POST", "leveret/authenticate", body)["authenticated"]:
                    passwords[key[1]] = value[1]
        return found(document, queues, passwords)


class Answers:
    """Cycles of changes and a kill on one data directory.

    Args:
        site: the data directory.
        rng: what decides.

    """

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site, self.rng = site, rng
        self.state: State = {("user", ADMINISTRATOR): ("", "guest", "{}")}
        self.changes = Changes(rng, self.state)
        self.made = 0

    def compare(self, requests: Requests) -> int:
        """Compare what the broker has with the model, and go on with what it has; returns the number of keys."""
        state = requests.state(self.state)
        for key in sorted(state.keys() | self.state.keys()):
            has, should = state.get(key), self.state.get(key)
            if has != should:
                self.site.ledger.broke(ORACLE, f"{key} is {has!r}, and was answered to be {should!r}")
        self._set(state)
        return len(state)

    def _set(self, state: State) -> None:
        self.state.clear()
        self.state.update(state)

    def begin(self, requests: Requests) -> None:
        """Take over what a new broker has."""
        self._set(requests.state(self.state))

    def change(self, requests: Requests, kinds: Sequence[str]) -> Change:
        """Make a change of one of these kinds; of another if none of them can be made."""
        for kind in [*kinds, *self.rng.choices(KINDS, k=TRIES)]:
            change = self.changes.made(kind)
            if change is not None:
                requests.send(change.method, change.path, change.body)
                change.apply(self.state)
                self.made += 1
                return change
        message = "no change can be made"
        raise AssertionError(message)


def answers(
    home: Path,
    count: int,
    seed: int,
    *,
    say: Callable[[str], object] = print,
    program: Sequence[str] = BROKER,
    allowance: float = 2.0,
    enough: int = MANY,
) -> Totals:
    """Kill a broker `count` times right after the answer to a change.

    Args:
        home: an existing folder for the data.
        count: number of kills.
        seed: what decides.
        say: called with a line for each.
        program: what the interpreter runs instead of the broker as it is.
        allowance: seconds that a start may take.
        enough: give up after so many violations.

    """
    rng = random.Random(seed)
    port = free_port()
    settings = ("management.enabled=true", f"management.tcp.port={port}")
    words = [word for setting in settings for word in ("--set", setting)]
    site = Site(home, *words, program=program, allowance=allowance)
    run = Answers(site, rng)
    order = rng.sample(KINDS, len(KINDS))
    with campaign("answered", site) as totals:
        site.start()
        requests = Requests(port)
        run.begin(requests)
        for number in range(count):
            for _ in range(rng.randrange(BEFORE)):
                run.change(requests, rng.choices(KINDS))
            last = run.change(requests, [order[number % len(order)]])
            site.kill()
            requests.close()
            totals.cycles += 1
            site.start()
            totals.slowest_start = max(totals.slowest_start, site.ready_after)
            requests = Requests(port)
            keys = run.compare(requests)
            totals.counted += 1
            what = f"{last.method} {last.path}"
            say(
                f"kill {number}, after {what}: start {site.ready_after:.2f} s, {keys} objects and values compared"
            )
            if site.ledger.counts["violations"] >= enough:
                break
        else:
            site.finish()
            check_store(site)
        requests.close()
    totals.notes["changes answered"] = run.made
    return totals

"""The requests of KEDA's rabbitmq scaler over HTTP, and what it would read from the answers, as JSON.

The scaler's package needs most of the clouds' libraries, so that it is not run: these are the URLs and the fields of
version 2.21. It is a Go program, for which a number with a fraction is no integer and a list is no object.
"""

import json
import statistics
import sys
import urllib.error
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench.management_clients import objects
from bench.management_clients.api import ask

Read = tuple[int, int, float, float]
"""Messages, ready messages, and the rates of publishing and of deliveries."""
OPERATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "avg": statistics.fmean,
    "max": max,
}


def main() -> int:
    vhost, root = objects.VHOST, "/"
    cases: dict[str, Callable[[], object]] = {
        "queue length": lambda: read_queue(vhost, "orders.new")[0],
        "queue length without unacknowledged": lambda: read_queue(vhost, "orders.new")[1],
        "queue length of a quorum queue": lambda: read_queue(vhost, "orders.replicated")[0],
        "queue length, encoded name": lambda: read_queue(vhost, "a/b")[0],
        "message rate": lambda: read_queue(vhost, "rates")[2],
        "message rate of a queue without messages": lambda: read_queue(vhost, "a/b")[2],
        "deliver get rate": lambda: read_queue(vhost, "rates")[3],
        "unknown queue": lambda: read_queue(vhost, "nothing"),
        "unknown vhost": lambda: read_queue("nothing", "rates"),
        "queue of the default vhost": lambda: read_queue(root, "rates"),
        "regex that matches nothing": lambda: read_queues(root, "^orders", "sum"),
        "regex, rates": lambda: read_queues(vhost, "^rat", "sum")[2:],
        "regex, encoded vhost": lambda: read_queues("rabbit/hole", ".*", "max"),
        "regex, invalid": lambda: read_queues(vhost, "([", "sum"),
        "regex, more than a page": lambda: read_queues(vhost, "^orders", "sum", page_size=2),
        **{
            f"regex, {name}": lambda name=name: read_queues(vhost, r"^orders\.(new|paid|repl)", name)[:2]
            for name in OPERATIONS
        },
    }
    with objects.made():
        json.dump({name: outcome(case) for name, case in cases.items()}, sys.stdout)
    return 0


def outcome(case: Callable[[], object]) -> object:
    """Return what a case reads; the error's text if it fails."""
    try:
        return case()
    except urllib.error.HTTPError as error:
        return f"{error.code}: {error.read().decode()}"
    except ValueError as error:
        return str(error)


def read_queue(vhost: str, name: str) -> Read:
    """Read one queue; ValueError if the answer cannot be decoded."""
    return decoded(ask("GET", f"queues/{escaped(vhost)}/{escaped(name)}"))


def read_queues(vhost: str, pattern: str, operation: str, page_size: int = 100) -> list[float]:
    """Read all queues whose names match, combined; ValueError if they are not on one page."""
    query = f"page=1&use_regex=true&pagination=false&name={escaped(pattern)}&page_size={page_size}"
    answer = ask("GET", f"queues/{escaped(vhost)}?{query}")
    if whole(answer, "page_count") > 1:
        message = "more than one page"
        raise ValueError(message)
    queues = [decoded(each) for each in answer["items"]]
    return [round(OPERATIONS[operation](column), 1) for column in zip(*queues, strict=True)] or [0, 0, 0, 0]


def decoded(queue: Mapping[str, Any]) -> Read:
    """Return the fields that KEDA reads; ValueError for a type that Go does not decode."""
    stats = queue.get("message_stats", {})
    if not isinstance(stats, dict):
        message = f"message_stats is {stats!r}"
        raise ValueError(message)  # noqa: TRY004 - of an answer, not of an argument
    rates = [float(stats.get(f"{name}_details", {}).get("rate", 0)) for name in ("publish", "deliver_get")]
    return whole(queue, "messages"), whole(queue, "messages_ready"), rates[0], rates[1]


def whole(values: Mapping[str, Any], key: str) -> int:
    found = values.get(key, 0)
    if type(found) is not int:
        message = f"{key} is {found!r}"
        raise ValueError(message)
    return found


def escaped(text: str) -> str:
    """Return a text as Go's `url.QueryEscape` does."""
    return urllib.parse.quote_plus(text, safe="~")


def differences(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    """Return a line for each case that reads something else; rates may differ by half, as the machine is busy."""
    return [
        f"{name}: {ours[name]}, RabbitMQ {value}"
        for name, value in theirs.items()
        if not alike(ours[name], value)
    ]


def alike(one: object, other: object) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return abs(one - other) <= objects.RATE / 2
    return one == other


if __name__ == "__main__":
    sys.exit(main())

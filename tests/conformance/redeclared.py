"""Records what becomes of each argument of a queue when the queue is declared again; `redeclared.txt` has RabbitMQ's.

`python tests/conformance/redeclared.py 127.0.0.1:5672 127.0.0.1:5673` records a RabbitMQ 3.10 and a 4.3 that run there.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1])]

from conformance.wire import Client, ClosedError  # noqa: E402

RECORD = Path(__file__).with_suffix(".txt")
RELEASES = ("3.10", "4.3")
"""Releases of RabbitMQ in the order of the columns of the record."""

KINDS = ("classic", "quorum")
ARGUMENTS: dict[str, tuple[Any, Any]] = {
    "x-expires": (60_000, 70_000),
    "x-message-ttl": (60_000, 70_000),
    "x-dead-letter-exchange": ("a", "b"),
    "x-dead-letter-routing-key": ("a", "b"),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
    "x-max-length": (10, 20),
    "x-max-length-bytes": (10, 20),
    "x-max-in-memory-length": (10, 20),
    "x-max-in-memory-bytes": (10, 20),
    "x-max-priority": (3, 4),
    "x-overflow": ("drop-head", "reject-publish"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-version": (2, 1),
    "x-single-active-consumer": (True, False),
    "x-quorum-initial-group-size": (1, 3),
    "x-queue-leader-locator": ("client-local", "balanced"),
    "x-queue-master-locator": ("client-local", "random"),
    "x-delivery-limit": (5, 6),
    "x-consumer-timeout": (60_000, 70_000),
    "x-consumer-disconnected-timeout": (60_000, 70_000),
    "x-delayed-retry-type": ("all", "failed"),
    "x-delayed-retry-min": (1000, 2000),
    "x-delayed-retry-max": (3000, 4000),
    "x-max-age": ("1h", "2h"),
    "x-stream-max-segment-size-bytes": (1000, 2000),
    "x-stream-filter-size-bytes": (16, 32),
    "x-initial-cluster-size": (1, 3),
    "x-unknown": (1, 2),
}
"""Values of each argument that RabbitMQ knows: the one of the first declaration, and another one."""


def ask(address: tuple[str, int], method: str, **fields: Any) -> str:
    """Call a method of a connection of its own; returns "ok", or the text of the close."""
    client = Client(address)
    try:
        client.login()
        client.call(1, "channel.open")
        client.call(1, method, **fields)
    except ClosedError as error:
        text = (
            str(error.close and error.close.reply_text)
            .partition("\n")[0]
            .removeprefix("PRECONDITION_FAILED - ")
        )
        return text if error.level == "channel" else f"{error.level}: {text}"
    finally:
        client.close_socket()
    return "ok"


def declare(address: tuple[str, int], kind: str, arguments: dict[str, Any]) -> str:
    """Declare the queue `q`."""
    arguments = {"x-queue-type": kind, **arguments}
    return ask(address, "queue.declare", queue="q", durable=True, arguments=arguments)


def outcomes(address: tuple[str, int]) -> Iterator[tuple[str, str]]:
    """Yield each case, as its name, and the broker's answer."""
    for kind in KINDS:
        for name, (value, other) in ARGUMENTS.items():
            first = declare(address, kind, {name: value})
            yield f"{kind} {name} given", first
            if first == "ok":
                yield f"{kind} {name} changed", declare(address, kind, {name: other})
                yield f"{kind} {name} left out", declare(address, kind, {})
            ask(address, "queue.delete", queue="q")
            declare(address, kind, {})
            yield f"{kind} {name} added", declare(address, kind, {name: value})
            ask(address, "queue.delete", queue="q")
        yield f"{kind} - order", " ".join(_order(address, kind))


def _order(address: tuple[str, int], kind: str) -> Iterator[str]:
    """Yield the arguments that are compared, each when it is the first of those that differ."""
    declare(address, kind, {})
    arguments = {name: value for name, (value, _) in ARGUMENTS.items()}
    arguments["x-queue-type"] = next(each for each in KINDS if each != kind)
    while found := re.match("inequivalent arg '(.*?)'", declare(address, kind, arguments)):
        yield found[1]
        del arguments[found[1]]
    ask(address, "queue.delete", queue="q")


def recorded() -> dict[str, dict[str, str]]:
    """Return the record: by release, the answer of each case."""
    rows = [line.split(" | ") for line in RECORD.read_text(encoding="utf-8").splitlines()]
    return {release: {row[0]: row[at] for row in rows} for at, release in enumerate(RELEASES, 1)}


def main(*addresses: str) -> None:
    """Record the brokers at these addresses, HOST:PORT, one for each release."""
    found = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        found.append(dict(outcomes((host, int(port)))))
    lines = [" | ".join([case, *(each.get(case, "-") for each in found)]) for case in found[0] | found[1]]
    RECORD.write_text("".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

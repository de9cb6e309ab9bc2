"""Sends the same requests to a real RabbitMQ and to this project's broker, and compares (``make campaign NAME=management``).

Exit code 0: every difference is explained in explained.py. 1: some difference is not. 2: a broker did not start.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from conformance.brokers import SetUp, StartError, free_port, start_ours, start_rabbitmq  # noqa: E402
from management_beside.answers import Answer, Target, ask, differences  # noqa: E402
from management_beside.explained import EXPLAINED  # noqa: E402
from management_beside.requests import REQUESTS, Asked  # noqa: E402


@contextmanager
def ours() -> Iterator[Target]:
    """Our broker."""
    port = free_port()
    node = "ours@localhost"
    settings = (
        "prometheus.enabled=false",
        f"management.tcp.port={port}",
        f"node_name={node}",
        "auth.failure_delay=0ms",
    )
    broker = start_ours(SetUp("managed", ours=settings))
    try:
        yield Target(port, node, broker.address[1])
    finally:
        broker.stop()


@contextmanager
def rabbitmq() -> Iterator[Target]:
    """A RabbitMQ with the management plugin."""
    port = free_port()
    lines = (f"management.tcp.port = {port}", "management.tcp.ip = 127.0.0.1")
    broker = start_rabbitmq(SetUp("managed", plugins="rabbitmq_management", lines=lines))
    try:
        yield Target(port, broker.environment["RABBITMQ_NODENAME"], broker.address[1])
    finally:
        broker.stop()


def answers(target: Target, groups: list[str]) -> dict[str, list[Answer]]:
    """Return the answers of a broker by group."""
    return {group: [ask(target, asked) for asked in REQUESTS[group]] for group in groups}


def main() -> int:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("groups", nargs="*", help="of requests; all")
    parser.add_argument(
        "--record", type=Path, help="write RabbitMQ's answers to this file, or take them from it"
    )
    given = parser.parse_args()
    groups = ["set-up", *(given.groups or [group for group in REQUESTS if group != "set-up"])]
    try:
        if given.record and given.record.exists():
            read = json.loads(given.record.read_text())
            theirs = {group: [Answer(**each) for each in read[group]] for group in groups}
        else:
            with rabbitmq() as target:
                theirs = answers(target, groups)
            if given.record:
                kept = {group: [asdict(each) for each in found] for group, found in theirs.items()}
                given.record.write_text(json.dumps(kept, indent=1))
        with ours() as target:
            here = answers(target, groups)
    except StartError as error:
        print(error, file=sys.stderr)
        return 2
    return report(groups, theirs, here)


def report(groups: list[str], theirs: dict[str, list[Answer]], here: dict[str, list[Answer]]) -> int:
    """Print the differences; returns the exit code."""
    count = equal = unexplained = 0
    for group in groups:
        for asked, one, other in zip(REQUESTS[group], theirs[group], here[group], strict=True):
            count += 1
            found = list(differences(one, other))
            reason = explanation(asked)
            equal += not found
            if found and not reason:
                unexplained += 1
            for text in found:
                print(f"{shown(asked)}\n    {text}" + (f"\n    explained: {reason}" if reason else ""))
    print(f"{equal} of {count} answers are equal, {count - equal - unexplained} differ for a reason, "
          f"{unexplained} without one")  # fmt: skip
    return 1 if unexplained else 0


def explanation(asked: Asked) -> str:
    """Return why the answer to a request differs; '' if it should not."""
    line = shown(asked)
    return next((reason for pattern, reason in EXPLAINED.items() if re.match(pattern, line)), "")


def shown(asked: Asked) -> str:
    """Return a request in one line."""
    body = (
        ""
        if asked.body is None
        else f" {asked.body if isinstance(asked.body, str) else json.dumps(asked.body)}"
    )
    return f"{asked.login or 'nobody'}: {asked.method} {asked.path}{body}"


if __name__ == "__main__":
    sys.exit(main())

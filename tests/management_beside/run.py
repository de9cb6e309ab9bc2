"""Sends the same requests to a real RabbitMQ and to this project's broker, and compares (``make campaign NAME=management``).

Exit code 0: every difference is listed in explained.py. 1: some is not, or one that is listed is none any more.
2: a broker did not start.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parents[2])]

from conformance.brokers import SetUp, StartError, free_port, start_ours, start_rabbitmq  # noqa: E402
from management_beside.answers import Answer, Target, ask, differences  # noqa: E402
from management_beside.asked import Asked, read  # noqa: E402
from management_beside.explained import CHANGED, DIFFERENT, NO_ROUTE  # noqa: E402

CLIENT_ERRORS, SERVER_ERROR = 400, 500
REQUESTS = read()


@contextmanager
def ours() -> Iterator[Target]:
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
    """Print the differences and the counts; returns the exit code."""
    counts: Counter[str] = Counter()
    unexplained = 0
    used = set()
    for group in groups:
        for asked, one, other in zip(REQUESTS[group], theirs[group], here[group], strict=True):
            found = list(differences(one, other))
            kind, pattern, reason = judged(asked, one, other, is_equal=not found)
            counts[kind] += 1
            used.add(pattern)
            unexplained += not reason
            if kind != EQUAL:
                print(f"{asked.line}\n    {kind}: {reason or '?'}", *found, sep="\n    ")
    known = counts[EQUAL] + counts[OTHER]
    print(f"{'asked':<48} {counts.total():>5}")
    for kind in (NO_ROUTE_THERE, CRASH, AS_LATER):
        print(f"{kind:<48} {counts[kind]:>5}")
    print(f"{'known to 3.10':<48} {known:>5}")
    print(f"{EQUAL:<48} {counts[EQUAL]:>5}  {counts[EQUAL] / known:.1%}")
    print(f"{OTHER:<48} {counts[OTHER]:>5}  ({unexplained} without a reason)")
    stale = DIFFERENT.keys() - used if len(groups) == len(REQUESTS) else set()
    for pattern in sorted(stale):
        print(f"no request differs for: {pattern}")
    return 1 if unexplained or stale else 0


EQUAL = "equal"
OTHER = "different"
NO_ROUTE_THERE = "no route of 3.10"
CRASH = "3.10 fails with 500, here 4xx"
AS_LATER = "3.13 answers otherwise, and so here"


def judged(asked: Asked, theirs: Answer, ours: Answer, *, is_equal: bool) -> tuple[str, str, str]:
    """Return how an answer counts, the pattern that says so, and the reason; '' if it differs without one."""
    if pattern := _matching(NO_ROUTE, asked.line):
        return NO_ROUTE_THERE, pattern, NO_ROUTE[pattern]
    if is_equal:
        return EQUAL, "", EQUAL
    if theirs.status == SERVER_ERROR and CLIENT_ERRORS <= ours.status < SERVER_ERROR:
        return CRASH, "", CRASH
    if pattern := _matching(CHANGED, asked.line):
        return AS_LATER, pattern, CHANGED[pattern]
    pattern = _matching(DIFFERENT, asked.line)
    return OTHER, pattern, DIFFERENT.get(pattern, "")


def _matching(patterns: Iterable[str], line: str) -> str:
    return next((pattern for pattern in patterns if re.fullmatch(pattern, line)), "")


if __name__ == "__main__":
    sys.exit(main())

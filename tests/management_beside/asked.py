"""The requests that both brokers are sent."""

import re
from pathlib import Path
from typing import NamedTuple

NOBODY = "nobody"
REQUESTS = Path(__file__).with_name("requests.txt")
_LINE = re.compile(
    rf"(?:{NOBODY}|(?P<login>[a-z]+)): (?P<method>[A-Z]+)(?: (?P<path>\S+)(?: (?P<body>.+))?)?"
)


class Asked(NamedTuple):
    """A request: its line in `requests.txt`, method, path after `/api/`, body and login.

    `login` is the name of a user, whose password is the same; None for none.
    """

    line: str
    method: str
    path: str
    body: str | None
    login: str | None


def asked(line: str) -> Asked:
    """Return the request of a line; raises AssertionError for a line of another form."""
    found = _LINE.fullmatch(line)
    assert found, line
    return Asked(line, found["method"], found["path"] or "", found["body"], found["login"])


def read() -> dict[str, list[Asked]]:
    """Return the requests of each group, in the order of the file."""
    groups: dict[str, list[Asked]] = {}
    for line in REQUESTS.read_text().splitlines():
        if line.startswith("["):
            group = groups[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            group.append(asked(line))
    return groups

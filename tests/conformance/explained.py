"""Reasons why our outcome of a case is not RabbitMQ's: data for the runner and for cases.md.

What RabbitMQ answers instead is in the record (outcomes.txt, octets-*.txt), so that no other difference is hidden. Ours
answers what is written in the case, in each profile; a script of octets.py it answers as the first peer does.
"""

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Explanation:
    """One difference: the cases it covers (ids, or patterns as of file names), and what RabbitMQ does instead.

    `of` are the releases that differ.
    """

    cases: tuple[str, ...]
    what: str
    reason: str
    source: str
    of: tuple[str, ...] = ("3.10",)

    def covers(self, ident: str, peer: str) -> bool:
        """Return whether this explains that case of a peer."""
        return peer in self.of and any(fnmatchcase(ident, pattern) for pattern in self.cases)


EXPLAINED = tuple(
    Explanation(**{name: tuple(value) if isinstance(value, list) else value for name, value in each.items()})
    for each in tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["explained"]
)


def explanation(ident: str, peer: str) -> Explanation | None:
    """The explanation of a case's difference from a peer, if it has one."""
    return next((one for one in EXPLAINED if one.covers(ident, peer)), None)

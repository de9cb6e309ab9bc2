"""Arguments of queues and exchanges that have no effect.

Arguments without effect are mostly typing errors, some belong to other releases or queue types. RabbitMQ accepts them
in silence, and so do we; but the log and `leveret explain` name them.
"""

import difflib
import logging
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final, NamedTuple

from leveret.broker.queue.arguments import FILTER_SIZE, OF_IDS, OF_QUEUES

log = logging.getLogger("leveret.queue")

OF_EXCHANGES: Final = frozenset(
    (
        "alternate-exchange",
        "hash-header",
        "hash-property",
        "x-delayed-type",
        "x-recent-history-length",
        *OF_IDS,
    )
)
OF_OTHERS: Final = {FILTER_SIZE: "streams of RabbitMQ"}
"""Arguments that other brokers' queues have and ours do not, and whose they are; RabbitMQ 3.13 refuses none of them."""
_MOST_COMPARED = 8  # most unknown arguments that are compared with the known ones, which takes a while
_LONGEST = 64  # maximum length of such a name
_SIMILAR = 0.75


class Unknown(NamedTuple):
    """An argument without effect: probably meant as a `similar` one, or one of another broker's queues, its `owner`."""

    name: str
    similar: str
    owner: str = ""

    def __str__(self) -> str:
        if self.owner:
            return f"argument '{self.name}' has no effect: only {self.owner} have it"
        advice = f": did you mean '{self.similar}'?" if self.similar else ""
        return f"unknown argument '{self.name}' has no effect{advice}"


def unknown_arguments(arguments: Iterable[str], known: Collection[str] = OF_QUEUES) -> list[Unknown]:
    """Return the arguments that have no effect, at most eight."""
    found = islice((name for name in arguments if name not in known), _MOST_COMPARED)
    return [
        Unknown(name, "", OF_OTHERS[name]) if name in OF_OTHERS else Unknown(name, _similar(name, known))
        for name in found
    ]


def _similar(name: str, known: Collection[str]) -> str:
    if len(name) > _LONGEST:
        return ""
    return next(iter(difflib.get_close_matches(name.lower(), known, 1, _SIMILAR)), "")


def warn_of_unknown(what: str, arguments: Iterable[str], known: Collection[str] = OF_QUEUES) -> None:
    """Log arguments of a new object that look like typing errors, or belong to other brokers."""
    for each in unknown_arguments(arguments, known):
        if each.similar or each.owner:
            log.warning("%s: %s", what, each)

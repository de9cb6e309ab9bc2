"""Arguments of declarations that have no effect: most are typing errors, some belong to other releases or queue types.

RabbitMQ accepts them in silence, and so do we; but the log and `leveret explain` name them.
"""

import difflib
import logging
from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final, NamedTuple

from leveret.broker.queue.arguments import OF_QUEUES

log = logging.getLogger("leveret.queue")

OF_EXCHANGES: Final = frozenset(("alternate-exchange", "x-delayed-type"))
_QUORUM: Final = "quorum queues of RabbitMQ 4.3"
OF_OTHERS: Final = {
    "x-consumer-disconnected-timeout": _QUORUM,
    "x-delayed-retry-max": _QUORUM,
    "x-delayed-retry-min": _QUORUM,
    "x-delayed-retry-type": _QUORUM,
    "x-stream-filter-size-bytes": "streams of RabbitMQ",
}
"""Arguments that other brokers' queues have and ours do not, and whose they are; RabbitMQ 3.13 refuses none of them."""
_MOST = 8
"""Maximum number of unknown arguments that are compared with the known ones, which takes a while."""
_LONGEST = 64
"""Maximum length of such a name."""
_SIMILAR = 0.75


class Unknown(NamedTuple):
    """An argument that has no effect.

    Attributes:
        name: its name.
        similar: the known argument that was probably meant; '' if none is similar.
        owner: the queues of another broker that have this argument; '' for none.

    """

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
    found = islice((name for name in arguments if name not in known), _MOST)
    return [
        Unknown(name, "", OF_OTHERS[name]) if name in OF_OTHERS else Unknown(name, _similar(name, known))
        for name in found
    ]


def _similar(name: str, known: Collection[str]) -> str:
    if len(name) > _LONGEST:
        return ""
    return next(iter(difflib.get_close_matches(name.lower(), known, 1, _SIMILAR)), "")


def warn(what: str, arguments: Iterable[str], known: Collection[str] = OF_QUEUES) -> None:
    """Log arguments of a new object that look like typing errors, or belong to other brokers.

    Args:
        what: the object, as in errors.
        arguments: names of its arguments.
        known: those that have an effect.

    """
    for each in unknown_arguments(arguments, known):
        if each.similar or each.owner:
            log.warning("%s: %s", what, each)

"""Arguments of declarations that have no effect, because nobody knows them: most are typing errors.

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

    """

    name: str
    similar: str

    def __str__(self) -> str:
        advice = f": did you mean '{self.similar}'?" if self.similar else ""
        return f"unknown argument '{self.name}' has no effect{advice}"


def unknown_arguments(arguments: Iterable[str], known: Collection[str] = OF_QUEUES) -> list[Unknown]:
    """Return the arguments that have no effect, at most eight."""
    found = islice((name for name in arguments if name not in known), _MOST)
    return [Unknown(name, _similar(name, known)) for name in found]


def _similar(name: str, known: Collection[str]) -> str:
    if len(name) > _LONGEST:
        return ""
    return next(iter(difflib.get_close_matches(name.lower(), known, 1, _SIMILAR)), "")


def warn(what: str, arguments: Iterable[str], known: Collection[str] = OF_QUEUES) -> None:
    """Log arguments of a new object that look like typing errors.

    Args:
        what: the object, as in errors.
        arguments: names of its arguments.
        known: those that have an effect.

    """
    for each in unknown_arguments(arguments, known):
        if each.similar:
            log.warning("%s: %s", what, each)

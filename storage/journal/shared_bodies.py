"""Bodies shared by several queues: one queue's share of the memory, and the ids under which they are paged once.

Theory. A message that is routed to many queues is one object in all of them, and a copy with a TTL shares the bytes of
its original. So the interpreter's reference counts already have the number of queues that hold a body; a second count
would cost every queue time for each message. A count is exact when it is read and may be wrong a moment later, when a
consumer has taken its copy. So it decides how memory is accounted and how a body is laid out on disk, never what is
kept.
"""

from collections.abc import Callable
from operator import attrgetter, itemgetter
from sys import getrefcount

from leveret.storage.message import Message

OVERHEAD = 256  # approximate bytes of memory of an alpha besides its content
PLACE = 16  # part of it that each queue has where a message is shared: its place in a deque
PRUNE_OCTETS = 4 * 1024 * 1024  # bytes of new bodies after which those no longer in memory are pruned

_content = attrgetter("content")
_first = itemgetter(0)
_OURS = 2  # references that are not a queue's: the call's, and that of the list, message or tuple


class SharedBodies:
    """Ids, from `next_number`, of transient bodies that several queues share and that are paged, while in memory."""

    __slots__ = ("_known", "_next_number", "_octets")

    def __init__(self, next_number: Callable[[], int]) -> None:
        self._next_number = next_number
        self._known: dict[int, tuple[bytes, int]] = {}
        """By the identity of the content, which is kept alive so that the identity stays unique."""
        self._octets = 0

    def __len__(self) -> int:
        return len(self._known)

    def known(self, content: bytes) -> int:
        """Return the id of a body; 0 if it has none."""
        found = self._known.get(id(content))
        return 0 if found is None else found[1]

    def number(self, content: bytes) -> int:
        """Assign an id to a body that has none yet."""
        if self._octets > PRUNE_OCTETS:
            self.prune()
        self._octets += len(content)
        number = self._next_number()
        self._known[id(content)] = content, number
        return number

    def prune(self) -> None:
        """Forget the bodies that are referenced nowhere else in memory."""
        self._octets = 0
        known = list(self._known.values())
        counts = map(
            getrefcount, map(_first, known)
        )  # not in a call: from Python 3.14 on that may hold no reference
        self._known = {id(each[0]): each for each, count in zip(known, counts, strict=True) if count > _OURS}

    def holders(self, messages: list[Message]) -> list[int]:
        """Return how many places hold each message's body, without this list; the caller must hold no other."""
        known = self._known
        return [
            places + twins - (id(message.content) in known)
            for places, twins, message in zip(_places(messages), _twins(messages), messages, strict=True)
        ]

    def own_share(self, messages: list[Message], has_entry: list[bool]) -> float:
        """Return the fraction of the memory of some messages to be counted for one queue: above 0, at most 1.

        `has_entry` says of each whether the queue has an unshared entry of its own for it.
        """
        whole = own = 0.0
        for message, places, holding, is_entry in zip(
            messages, _places(messages), self.holders(messages), has_entry, strict=True
        ):
            size = len(message.content)
            whole += size + OVERHEAD
            own += size / max(1, holding)
            own += OVERHEAD if is_entry else PLACE + (OVERHEAD - PLACE) / max(1, places)
        return own / whole if whole else 1.0


def _places(messages: list[Message]) -> list[int]:
    return [count - _OURS for count in map(getrefcount, messages)]


def _twins(messages: list[Message]) -> list[int]:
    """Return the number of other messages that have the content of each."""
    return [count - _OURS for count in map(getrefcount, map(_content, messages))]

"""How many queues share a message's body: what it costs one of them, and under which number it is paged for all.

Theory. A message that is routed to many queues is one object in all of them, and a copy that expires has the octets of
its original. So the interpreter counts already who holds a body; counting it a second time would cost every queue
something for each message. A count is exact when it is asked for and may be wrong a moment later, when a consumer has
taken its copy: it decides how memory is judged and how a body is laid out on disk, never what is kept.
"""

from collections.abc import Callable
from operator import attrgetter
from sys import getrefcount

from leveret.storage.message import Message

OVERHEAD = 256
"""Octets of memory that an alpha costs beside its content, about."""
PLACE = 16
"""Octets of that which each queue has for itself where a message is shared: the message's place in a deque."""
PRUNE_OCTETS = 4 * 1024 * 1024
"""Octets of bodies that have got a number since it was last asked which of them memory still has."""

_content = attrgetter("content")
_OURS = 2
"""References that are not a queue's: those of the call and of the list, or of the call and of the message."""


class SharedBodies:
    """The numbers of transient bodies that several queues have and that are paged, as long as memory has them.

    Args:
        next_number: gives one that was never given before.

    """

    __slots__ = ("_known", "_next_number", "_octets")

    def __init__(self, next_number: Callable[[], int]) -> None:
        self._next_number = next_number
        self._known: dict[int, tuple[bytes, int]] = {}
        """By the identity of the content, which is kept so that it stays one."""
        self._octets = 0

    def __len__(self) -> int:
        return len(self._known)

    def known(self, content: bytes) -> int:
        """The number of a body; 0 if it has none."""
        found = self._known.get(id(content))
        return 0 if found is None else found[1]

    def number(self, content: bytes) -> int:
        """Give a body a number, which it has not got yet."""
        if self._octets > PRUNE_OCTETS:
            self.prune()
        self._octets += len(content)
        number = self._next_number()
        self._known[id(content)] = content, number
        return number

    def prune(self) -> None:
        """Forget the bodies that nobody else has in memory any more."""
        self._octets = 0
        alone = 3  # the tuple's reference, the loop's and the call's
        left = {}
        for content, number in self._known.values():
            if getrefcount(content) > alone:
                left[id(content)] = content, number
        self._known = left

    def holders(self, messages: list[Message]) -> list[int]:
        """How many places have the body of each message, beside this list.

        The caller owes: it has no other reference to any of the messages.
        """
        known = self._known
        return [
            places + twins - (id(message.content) in known)
            for places, twins, message in zip(_places(messages), _twins(messages), messages, strict=True)
        ]

    def own_share(self, messages: list[Message], has_entry: list[bool]) -> float:
        """What part of the memory that messages take is to be counted for one queue that has them: above 0, at most 1.

        Args:
            messages: some messages of the queue, as `holders` takes them.
            has_entry: whether the queue has an entry of its own for each, which nobody shares.

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
    """How many places have each message beside this list."""
    return [count - _OURS for count in map(getrefcount, messages)]


def _twins(messages: list[Message]) -> list[int]:
    """How many other messages have the content of each."""
    return [count - _OURS for count in map(getrefcount, map(_content, messages))]

"""A promise to a publisher: to be told when every copy of a message has had its verdict.

A number of a channel in confirm mode may depend on several things: on consumers of each queue that the message went to,
on copies that have to be on disk, on dead letters that take the place of a copy. Each of them is a copy here, and knows
the promise; none knows the others. The first that is refused decides, and what becomes of the rest is not told.

Hot path: see docs/performance.md.
"""

from typing import Protocol


class Publisher(Protocol):
    """Who is told: a channel, or another promise that this one is a part of."""

    def accepted(self, seq_no: int) -> None:
        """All copies of the message of that number were accepted."""

    def refused(self, seq_no: int) -> None:
        """One of them was not."""


class Promise:
    """What a publisher waits for; it is a `Publisher` itself, for copies that are promised to be on disk.

    Args:
        publisher: who is told, once.
        seq_no: the publisher's number of the message.
        copies: how many have to be accepted, at least 1. Each of them owes exactly one call of `accepted`, or of
            `refused` and any number of either afterwards.

    """

    __slots__ = ("open", "publisher", "seq_no")

    def __init__(self, publisher: Publisher, seq_no: int, copies: int) -> None:
        self.publisher: Publisher | None = publisher
        """None once it was told."""
        self.seq_no = seq_no
        self.open = copies
        """Copies without a verdict; one that becomes a dead letter adds it here before it has its own."""

    def accepted(self, seq_no: int = 0) -> None:
        """One copy has what it was promised. The number is the promise's own, whatever the copy calls it."""
        del seq_no
        self.open = left = self.open - 1
        if not left and self.publisher is not None:
            self.publisher.accepted(self.seq_no)
            self.publisher = None

    def refused(self, seq_no: int = 0) -> None:
        """One copy will not have it."""
        del seq_no
        if self.publisher is not None:
            self.publisher.refused(self.seq_no)
            self.publisher = None

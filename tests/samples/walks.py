"""Walks over a backing queue, portion after portion, with their reads done at once."""

from typing import Any

from leveret.storage.queues.backing_queue import BackingQueue, Peeked, Portion, PortionSteps


def portion_of(steps: PortionSteps) -> Portion:
    answer: Any = None
    while True:
        try:
            wanted = steps.send(answer)
        except StopIteration as stopped:
            return stopped.value
        answer = None if wanted is None else wanted()


def walked(queue: BackingQueue, most: int, *, backwards: bool = False) -> list[Peeked]:
    """Return all ready messages, in the order of the queue, by a walk in portions of at most `most`."""
    found: list[Peeked] = []
    after: int | None = None
    portions = []
    while True:
        assert len(portions) < 2000, (portions[-5:], backwards, most)
        portion = portion_of(queue.portion(most, after, backwards=backwards))
        assert len(portion.messages) <= most
        portions.append((portion.at, len(portion.messages)))
        if portion.at is None:
            return found[::-1] if backwards else found
        assert portion.at != after
        found += portion.messages
        after = portion.at


def unacked_of(queue: BackingQueue, most: int = 1 << 60) -> list[Peeked]:
    """Return all unacked messages in the order of the queue, in portions of at most `most`."""
    found: list[Peeked] = []
    left = queue.unacked_ids()
    while left:
        portion = portion_of(queue.unacked_portion(left[:most]))
        assert portion.at
        found += portion.messages
        left = left[portion.at :]
    return sorted(found)

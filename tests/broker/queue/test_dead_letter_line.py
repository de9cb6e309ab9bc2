"""The line of messages that a queue discards."""

from types import SimpleNamespace

from leveret.broker.queue.dead_letter_line import DeadLetterLine
from leveret.broker.scheduling.time_slices import TimeSlices


def test_nothing_is_discarded_while_arrivals_of_others_are_deferred():
    """No message is discarded while arrivals of other queues are deferred: commits wait for these, and it takes long."""
    waits = [True, False]
    turn = SimpleNamespace(
        slices=TimeSlices(), wait_for_arrivals=lambda _: waits.pop(0), wait_for_disk=lambda _: False
    )
    backing = SimpleNamespace(unacked_messages=lambda ids: ([(seq_id, b"") for seq_id in ids], []))
    taken: list[int] = []
    queue = SimpleNamespace(
        moving=0, turn=turn, backing=backing, dead_lettered=lambda _, moved: taken.extend(moved)
    )
    publisher = SimpleNamespace(
        dead_letter=lambda _, letters, __: (len(letters), [seq_id for seq_id, _ in letters])
    )
    dead_letters = DeadLetterLine(queue, publisher)
    dead_letters.add([1, 2, 3], "expired")

    assert (0, False, []) == (dead_letters.publish_pending(), dead_letters.wants_time, taken)
    assert (3, False, [1, 2, 3]) == (dead_letters.publish_pending(), dead_letters.wants_time, taken)

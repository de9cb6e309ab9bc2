"""A queue that gets far more messages than memory has room for, and no pause in which all of them are on disk."""

from leveret.storage.journal.journal import Journal
from leveret.storage.message import Persistent
from leveret.storage.queues.invariants import check
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue

CONTENT = b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x00" + bytes(7) + b"\x08\x00\x00\xce" + b"x" * 100
SEGMENT = 64


def queue() -> VariableQueue:
    """A durable queue of small segments that may keep about a hundred messages in memory."""
    pager = Pager(Journal(), lambda _: None, segment=SEGMENT, io_batch=16, ram_limit=100 * 350)
    return VariableQueue(pager, 1, durable=True)


def publish(made: VariableQueue, count: int) -> None:
    made.publish([Persistent(b"\x00\x01q", CONTENT, 1, None, 0, 1) for _ in range(count)], persistent=True)


def in_memory(made: VariableQueue) -> int:
    """Return the number of ready messages that have anything in memory."""
    return made.ready_count - made.delta.count


def test_a_delta_forms_though_the_youngest_messages_are_never_on_disk() -> None:
    """Older messages leave memory while a publisher goes on, though some are always under way."""
    made = queue()
    journal = made.pager.journal
    for _ in range(200):
        publish(made, 20)
        if journal.in_flight is not None:
            journal.settled()
        publish(made, 20)
        journal.cut()
        check(made)
    assert made.ready_count == 8000
    assert in_memory(made) < 500
    assert made.q2, "what is not on disk yet stands behind the delta"


def test_one_call_pages_as_much_as_it_brought() -> None:
    """A call with more messages than one step pages does not leave them in memory for good."""
    made = queue()
    journal = made.pager.journal
    for _ in range(10):
        publish(made, 5000)
        journal.cut()
        journal.settled()
        check(made)
    assert in_memory(made) < 11_000

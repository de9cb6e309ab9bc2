"""Copies of a message: each queue gets the form that it needs, and the publisher hears of all of them once."""

from collections.abc import Callable
from typing import Any

import pytest
from doubles.publisher import Publisher

from leveret.broker.vhost.copies import Copies
from leveret.confirm.promise import Promise
from leveret.storage.message import Message, Moved, Persistent, Promised


class Taker:
    """A queue, as a message on its way to it sees it."""

    def __init__(
        self, *, durable: bool = False, awaits: bool = False, saves_all: bool = False, full: bool = False
    ) -> None:
        self.durable = durable
        self.awaits_consumers = awaits
        self.saves_all = saves_all
        self.full = full
        self.deleted = False
        self.inbox: list[Any] = []
        self.tally = self
        self.forwarded = 0

    def put(self, message: Message, *, is_new: bool = True) -> bool:
        """Take a message unless the queue is full."""
        del is_new
        if not self.full:
            self.inbox.append(message)
        return not self.full


def copied(queues: list[Taker], *, persistent: bool = True, **options: Any) -> Copies:
    """Put a message of a promise into queues, and return its copies."""
    message = Message(b"\x00\x00", b"content", 1)
    copies = Copies(message, queues, persistent=persistent, **options)  # type: ignore[arg-type]
    for queue in queues:
        copies.put(queue)  # type: ignore[arg-type]
    return copies


def promised() -> tuple[Publisher, Promise]:
    publisher = Publisher()
    return publisher, Promise(publisher, 7, 1)


def test_each_queue_gets_its_form():
    """Durable queues share a persistent copy, transient ones get it, too, and queues that await consumers a promise."""
    durable, other, transient, awaiting = (
        Taker(durable=True),
        Taker(durable=True),
        Taker(),
        Taker(awaits=True),
    )
    publisher, promise = promised()
    copies = copied([durable, transient, awaiting, other], promise=promise)
    copies.finish()
    (saved,) = durable.inbox

    assert isinstance(saved, Persistent)
    assert [saved] * 2 == [*other.inbox, *transient.inbox]
    assert (2, 2) == (saved.copies, saved.open_copies)
    assert [Promised] == [type(message) for message in awaiting.inbox]
    assert copies.is_stored
    for step in (saved.accepted, saved.accepted, awaiting.inbox[0].promise.accepted):
        assert [] == publisher.outcomes
        step()
    assert [("ack", 7)] == publisher.outcomes


@pytest.mark.parametrize(
    ("queues", "persistent", "expected"),
    [
        ([Taker(durable=True)], False, False),
        ([Taker()], True, False),
        ([Taker(durable=True), Taker(durable=True, saves_all=True)], False, True),
        ([Taker(durable=True, saves_all=True, awaits=True), Taker(durable=True)], False, False),
    ],
    ids=["not persistent", "not durable", "a quorum queue", "a quorum queue that awaits consumers"],
)
def test_what_is_stored(queues: list[Taker], persistent: bool, expected: bool):
    """Durable queues store persistent messages, and all messages that a quorum queue among them stores."""
    assert expected is copied(queues, persistent=persistent, promise=promised()[1]).is_stored


@pytest.mark.parametrize("nacks", [True, False])
def test_a_refusal_is_a_nack_where_it_has_to_be(nacks: bool):
    """A queue that refuses a message has it nacked, unless it is a dead letter, and holds no copy of it."""
    full, durable = Taker(durable=True, full=True), Taker(durable=True)
    publisher, promise = promised()
    copies = copied([full, durable], promise=promise, nacks=nacks)
    copies.finish()
    durable.inbox[0].accepted()

    assert not copies.is_taken
    assert [("nack" if nacks else "ack", 7)] == publisher.outcomes


def test_a_deleted_queue_holds_nothing_back():
    """A queue that is deleted before its turn gets no copy, and nobody waits for it."""
    deleted, durable = Taker(durable=True), Taker(durable=True)
    deleted.deleted = True
    publisher, promise = promised()
    copies = copied([deleted, durable], promise=promise)
    durable.inbox[0].accepted()
    before = [*publisher.outcomes]
    copies.finish()

    assert [] == before
    assert [("ack", 7)] == publisher.outcomes
    assert ([], True, True) == (deleted.inbox, copies.is_taken, copies.is_finished)


def test_queues_of_a_dead_letter_do_not_answer_for_their_consumers():
    """A dead letter is safe once its queues have it, also in a queue that confirms on consumer acks."""
    awaiting = Taker(awaits=True)
    publisher, promise = promised()
    copied([awaiting], persistent=False, promise=promise, awaits=False).finish()

    assert [Message] == [type(message) for message in awaiting.inbox]
    assert [("ack", 7)] == publisher.outcomes


def test_an_original_stays_until_a_large_copy_is_written():
    """A large message that moves is a `Moved`: its original stays, and goes at once if no queue takes the copy."""
    outcomes: list[bool] = []
    on_safe: Callable[[bool], object] = outcomes.append
    taken = copied([Taker(durable=True)], on_safe=on_safe, blob_threshold=1)
    taken.finish()
    small = copied([Taker(durable=True)], on_safe=on_safe, blob_threshold=100)
    refused = copied([Taker(durable=True, full=True)], on_safe=on_safe, blob_threshold=1)

    assert [True, False, True] == [copies.stays for copies in (taken, small, refused)]
    assert isinstance(taken.message, Moved)
    assert [] == outcomes
    refused.finish()
    assert [False] == outcomes


def test_a_body_that_is_in_a_file_is_not_written_again():
    """A `Persistent` message keeps its file, and counts its copies anew."""
    message = Persistent(b"\x00\x00", b"content", 1, None, 0, 0)
    queues = [Taker(durable=True), Taker(durable=True)]
    copies = Copies(message, queues, persistent=True)  # type: ignore[arg-type]
    for queue in queues:
        copies.forward(queue)  # type: ignore[arg-type]
    copies.finish()

    assert [message] * 2 == [queue.inbox[0] for queue in queues]
    assert (2, 2) == (message.copies, message.open_copies)
    assert [1, 1] == [queue.forwarded for queue in queues]

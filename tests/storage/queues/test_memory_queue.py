"""The queue in memory against a list of everything it was ever given."""

from collections.abc import Collection

from checks.internals import ready_messages
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from leveret.storage.message import Message
from leveret.storage.queues.memory_queue import MemoryQueue

READY, UNACKED, GONE = "ready", "unacked", "gone"


class MemoryQueueAgainstAList(RuleBasedStateMachine):
    """The model: a state and a redelivered mark for each message, at the index that is its position."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = MemoryQueue()
        self.messages: list[Message] = []
        self.states: list[str] = []
        self.redelivered: list[bool] = []

    def positions(self, state: str) -> list[int]:
        return [position for position, current in enumerate(self.states) if current == state]

    def new(self, count: int, state: str) -> list[Message]:
        messages = [Message(b"", b"%d" % len(self.messages), 1) for _ in range(count)]
        self.messages += messages
        self.states += [state] * count
        self.redelivered += [False] * count
        return messages

    @rule(count=st.integers(0, 5))
    def publish(self, count: int) -> None:
        self.queue.publish(self.new(count, READY))

    @precondition(lambda self: not self.queue.ready_count)
    @rule(count=st.integers(1, 5), ack_required=st.booleans())
    def publish_delivered(self, count: int, ack_required: bool) -> None:
        first = len(self.messages)
        messages = self.new(count, UNACKED if ack_required else GONE)
        seq_ids = self.queue.publish_delivered(messages, ack_required=ack_required)

        assert list(range(first, first + count)) == list(seq_ids)

    @precondition(lambda self: self.queue.ready_count)
    @rule(count=st.integers(1, 8), ack_required=st.booleans())
    def fetch(self, count: int, ack_required: bool) -> None:
        ready = self.positions(READY)
        marked = self.redelivered[ready[0]]
        run = []
        for position in ready[:count]:
            if self.redelivered[position] is not marked:
                break
            run.append(position)
        batch = self.queue.fetch(count, ack_required=ack_required)

        assert run == list(batch.seq_ids)
        assert [self.messages[position] for position in run] == batch.messages
        assert marked is batch.redelivered
        for position in run:
            self.states[position] = UNACKED if ack_required else GONE

    def some(self, data: st.DataObject) -> Collection[int]:
        return data.draw(st.lists(st.sampled_from(self.positions(UNACKED)), unique=True, min_size=1))

    @precondition(lambda self: self.positions(UNACKED))
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        seq_ids = self.some(data)
        self.queue.ack(seq_ids)
        for position in seq_ids:
            self.states[position] = GONE

    @precondition(lambda self: self.positions(UNACKED))
    @rule(data=st.data())
    def requeue(self, data: st.DataObject) -> None:
        seq_ids = self.some(data)
        self.queue.requeue(seq_ids)
        for position in seq_ids:
            self.states[position] = READY
            self.redelivered[position] = True

    @rule()
    def purge(self) -> None:
        ready = self.positions(READY)

        assert len(ready) == self.queue.purge()
        for position in ready:
            self.states[position] = GONE

    @invariant()
    def counts_and_contents_agree(self) -> None:
        ready = self.positions(READY)

        assert len(ready) == self.queue.ready_count
        assert len(self.positions(UNACKED)) == self.queue.unacked_count
        assert [self.messages[position] for position in ready] == ready_messages(self.queue)


TestMemoryQueueAgainstAList = MemoryQueueAgainstAList.TestCase


def test_what_is_not_unacked_any_more_is_left_out():
    """A request for unacked messages after an error returns those that there are."""
    queue = MemoryQueue()
    messages = [Message(b"\0\1q", b"%d" % number, 1) for number in range(3)]
    queue.publish_delivered(messages, ack_required=True, persistent=False)
    queue.ack([1])

    assert ([(0, messages[0]), (2, messages[2])], []) == queue.unacked_messages([0, 1, 2])

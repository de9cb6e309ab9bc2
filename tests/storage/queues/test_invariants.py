"""The invariants of a queue are checked: a queue that forgets to read ahead, or to say that it waits, is found out."""

from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from leveret.storage.journal.journal import Journal
from leveret.storage.journal.reads import LoadRequest
from leveret.storage.message import Message
from leveret.storage.queues.backing_queue import Recovered
from leveret.storage.queues.invariants import InvariantError, check
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment

SEGMENT = 8


class Disk:
    """A queue with 40 messages, of which a segment is in q3 and the rest are deltas."""

    def __init__(self, path: Path, *, unacked: int = 0) -> None:
        self.environment = Environment(path, sync=False)
        self.journal = Journal()
        self.requests: list[LoadRequest] = []
        self.queue = VariableQueue(
            Pager(self.journal, self.requests.append, segment=SEGMENT, io_batch=1), 1, durable=False
        )
        self.queue.publish([Message(b"", number.to_bytes(20, "big"), 1) for number in range(40)])
        if unacked:
            self.queue.fetch(unacked, ack_required=True)
        for _ in range(2):
            self.queue.set_ram_target(0, 1 << 40)
            self.environment.commit(self.journal.cut())
            self.journal.settled()
        self.environment.close()


def fetch(queue: VariableQueue) -> None:
    queue.fetch(1, ack_required=False)


def recovered(queue: VariableQueue) -> VariableQueue:
    """A queue after a start, all of it on disk."""
    after = VariableQueue(queue.pager, 2, durable=True, next_seq=1 << 40)
    after.recover(Recovered(40, 0, 40))
    return after


@pytest.mark.parametrize("ask", [fetch, lambda queue: queue.drop(1), lambda queue: queue.head_expires()])
def test_whoever_wants_what_is_on_disk_waits_for_a_load(
    tmp_path: Path, ask: Callable[[VariableQueue], object]
) -> None:
    """A start reads nothing before a request; then a load is under way, or `check` says that it is not."""
    queue = recovered(Disk(tmp_path).queue)
    check(queue)
    with patch.object(VariableQueue, "_prefetch", lambda _: None):
        ask(queue)
        with pytest.raises(InvariantError, match=r"I3.*I4.*I4"):
            check(queue)
    ask(queue)

    check(queue)
    assert queue.loading


def test_whoever_wants_a_body_waits_for_a_load(tmp_path: Path) -> None:
    """A consumer waits for a load where the position of the head is in memory, and its body is not."""
    queue = Disk(tmp_path).queue
    assert (SEGMENT, 40 - SEGMENT) == (len(queue.q3), queue.delta.count)
    with patch.object(VariableQueue, "_prefetch", lambda _: None):
        fetch(queue)
        with pytest.raises(InvariantError, match="I4: a fetch waits"):
            check(queue)
    fetch(queue)

    check(queue)


@pytest.mark.parametrize("forgets", [False, True])
def test_what_is_behind_the_last_in_memory_is_read_ahead(tmp_path: Path, forgets: bool) -> None:
    """The next messages are being read already when the last one in memory goes, for any reason."""
    queue = Disk(tmp_path).queue
    fetch(queue)
    with patch.object(VariableQueue, "_keep_ahead" if forgets else "_want", lambda _: None):
        queue._loading = None
        queue._starved = False
        queue.drop(SEGMENT)
        if forgets:
            with pytest.raises(InvariantError, match="I3"):
                check(queue)
        else:
            check(queue)

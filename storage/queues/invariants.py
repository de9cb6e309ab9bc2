"""Invariants of a variable queue between any two calls, checked by tests after every operation.

A broker started with `storage.check_invariants = true` calls it after every operation of every queue, which takes time
in proportion to the messages in memory.
"""
# ruff: noqa: SLF001 - friends: it reads the private attributes that it checks

from itertools import islice, pairwise
from math import inf
from sys import maxsize

from leveret.storage.journal.blocks import GONE, LOGGED, NEW, STORED, WRITING, Entry
from leveret.storage.queues.requeued import Item, size_of
from leveret.storage.queues.sub_queues import SAMPLE
from leveret.storage.queues.variable_queue import VariableQueue


class InvariantError(AssertionError):
    """Raised when an invariant of a queue is violated; the text says which."""


def check(queue: VariableQueue) -> None:
    """Raise InvariantError unless every invariant holds."""
    if queue.deleted:
        return
    problems = [text for text, holds in _facts(queue).items() if not holds]
    if problems:
        raise InvariantError(f"queue {queue.qid}: {'; '.join(problems)}")


def _facts(queue: VariableQueue) -> dict[str, bool]:
    """Return whether each invariant holds, by the fault if it does not."""
    q1, q2, q3, q4 = queue.q1, queue.q2, queue.q3, queue.q4
    delta = queue.delta.count
    on_disk = bool(q3) or bool(delta)
    returned = list(queue.returned.items)
    in_reach = bool(returned) or bool(q4) or bool(q3)
    unacked = [*queue._unacked.items(), *queue._unacked_out.items()]
    seq_ids = _seq_ids(queue)
    ends = {queue.delta.start, queue.delta.stop - 1} if delta else set()
    entries = [item for item in (*q4, *q3, *q2, *q1, *returned) if type(item) is Entry]
    in_memory: list[Item] = [
        item for item in (*q4, *q3, *q2, *q1, *returned) if type(item) is not Entry or item.message
    ]
    octets = sum(size_of(item) for item in in_memory)
    if not queue._q4_counted:
        octets -= sum(size_of(item) for item in q4)
    ready = len(returned) + len(q4) + len(q3) + delta + len(q2) + len(q1)
    fetched = [*(seq_id for seq_id, _ in queue.returned), *(seq_id for seq_id, _ in unacked)]
    delivered = [seq_id for seq_id in fetched if seq_id not in queue.delta.gaps]
    return {
        "I1: q1 has messages, q3 and delta have none": not q1 or on_disk,
        "I2: q2 has messages, delta has none": not q2 or bool(delta),
        "I3: delta has wanted messages, q3 is empty, and no read is in progress": bool(q3)
        or not delta
        or bool(returned)
        or queue.loading
        or not queue._asked,
        "I4: wanted messages are ready, q3 and q4 are empty, and no read is in progress": in_reach
        or not queue.ready_count
        or queue.loading
        or not queue._asked,
        "I4: a fetch waits for the head, and no read is in progress": queue.loading or not queue._starved,
        f"I10: {queue.ready_count} messages are ready, the parts have {ready}": queue.ready_count == ready,
        "I5: delta has more messages than its range": queue.delta.start + delta <= queue.delta.stop,
        "I7: a body is neither in memory nor on disk": all(e.message or e.state == STORED for e in entries),
        "a ready message is missing": all(e.state != GONE for e in entries),
        "I8: more messages in memory than are ready": 0 <= queue.ram_msg_count <= queue.ready_count,
        f"I8: {octets} bytes are in memory, {queue.ram_octets} are counted": octets == queue.ram_octets,
        f"{queue.away_octets} bytes of betas and gammas are counted": sum(
            e.size for e in (*q3, *q2, *returned) if type(e) is Entry and not e.message
        )
        == queue.away_octets,
        f"{queue.unacked_away_octets} bytes of unacked messages without a body are counted": sum(
            entry.size for entry in queue._unacked_out.values()
        )
        == queue.unacked_away_octets,
        "I9: the sub-queues are out of order": all(low < high for low, high in pairwise(seq_ids)),
        "I9: one never fetched is before one fetched": not delivered
        or not seq_ids
        or max(delivered) < seq_ids[0],
        "a message that was withdrawn is ready": not any(
            seq_id in queue.delta.gaps and seq_id not in ends for seq_id in seq_ids
        ),
        "I9: a message is requeued and unacked": len(set(fetched)) == len(fetched),
        "a seq_id was never assigned": all(seq_id < queue.next_seq for seq_id in (*seq_ids, *fetched)),
        "q4 has something that is not an alpha": all(item.message for item in q4 if type(item) is Entry),
        "I6: a persistent message is not on its way to disk": not queue.durable
        or not any(not isinstance(item, Entry) and item.persistent for item in (*q4, *q1)),
        "q1 has something that is not an alpha": all(item.message for item in q1 if type(item) is Entry),
        "a beta is in the store": all(e.durable for e in entries if e.state == STORED and not e.block.paged),
        "a paged message is in the durable environment": all(
            e.state in {NEW, WRITING, LOGGED} or e.durable or e.block.paged for e in entries
        ),
        "the entries among the alphas are miscounted": sum(type(item) is Entry for item in (*q4, *q1))
        == queue._run_entries,
        f"{queue.unacked_octets} bytes without an unacked message are counted": bool(queue._unacked)
        or not queue.unacked_octets,
        "the entries among the unacked are miscounted": sum(type(item) is Entry for _, item in unacked)
        == queue._unacked_entries,
        "an unacked message has lost its body": all(
            type(item) is not Entry or (item.message and not item.evict) for item in queue._unacked.values()
        ),
        "an unacked message keeps its body": all(
            (item.message is None) is not item.evict for item in queue._unacked_out.values()
        ),
        "what waits for its commit is miscounted": sum(entry.size for entry in (*q3, *q2) if entry.evict)
        == queue._evicting,
        "an alpha is to be evicted": not any(e.evict for e in (*q4, *q1, *returned) if type(e) is Entry),
        "prefetched messages are missing": queue._ahead <= len(q3)
        and all(entry.message for entry in islice(q3, queue._ahead)),
        f"{queue.delta.paged} transient messages and {queue.delta.octets} bytes in a delta of {delta}": 0
        <= queue.delta.paged
        <= max(0, delta)
        and queue.delta.octets >= 0,
        f"{queue.state_counts()} messages by state are {_states(queue)}": len(entries) > SAMPLE
        or queue.state_counts() == _states(queue),
        "a block is miscounted": all(
            block.away >= 0 and block.live >= block.away for block in queue.delta.blocks.values()
        ),
    }


def _states(queue: VariableQueue) -> tuple[int, int, int, int]:
    """Return the numbers of ready messages that are alpha, beta, gamma and delta."""
    away = [item for item in queue.returned.items if type(item) is Entry and item.message is None]
    kinds = [entry.durable for entry in (*away, *queue.q3, *queue.q2)]
    alphas = queue.ram_msg_count - len(away)
    return alphas, kinds.count(False), kinds.count(True), queue.delta.count


def _seq_ids(queue: VariableQueue) -> list[int]:
    """Return the seq_ids of messages that were never fetched from head to tail; of the delta, the ends of its range."""
    found: list[int] = []
    for part in queue._parts()[1:]:
        if part is not None:
            found += part.between(-inf, inf, maxsize, backwards=False)[0]
        elif queue.delta.count:
            found += sorted({queue.delta.start, queue.delta.stop - 1})
    return found

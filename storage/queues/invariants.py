"""Invariants of a variable queue between any two calls, checked by tests after every operation.

The numbers are those of docs/storage.md. A broker started with `storage.check_invariants = true` calls it after every
operation of every queue, which takes time in proportion to the messages in memory.
"""
# ruff: noqa: SLF001 - friends: it reads the private attributes that it checks

from itertools import islice, pairwise

from leveret.storage.journal.blocks import GONE, LOGGED, NEW, STORED, WRITING, Entry
from leveret.storage.queues.requeued import Item
from leveret.storage.queues.sub_queues import SAMPLE
from leveret.storage.queues.variable_queue import VariableQueue


class InvariantError(AssertionError):
    """Raised when an invariant of a queue is violated; the text says which."""


def check(queue: VariableQueue) -> None:
    """Raise InvariantError unless every invariant holds."""
    if queue.deleted:
        return
    problems = [text for holds, text in _facts(queue) if not holds]
    if problems:
        raise InvariantError(f"queue {queue.qid}: {'; '.join(problems)}")


def _facts(queue: VariableQueue) -> list[tuple[bool, str]]:
    q1, q2, q3, q4 = queue.q1, queue.q2, queue.q3, queue.q4
    delta = queue.delta_count
    on_disk = bool(q3) or bool(delta)
    returned = list(queue.returned.items)
    in_reach = bool(returned) or bool(q4) or bool(q3)
    unacked = [*queue._unacked.items(), *queue._unacked_out.items()]
    seq_ids = _ready_seq_ids(queue)
    entries = [item for item in (*q4, *q3, *q2, *q1, *returned) if type(item) is Entry]
    in_memory: list[Item] = [
        item for item in (*q4, *q3, *q2, *q1, *returned) if type(item) is not Entry or item.message
    ]
    octets = sum(_size(item) for item in in_memory)
    if not queue._q4_counted:
        octets -= sum(_size(item) for item in q4)
    ready = len(returned) + len(q4) + len(q3) + delta + len(q2) + len(q1)
    fetched = [*(seq_id for seq_id, _ in queue.returned), *(seq_id for seq_id, _ in unacked)]
    delivered = [seq_id for seq_id in fetched if seq_id not in queue.gaps]
    return [
        (not q1 or on_disk, "I1: q1 has messages, q3 and delta have none"),
        (not q2 or bool(delta), "I2: q2 has messages, delta has none"),
        (
            bool(q3) or not delta or bool(returned) or queue.loading or not queue._asked,
            "I3: delta has wanted messages, q3 is empty, and no read is in progress",
        ),
        (
            in_reach or not queue.ready_count or queue.loading or not queue._asked,
            "I4: wanted messages are ready, q3 and q4 are empty, and no read is in progress",
        ),
        (
            queue.loading or not queue._starved,
            "I4: a fetch waits for the head, and no read is in progress",
        ),
        (queue.ready_count == ready, f"I10: {queue.ready_count} messages are ready, the parts have {ready}"),
        (queue.delta_start + delta <= queue.delta_stop, "I5: delta has more messages than its range"),
        (all(e.message or e.state == STORED for e in entries), "I7: a body is neither in memory nor on disk"),
        (all(e.state != GONE for e in entries), "a ready message is missing"),
        (0 <= queue.ram_msg_count <= queue.ready_count, "I8: more messages in memory than are ready"),
        (
            octets == queue.ram_octets,
            f"I8: {octets} bytes are in memory, {queue.ram_octets} are counted",
        ),
        (
            sum(e.size for e in (*q3, *q2, *returned) if type(e) is Entry and not e.message)
            == queue.away_octets,
            f"{queue.away_octets} bytes of betas and gammas are counted",
        ),
        (
            sum(entry.size for entry in queue._unacked_out.values()) == queue.unacked_away_octets,
            f"{queue.unacked_away_octets} bytes of unacked messages without a body are counted",
        ),
        (all(low < high for low, high in pairwise(seq_ids)), "I9: the sub-queues are out of order"),
        (
            not delivered or not seq_ids or max(delivered) < seq_ids[0],
            "I9: one never fetched is before one fetched",
        ),
        (
            not any(seq_id in queue.gaps for seq_id in _ready_in_memory(queue)),
            "a message that was withdrawn is ready",
        ),
        (len(set(fetched)) == len(fetched), "I9: a message is requeued and unacked"),
        (all(seq_id < queue.next_seq for seq_id in (*seq_ids, *fetched)), "a seq_id was never assigned"),
        (
            all(item.message for item in q4 if type(item) is Entry),
            "q4 has something that is not an alpha",
        ),
        (
            not queue.durable
            or not any(not isinstance(item, Entry) and item.persistent for item in (*q4, *q1)),
            "I6: a persistent message is not on its way to disk",
        ),
        (all(item.message for item in q1 if type(item) is Entry), "q1 has something that is not an alpha"),
        (
            all(e.durable for e in entries if e.state == STORED and not e.block.paged),
            "a beta is in the store",
        ),
        (
            all(e.state in {NEW, WRITING, LOGGED} or e.durable or e.block.paged for e in entries),
            "a paged message is in the durable environment",
        ),
        (
            sum(type(item) is Entry for item in (*q4, *q1)) == queue._run_entries,
            "the entries among the alphas are miscounted",
        ),
        (
            bool(queue._unacked) or not queue.unacked_octets,
            f"{queue.unacked_octets} bytes without an unacked message are counted",
        ),
        (
            sum(type(item) is Entry for _, item in unacked) == queue._unacked_entries,
            "the entries among the unacked are miscounted",
        ),
        (
            all(
                type(item) is not Entry or (item.message and not item.evict)
                for item in queue._unacked.values()
            ),
            "an unacked message has lost its body",
        ),
        (
            all((item.message is None) is not item.evict for item in queue._unacked_out.values()),
            "an unacked message keeps its body",
        ),
        (
            sum(entry.size for entry in (*q3, *q2) if entry.evict) == queue._evicting,
            "what waits for its commit is miscounted",
        ),
        (not any(e.evict for e in (*q4, *q1, *returned) if type(e) is Entry), "an alpha is to be evicted"),
        (
            queue._ahead <= len(q3) and all(entry.message for entry in islice(q3, queue._ahead)),
            "prefetched messages are missing",
        ),
        (
            0 <= queue.delta_paged <= max(0, delta) and queue.delta_octets >= 0,
            f"{queue.delta_paged} transient messages and {queue.delta_octets} bytes in a delta of {delta}",
        ),
        (
            len(entries) > SAMPLE or queue.state_counts() == tuple(queue.states().values()),
            f"{queue.state_counts()} messages by state are {queue.states()}",
        ),
        (
            all(block.away >= 0 and block.live >= block.away for block in queue.blocks.values()),
            "a block is miscounted",
        ),
    ]


def _size(item: Item) -> int:
    return item.size if isinstance(item, Entry) else len(item.content)


def _ready_in_memory(queue: VariableQueue) -> list[int]:
    """Return the seq_ids of never fetched messages in memory."""
    q4_first, q1_first = queue._q4_first, queue._q1_first
    seq_ids = [*range(q4_first, q4_first + len(queue.q4)), *range(q1_first, q1_first + len(queue.q1))]
    return [*seq_ids, *[entry.seq_id for entry in (*queue.q3, *queue.q2)]]


def _ready_seq_ids(queue: VariableQueue) -> list[int]:
    """Return the seq_ids of never fetched messages in memory, and the delta's range, from head to tail."""
    q4_first, q1_first = queue._q4_first, queue._q1_first
    seq_ids = list(range(q4_first, q4_first + len(queue.q4)))
    seq_ids += [entry.seq_id for entry in queue.q3]
    if queue.delta_count:
        seq_ids.append(queue.delta_start)
        if queue.delta_stop - 1 > queue.delta_start:
            seq_ids.append(queue.delta_stop - 1)
    seq_ids += [entry.seq_id for entry in queue.q2]
    return seq_ids + list(range(q1_first, q1_first + len(queue.q1)))

"""Queues with damaged records and blocks deliver all other messages, and subtract the octets of the lost ones."""

import pytest
from samples.stored import SEGMENT, Stored

from leveret.storage.journal.journal import Journal
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.variable_queue import VariableQueue
from leveret.storage.store.environment import Environment
from leveret.storage.store.recovery import recover

BLOCKS = 4


@pytest.mark.parametrize("is_early", [True, False])
@pytest.mark.parametrize(("at", "lost"), [(-1, 1), (30, SEGMENT)], ids=["record", "block"])
def test_what_is_damaged_keeps_nothing_back_and_counts_no_more(tmp_path, is_early, at, lost):
    """All undamaged messages are delivered, and the octets of the others are reported as lost."""
    stored = Stored(tmp_path, "one")
    for number in range(BLOCKS):
        for each in range(SEGMENT):
            stored.publish(f"m{number}-{each}" + "x" * 100, "one")
        stored.commit()
    qid = stored.queues["one"].qid
    stored.close(clean=True)
    environment = Environment(tmp_path, sync=False)
    with environment.store.env.begin(write=True) as txn:
        key, value = list(txn.cursor(environment.store.db["blocks"]))[1]
        damaged = bytearray(value)
        damaged[at] ^= 1
        txn.put(key, bytes(damaged), db=environment.store.db["blocks"])
    requests = []
    pager = Pager(Journal(environment.boot << 40), requests.append, segment=SEGMENT, early_confirm=is_early)
    queue = VariableQueue(pager, qid, durable=True, next_seq=environment.boot << 40)
    queue.recover(recover(environment, {qid: queue})[qid])
    counted = sum(queue.ready_octets())
    delivered = []
    for _ in range(4 * BLOCKS):
        delivered += queue.fetch(SEGMENT, ack_required=True).messages if queue.ready_count else []
        while requests:
            request = requests.pop(0)
            queue.loaded(request, environment.read(request.ranges, request.limit))
    environment.close()

    assert BLOCKS * SEGMENT - lost == len(delivered)
    assert counted == sum(message.body_size for message in delivered) + queue.lost_octets
    assert 0 == queue.ready_count


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("octets", [4096, 1 << 20], ids=["a page", "all of it"])
@pytest.mark.parametrize(("other", "place"), [("two", 1), ("two", 2), ("one", 2)])
def test_no_block_is_served_in_place_of_another(tmp_path, clean, octets, other, place):
    """A block with the pages of another one, of any queue, has its messages reported as lost."""
    stored = Stored(tmp_path, "one", "two")
    for name in ("two", "one"):
        for number in range(BLOCKS):
            for each in range(SEGMENT):
                stored.publish(f"{name}-{number}-{each}" + "x" * 300, name)
            stored.commit()
    qid, other_qid = stored.queues["one"].qid, stored.queues[other].qid
    stored.close(clean=clean)
    environment = Environment(tmp_path, sync=False)
    with environment.store.env.begin(write=True) as txn:
        blocks = dict(txn.cursor(environment.store.db["blocks"]))
        mine, others = (
            [key for key in blocks if key[:8] == each.to_bytes(8, "big")] for each in (qid, other_qid)
        )
        foreign = blocks[others[place]][:octets] + blocks[mine[1]][octets:]
        txn.put(mine[1], foreign, db=environment.store.db["blocks"])
    environment.close()

    environment = Environment(tmp_path, sync=False)
    requests = []
    pager = Pager(
        Journal(environment.boot << 40), requests.append, segment=SEGMENT, damages=environment.damages
    )
    queue = VariableQueue(pager, qid, durable=True, next_seq=environment.boot << 40)
    queue.recover(recover(environment, {qid, stored.queues["two"].qid})[qid])
    delivered = []
    for _ in range(4 * BLOCKS):
        delivered += queue.fetch(SEGMENT, ack_required=True).messages if queue.ready_count else []
        while requests:
            request = requests.pop(0)
            queue.loaded(request, environment.read(request.ranges, request.limit))
    damages = [each.qid for each in environment.damages.take()]
    environment.close()

    right = [
        f"one-{number}-{each}".encode() for number in range(BLOCKS) for each in range(SEGMENT) if number != 1
    ]
    assert len(right) == len(delivered)
    for text, message in zip(right, delivered, strict=True):
        assert message.content.partition(b"x" * 300)[0].endswith(text)
    assert [qid] == damages
    assert 0 == queue.ready_count

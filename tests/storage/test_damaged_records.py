"""What a queue makes of damaged records and blocks: all others are delivered, and octets are counted off."""

import pytest
from stored import SEGMENT, Stored

from storage.environment import Environment
from storage.journal import Journal
from storage.late import LateQueue
from storage.recovery import recover
from storage.sub_queues import Pager
from storage.variable_queue import VariableQueue

BLOCKS = 4


@pytest.mark.parametrize("queue_class", [VariableQueue, LateQueue])
@pytest.mark.parametrize(("at", "lost"), [(-1, 1), (30, SEGMENT)], ids=["record", "block"])
def test_what_is_damaged_keeps_nothing_back_and_counts_no_more(tmp_path, queue_class, at, lost):
    """All undamaged messages are delivered, and the octets of the others are told as lost."""
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
    pager = Pager(Journal(environment.boot << 40), requests.append, segment=SEGMENT)
    queue = queue_class(pager, qid, durable=True, next_seq=environment.boot << 40)
    found = recover(environment, {qid: queue})[qid]
    queue.recover(
        found.messages,
        found.first,
        found.stop,
        redelivered_below=found.redelivered_below,
        octets=found.octets,
    )
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

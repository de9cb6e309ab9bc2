"""Mutant: a message that comes back to its queue is delivered again, but never confirmed or nacked."""

from leveret.confirm.consumer_ack import ConsumerAckQueue

_requeue = ConsumerAckQueue.requeue


def requeue(queue, seq_ids):
    for seq_id in seq_ids:
        queue._unacked.pop(seq_id, None)
    _requeue(queue, seq_ids)


ConsumerAckQueue.requeue = requeue

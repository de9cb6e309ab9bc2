"""Mutant: publishes are confirmed when a consumer has been sent the message, not when it has answered for it."""

from leveret.confirm.consumer_ack import ConsumerAckQueue

_fetch = ConsumerAckQueue.fetch
_publish_delivered = ConsumerAckQueue.publish_delivered


def tell(queue):
    for promise in queue._unacked.values():
        promise.accepted()
    queue._unacked.clear()


def fetch(queue, count, *, ack_required):
    batch = _fetch(queue, count, ack_required=ack_required)
    tell(queue)
    return batch


def publish_delivered(queue, messages, **options):
    seq_ids = _publish_delivered(queue, messages, **options)
    tell(queue)
    return seq_ids


ConsumerAckQueue.fetch = fetch
ConsumerAckQueue.publish_delivered = publish_delivered

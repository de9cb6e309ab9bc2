"""Mutant: a message that a consumer of a light queue gave back, or lost with its connection, is confirmed."""

from leveret.confirm.consumer_ack import ConsumerAckQueue


def refuse_light(queue, promises):
    queue.light_count -= len(promises)
    for promise in promises:
        promise.accepted()


ConsumerAckQueue.refuse_light = refuse_light

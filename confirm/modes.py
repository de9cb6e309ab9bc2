"""Confirm modes of queues, and the effective mode of a queue."""

STANDARD = "standard"
CONSUMER_ACK = "consumer-ack"
CONSUMER_ACK_LIGHT = "consumer-ack-light"
CONFIRM_MODES = (STANDARD, CONSUMER_ACK, CONSUMER_ACK_LIGHT)
"""The confirm modes: when a queue lets a publish be confirmed (docs/confirms.md)."""


def effective_mode(asked: str, *, is_quorum: bool, needs_delivered: bool) -> str:
    """Return the effective confirm mode of a queue; that of a quorum queue is `STANDARD`, as all it has is stored.

    `needs_delivered`: messages are needed after their delivery: the body for a dead letter exchange, the requeue count
    for a delivery limit, the size for a limit in bytes, all of it for a retention, the id for a deduplication.
    `CONSUMER_ACK_LIGHT`, which keeps nothing of delivered messages, then falls back to `CONSUMER_ACK`.
    """
    if is_quorum:
        return STANDARD
    return CONSUMER_ACK if asked == CONSUMER_ACK_LIGHT and needs_delivered else asked

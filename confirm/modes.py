"""The confirm modes of queues, and which of them a queue really has."""

STANDARD = "standard"
CONSUMER_ACK = "consumer-ack"
CONSUMER_ACK_LIGHT = "consumer-ack-light"
CONFIRM_MODES = (STANDARD, CONSUMER_ACK, CONSUMER_ACK_LIGHT)
"""When a queue lets publishers be told that it has their messages (docs/confirms.md)."""


def effective_mode(asked: str, *, is_quorum: bool, needs_delivered: bool) -> str:
    """Work out the mode of a queue.

    Args:
        asked: by its arguments, a policy or the configuration.
        is_quorum: it is declared as a quorum queue: the mode is `STANDARD`, since everything goes to disk there.
        needs_delivered: a message is needed after its delivery: its body for a dead letter exchange, how often it
            came back for a delivery limit, its size for a limit of octets. Then `CONSUMER_ACK_LIGHT`, which keeps
            nothing of delivered messages, is `CONSUMER_ACK`.

    """
    if is_quorum:
        return STANDARD
    return CONSUMER_ACK if asked == CONSUMER_ACK_LIGHT and needs_delivered else asked

"""Ids of queues on disk, and the meaning of their bits.

From the highest bit:

- 8 bits: the level of a priority queue, xor that of messages without a priority. So a queue without priorities has the
  same id as that level.
- 1 bit: the messages are those that the queue retains after their acks.
- 23 bits: the number of the start in which the queue was declared.
- 32 bits: the number of the queue in that start.

So the parts of a queue need no rows that name them, and are found from the queue's id.
"""

_LEVEL_SHIFT = 56
_RETAINED = 1 << 55


def level_qid(qid: int, level: int) -> int:
    """Return the id under which a level of a queue is stored."""
    return level << _LEVEL_SHIFT | qid


def level_of(qid: int) -> int:
    """Return the level that is stored under an id."""
    return qid >> _LEVEL_SHIFT


def queue_qid(qid: int) -> int:
    """Return the id of the owner of a stored level: a queue, or its retained messages."""
    return qid & ((1 << _LEVEL_SHIFT) - 1)


def retained_qid(qid: int) -> int:
    """Return the id under which the retained messages of a queue are stored; 0 for one that is not stored."""
    return qid and qid | _RETAINED


def is_retained(qid: int) -> bool:
    """Return whether an id is one of retained messages."""
    return bool(qid & _RETAINED)


def owner_qid(qid: int) -> int:
    """Return the id of the queue to which a stored level or its retained messages belong."""
    return queue_qid(qid) & ~_RETAINED

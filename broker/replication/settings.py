"""Limits and times of a node of a replicated broker."""

from typing import NamedTuple

MEBIBYTE = 1024 * 1024


class Settings(NamedTuple):
    """Times in seconds of the node's own clock, which goes on while the machine sleeps; sizes in bytes."""

    renewal: float = 1.0  # time after the last renewal at which the next one is due
    freshness: float = 3.5
    """Age of the last renewal from which a leader answers nothing more. Far enough below `expiry` for clocks that
    differ by 1 %: the leader counts from before its request, a candidate from after it saw the result."""
    expiry: float = 5.0  # time without any change of the lease after which a candidate takes it
    turn: float = 0.6
    """Time for which a candidate leaves a lease to each node that leads fewer logs: more than such candidates differ,
    as each ticks, and polls, by its own clock."""
    latest_turn: int = 3  # number of nodes to which a candidate leaves a lease at most
    loop_stall: float = 1.0  # pause of the event loop after which no renewal follows
    stall_timeout: float = 10.0  # duration of an apply after which a leader hands over
    poll: float = 0.2  # interval of a waiting node's reads when there is nothing to read for a while
    busy_poll: float = 0.05
    """Interval of its reads while there is something to read in each, but less than `read_octets`. Long enough for
    several entries to be read and applied together; short enough for a lease that is given back to be seen soon."""
    retry: float = 0.2  # pause after a request without an answer
    description: float = 0.5  # interval in which a leader looks for new virtual hosts
    report: float = 2.0  # interval of reports of a node about itself
    member_lost: float = 8.0  # time without a report after which a member counts as down
    member_forgotten: float = 24 * 3600.0  # time without a report after which the leader forgets a member
    max_batch: int = 256 * 1024  # size up to which batches are grouped in one entry; a larger one goes alone
    chunk: int = MEBIBYTE  # size of the pieces of large bodies
    snapshot_chunk: int = 128 * 1024
    """Size of the pieces of snapshots: an entry of the log waits in the engine behind one of them at most."""
    read_octets: int = 4 * MEBIBYTE  # size from which one read takes no further entry
    tail_octets: int = 8 * MEBIBYTE
    """Bytes read and not applied from which a waiting node reads no more, unless all of it waits to be settled."""
    apply_octets: int = 4 * MEBIBYTE  # bytes of entries from which no more are applied in one transaction
    late_octets: int = 96 * MEBIBYTE
    """Bytes of entries that a leader which is about to hand over leaves unapplied: it keeps them in memory."""
    require_synchronous: bool = True  # an answer counts only if a standby has the change, too
    snapshot_octets: int = 256 * MEBIBYTE
    """Growth of the log since the last snapshot, unless that is larger itself, from which the next one is due."""
    trim_cap: int = 1024 * MEBIBYTE  # growth of the log since a snapshot for which a trim waits for members

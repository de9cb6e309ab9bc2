"""The interface between a queue and the storage of its messages.

It separates protocol logic (`broker.queue.queue`) from storage. `storage.queues.variable_queue` pages to disk and keeps
persistent messages; `storage.queues.memory_queue` is in memory only. The operations are those of RabbitMQ's
`rabbit_backing_queue` behaviour; those on the hot path take and return runs of messages, so that a turn costs one call
per queue rather than one per message. `Inspection` has the operations that only look at a queue.
"""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from leveret.storage.message import Message


def never() -> None:
    """Default of `on_loaded`: do nothing."""


class Fetched(NamedTuple):
    """A run of fetched messages in queue order.

    `seq_ids` are their positions in the queue (ascending) and the keys by which they are later acked or requeued;
    `redelivered` applies to the whole run.
    """

    seq_ids: Sequence[int]
    messages: Sequence[Message]
    redelivered: bool


NO_TRANSITIONS: Mapping[str, int] = MappingProxyType({})  # those of a queue that never paged, shared by all


class PagingCounts(NamedTuple):
    """Messages of a backing queue by where they are, in numbers and bytes; of a priority queue, the sums of its levels.

    The defaults are those of a queue that never had a message. Names and meanings are those of
    `storage.queues.sub_queues.SubQueues`; `storage.queues.variable_queue` describes q1 to q4 and the delta. Positions
    are None if there are several levels, because each has its own.
    """

    ram_msg_count: int = 0  # number of ready messages whose body is in memory
    ram_ack_count: int = 0  # number of unacked messages whose body is in memory
    ram_octets: int = 0  # content bytes of ready messages in memory; 0: none can be paged, none are counted
    unacked_octets: int = 0  # approximate content bytes of unacked messages in memory; 0 likewise
    delta_octets: int = 0
    away_octets: int = 0
    unacked_away_octets: int = 0
    target_ram_count: float = inf  # number of messages that may be in memory
    ingress_rate: float = 0.0  # average messages published per second
    egress_rate: float = 0.0  # average messages fetched per second
    ack_ingress_rate: float = 0.0  # average messages per second that became unacked, less those requeued
    ack_egress_rate: float = 0.0  # average messages acked per second
    q1: int = 0
    q2: int = 0
    q3: int = 0
    q4: int = 0  # requeued messages are included
    delta: int = 0
    delta_transient: int = 0  # transient messages among those in the delta
    delta_start: int | None = None  # position at which the delta begins; None if it is empty
    delta_stop: int | None = None  # position after its last one
    next_seq: int | None = 0  # position of the next message to be published
    next_deliver: int | None = 0
    """Position of the first message that was never fetched, or of the next one to be published."""
    transitions: Mapping[str, int] = NO_TRANSITIONS  # messages that changed their state so far, by kind

    @classmethod
    def sum_of(cls, counts: "Sequence[PagingCounts]") -> "PagingCounts":
        """Return the sums of the counts of several backing queues."""
        if len(counts) <= 1:
            return counts[0] if counts else cls()
        transitions: Counter[str] = Counter()
        for each in counts:
            transitions.update(each.transitions)
        names = [name for name in cls._fields if name not in _POSITIONS and name != "transitions"]
        sums: dict[str, Any] = {name: sum([getattr(each, name) for each in counts]) for name in names}
        sums.update(dict.fromkeys(_POSITIONS))
        return cls(**sums, transitions=transitions)


_POSITIONS = ("delta_start", "delta_stop", "next_seq", "next_deliver")


class Recovered(NamedTuple):
    """The messages of one queue on disk, as a clean stop saves them or a start finds them."""

    messages: int = 0
    first: int = 0
    stop: int = 0  # behind the last of them
    octets: int = 0  # bytes of all bodies
    redelivered_below: int = 0  # messages below it may have been delivered before
    expiring: bool = False  # True if any message has an expiry time


class Peeked(NamedTuple):
    """A message as a look has found it."""

    seq_id: int  # its position in the queue; in a `ConsumerAckQueue`, in the queue that this wraps
    message: Message  # the message
    redelivered: bool  # whether the next delivery will be marked as redelivered
    expires: int  # time at which it expires (epoch ms), 0 for never
    returns: int = 0  # its count from before the start, until the queue takes it over (`take_returns`)
    came: int = 0  # time at which it was appended to its stream (epoch ms), 0 if it is in none


class Look(NamedTuple):
    """Result of a look: the ready messages from the head on, and the unacked ones in the order of their positions."""

    ready: list[Peeked]
    unacked: list[Peeked]


Read = Callable[[], Any]  # A read, to be called in a thread that may wait for the disk
Peeking = Generator[Read | None, Any, Look]
"""A look in steps: it yields None after each piece of work, or a read whose result must be sent back."""


class Piece(NamedTuple):
    """A part of a walk's messages, as they were at the time of the look. It must be used before the walk goes on."""

    messages: list[Peeked]  # ready messages, in the order of the queue
    prepare: Callable[[int, int], bool]
    """Called with the first and the last seq_id that are to be withdrawn; returns whether `withdraw` can take
    everything between them now. If not, it must be called again, in another step."""
    withdraw: Callable[[Collection[int]], list[int]]
    """Takes those messages with the given seq_ids that are still ready; returns their seq_ids, ascending. They are
    unacked then. One that is requeued comes first, and not at its old place. From the first one that was paged to
    disk meanwhile they are left, and the walk shows them once more."""


Walk = Generator[Read | Piece | None, Any, None]  # yields pieces, and None or reads as a look does


class Portion(NamedTuple):
    """Some messages of a queue, as they were at one moment."""

    messages: list[Peeked]  # the messages; there may be none although others follow
    at: int | None  # where the next portion begins; None if this is the end


PortionSteps = Generator[Read | None, Any, Portion]  # the look at a portion in steps, as `Peeking`


class Inspection(Protocol):
    """The inspection of a backing queue: it changes nothing."""

    @property
    def ready_count(self) -> int:
        """Number of messages that `fetch` could return now."""

    @property
    def unacked_count(self) -> int:
        """Number of messages fetched with `ack_required` and neither acked nor requeued yet."""

    @property
    def damaged(self) -> int:
        """Number of read errors: the affected messages are no longer ready and never will be."""

    @property
    def lost_octets(self) -> int:
        """Body bytes of ready messages that could not be read."""

    @property
    def loading(self) -> bool:
        """True if messages are being read from disk."""

    def octets_of(self, seq_ids: Iterable[int]) -> int:
        """Return the body bytes of unacked messages; nothing is read for them."""

    def ready_octets(self) -> Iterator[int]:
        """Yield the body bytes of all ready messages in partial sums, unaffected by later changes.

        Every message that has more than its position in memory is visited, a thousand per partial sum.
        """

    def state_counts(self) -> tuple[int, int, int, int]:
        """Return the numbers of ready messages that are alpha, beta, gamma and delta; a long queue may estimate them.

        Alphas are in memory; `storage.queues.variable_queue` says what the others are.
        """

    def paging_counts(self) -> PagingCounts:
        """Return the present numbers of each part, and the rates."""

    def persistent_count(self) -> int:
        """Return the number of ready and unacked messages that survive a restart.

        Exact if all of them or none do, or if there are few; otherwise estimated from a sample.
        """

    def head_message(self) -> Message | None:
        """Return the next message if it is in memory; None if it is not, or there is none."""

    def peek(self, most: int | None = None) -> Peeking:
        """Look at the messages as they are now, without taking them or changing anything.

        What is in memory is copied before this returns, about 30 ns for each message. The generator returns all unacked
        messages, and the ready ones: at most `most`, from the head on.
        """

    def walk(self) -> Walk:
        """Walk over the messages that are ready now, from the head to the tail, while the queue is in use.

        Each piece has those of them that are ready at the time of the look. Messages requeued behind the walk are
        missed. Between two steps only the result of a read may be awaited, and nothing be closed meanwhile.
        """

    def portion(self, most: int, after: int | None = None, *, backwards: bool = False) -> PortionSteps:
        """Look at the next ready messages as they are now, without changing anything.

        What is in memory is copied before this returns. A portion has at most `most` messages (>= 1), and may have
        fewer before the end. `after` is `Portion.at` of the one before, None for the first; `backwards` goes from the
        tail to the head.
        """

    def unacked_ids(self) -> list[int]:
        """Return the seq_ids of all unacked messages, in no particular order."""

    def unacked_portion(self, seq_ids: Sequence[int]) -> PortionSteps:
        """Look at the unacked messages among these; those that are settled are left out.

        The portion may end before the last one: its `at` is how many were considered, at least one of those given.
        """

    def came_before(self, seq_id: int) -> float | None:
        """Return a time before which a message came to the queue, in seconds of the monotonic clock of the broker.

        It is some seconds too late at most; infinity for one that came just now. None if nothing is known: in queues in
        memory only, and after a start until the queue is in use again.
        """


class BackingQueue(Inspection, Protocol):
    """Interface of a backing queue: the ready and the unacked messages of one queue, in order."""

    on_loaded: Callable[[], object]
    """Called when messages that `fetch` could not return have been read; set by the queue."""

    def follow(self, predecessor: Any) -> None:
        """Give no seq_id that a deleted queue of the same id and kind has given: its records may be deleted later.

        No message may have been published yet.
        """

    def before_commit(self, callback: Callable[[], object]) -> bool:
        """Call back once, so that publishes of the callback are in the next commit.

        Returns false, and does not call, if nothing is ever written, or too many wait for that commit already.
        """

    def publish(
        self,
        messages: Collection[Message],
        *,
        persistent: bool = False,
        small: bool = False,
        expires: int = 0,
    ) -> Sequence[int]:
        """Append messages at the tail, in order; returns their seq_ids.

        `expires`: time at which all of them expire (epoch ms), 0 for never.

        `small`: these and all ready messages have a content of at most 4 KiB.

        `persistent`: some of them are persistent and the queue is durable. These are `Persistent` messages, which
        notify their publisher when they are on disk.
        """

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> Sequence[int]:
        """Record messages that go straight to a consumer, which needs a `ready_count` of 0; returns their seq_ids."""

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Take at most `count` messages (>= 1) from the head; fewer where the run's `redelivered` changes.

        Returns none if the next one is being read from disk: `on_loaded` is called when it is available.

        With `ack_required` they are kept under their seq_ids until acked or requeued. `ready_count` must not be 0.
        """

    def ack(self, seq_ids: Collection[int], *, moved: bool = False, dropped: bool = False) -> None:
        """Remove fetched messages for good.

        `moved`: they live on in copies published in this turn; both changes must be written in one commit.
        `dropped`: no consumer has settled them; waiting publishers are notified when that is safe.
        """

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back to their original positions, marked redelivered."""

    @property
    def head_is_new(self) -> bool:
        """True only if the next message is in memory and was never delivered; may be False even then."""

    @property
    def expiring(self) -> bool:
        """True if any message that was published or recovered has an expiry time."""

    def head_expires(self) -> int | None:
        """Return when the next message expires (epoch ms), 0 for never; None if it is being read or there is none."""

    def head_run(self, now: int, limit: int) -> tuple[int, bool]:
        """Return the length of the head's leading run that is all expired or all live at `now`, and which of the two.

        At most `limit` (>= 1). The run may be longer: call again when these are removed. 0 while the head is being
        read, or if there is none.
        """

    def drop(self, count: int) -> int:
        """Drop at most `count` messages (>= 1) from the head without reading their bodies; returns how many.

        Fewer, possibly none, if the next one's position is being read from disk.
        """

    def unacked_messages(self, seq_ids: Iterable[int]) -> tuple[list[tuple[int, Message]], list[int]]:
        """Return unacked messages with their bodies, and the seq_ids of those that are being read.

        `on_loaded` is called when the latter are read. Those in neither were damaged and are lost.
        """

    def awaited(self, seq_ids: Collection[int]) -> Iterable[Message]:
        """Return those of some unacked messages whose commit is not done: their publishers may wait for it."""

    def count_returns(self, *, counted: bool) -> None:
        """Enable or disable delivery counts of messages that are read from disk (`take_returns`)."""

    def note_returns(self, counts: Mapping[int, int]) -> None:
        """Note the delivery counts of unacked messages that are about to be requeued, for those that survive a restart.

        They are written with the next commit; nothing waits for that. Only if counting is enabled (`count_returns`).
        """

    def take_returns(self, seq_ids: Collection[int]) -> dict[int, int]:
        """Return, once, the delivery counts from before the start of messages that were just fetched, if any."""

    def set_lazy(self, *, lazy: bool) -> None:
        """Keep as little as possible in memory (`x-queue-mode=lazy`), or stop doing so."""

    def purge(self) -> int:
        """Drop every ready message; returns how many. Unacked messages stay."""

    def delete(self) -> None:
        """Delete the queue with its unacked messages. Only `ack` and `purge` may be called afterwards."""

"""Leveret with the tables of the paper's RabbitMQ 3.6 for each message: `python -m bench.paper_baseline serve ...`.

Section 2 of the paper names them. A publish is noted at four levels: in the channel (a dtree of the number, the queues
and the exchange), in the queue's process (message id to channel and number), in the backing queue and in the queue
index (sets of message ids). When it is on disk it is removed from all of them, in the reverse order. A delivery is
noted in the backing queue (position to message status), in the queue's process and in the channel. The status, a record
that is never changed but replaced, says whether body and position are in memory or on disk, so whether the message is
alpha, beta, gamma or delta. Leveret has one object for a message and a number in the channel's set instead; its modes
are compared with a baseline that has all of these tables.

The tables are kept beside Leveret's own by a queue that is otherwise the one it extends, and decide nothing: confirms
and
deliveries are the same. So the number of table operations is the paper's, their cost is Python's (`dict` and `set` for
Erlang's trees). The channels' own tables are the broker's (the numbers that are held, the deliveries), beside which
there is the dtree here. Not kept: the deliver record of the queue index, which Leveret does not write.

For measurements only: the tables are in memory for messages on disk, too.
"""

from collections.abc import Collection, Iterable
from typing import NamedTuple

from leveret.broker.cli import main as program
from leveret.broker.persistence.data_store import DataStore
from leveret.storage.journal.blocks import Entry
from leveret.storage.message import Message, Publisher
from leveret.storage.queues.backing_queue import Fetched
from leveret.storage.queues.pager import Pager
from leveret.storage.queues.requeued import Item
from leveret.storage.queues.variable_queue import VariableQueue


class Status(NamedTuple):
    """A message's status in the backing queue; replaced when any of it changes."""

    seq_id: int
    msg_id: int
    message: Message
    delivered: bool
    body_on_disk: bool
    index_on_disk: bool
    expires: int


class Unconfirmed(NamedTuple):
    """A publish in the channel's dtree."""

    msg_id: int
    seq_id: int
    queues: set[int]
    exchange: bytes


class ChannelBook:
    """The publishes of one channel to one queue that are unconfirmed; stands before the channel as their publisher.

    Args:
        queue: the queue's tables.
        channel: gets the verdicts.
        qid: the queue's id.
    """

    __slots__ = ("by_queue", "channel", "queue", "unconfirmed")

    def __init__(self, queue: "QueueBook", channel: Publisher, qid: int) -> None:
        self.queue = queue
        self.channel = channel
        self.unconfirmed: dict[int, Unconfirmed] = {}
        """The dtree's first index, by number in the channel."""
        self.by_queue: dict[int, set[int]] = {qid: set()}
        """Its second one: the numbers of each queue."""

    def accepted(self, seq_no: int) -> None:
        """Confirm a publish that is on disk, or was settled before: remove it from index to channel, and pass it on."""
        self._take(seq_no)
        self.channel.accepted(seq_no)

    def refused(self, seq_no: int) -> None:
        """Remove a publish that cannot be written, and pass that on."""
        self._take(seq_no)
        self.channel.refused(seq_no)

    def _take(self, seq_no: int) -> None:
        found = self.unconfirmed.get(seq_no)
        if found is None:  # the queue is deleted
            return
        self.queue.confirm(found.msg_id, found.seq_id)
        del self.unconfirmed[seq_no]
        for qid in found.queues:
            self.by_queue[qid].discard(seq_no)


class QueueBook:
    """The tables of one queue: of its process, its backing queue and its index.

    Args:
        qid: the queue's id, for the channels' tables.
    """

    __slots__ = (
        "_next_msg_id",
        "channels",
        "confirmed",
        "index_unconfirmed",
        "indices_on_disk",
        "msg_id_to_channel",
        "msgs_on_disk",
        "pending_acks",
        "qid",
        "statuses",
        "unconfirmed",
    )

    def __init__(self, qid: int) -> None:
        self.qid = qid
        self._next_msg_id = 0
        self.channels: dict[Publisher, ChannelBook] = {}
        self.msg_id_to_channel: dict[int, tuple[Publisher, int]] = {}
        """The process: channel and number by message id."""
        self.pending_acks: dict[int, int] = {}
        """The process: deliveries that are unacked."""
        self.unconfirmed: set[int] = set()
        self.msgs_on_disk: set[int] = set()
        self.indices_on_disk: set[int] = set()
        self.confirmed: set[int] = set()
        """The backing queue: ids to be confirmed, of which body or position are on disk, and that were confirmed."""
        self.statuses: dict[int, Status] = {}
        """The backing queue: by position, of ready and unacked messages."""
        self.index_unconfirmed: set[int] = set()
        """The index."""

    def publish(self, entry: Entry) -> None:
        """Note a persistent message, and its publish if that is to be confirmed."""
        message = entry.message
        assert message is not None
        self._next_msg_id = msg_id = self._next_msg_id + 1
        seq_id = entry.seq_id
        self.statuses[seq_id] = Status(seq_id, msg_id, message, False, False, False, entry.expires)
        channel: Publisher | None = message.publisher  # type: ignore[attr-defined]
        if channel is None:
            return
        number: int = message.seq_no  # type: ignore[attr-defined]
        book = self.channels.get(channel)
        if book is None:
            book = self.channels[channel] = ChannelBook(self, channel, self.qid)
        length = message.address[0]
        book.unconfirmed[number] = Unconfirmed(msg_id, seq_id, {self.qid}, message.address[1 : 1 + length])
        book.by_queue[self.qid].add(number)
        self.msg_id_to_channel[msg_id] = channel, number
        self.unconfirmed.add(msg_id)
        self.index_unconfirmed.add(msg_id)
        message.publisher = book  # type: ignore[attr-defined]

    def confirm(self, msg_id: int, seq_id: int) -> None:
        """Remove a publish from the index, the backing queue and the process, in this order."""
        self.index_unconfirmed.discard(msg_id)
        self.msgs_on_disk.discard(msg_id)
        self.indices_on_disk.discard(msg_id)
        self.unconfirmed.discard(msg_id)
        status = self.statuses.get(seq_id)
        if status is not None:
            self.statuses[seq_id] = Status(
                seq_id, msg_id, status.message, status.delivered, True, True, status.expires
            )
        self.confirmed.add(msg_id)
        self.confirmed.discard(msg_id)  # drained by the process
        self.msg_id_to_channel.pop(msg_id, None)

    def deliver(self, seq_ids: Iterable[int]) -> None:
        """Note deliveries that have to be acked."""
        statuses, pending = self.statuses, self.pending_acks
        for seq_id in seq_ids:
            pending[seq_id] = seq_id
            status = statuses.get(seq_id)
            if status is not None:
                statuses[seq_id] = Status(seq_id, status.msg_id, status.message, True, *status[4:])

    def returned(self, seq_ids: Iterable[int]) -> None:
        """Note that deliveries were acked or requeued."""
        pending = self.pending_acks
        for seq_id in seq_ids:
            pending.pop(seq_id, None)

    def forget(self, entries: Iterable[Item]) -> None:
        """Remove the status of messages that are settled."""
        pop = self.statuses.pop
        for entry in entries:
            if type(entry) is Entry:
                pop(entry.seq_id, None)


class BookedQueue(VariableQueue):
    """A queue with tables; the arguments are those of `sub_queues.SubQueues`.

    If nothing is confirmed early, it is the paper's RabbitMQ, with a commit every 200 ms.
    """

    __slots__ = ("book",)

    def __init__(self, pager: Pager, qid: int, *, durable: bool, next_seq: int = 0) -> None:
        super().__init__(pager, qid, durable=durable, next_seq=next_seq)
        self.book = QueueBook(qid)

    def publish_delivered(
        self, messages: list[Message], *, ack_required: bool, persistent: bool = False, expires: int = 0
    ) -> range:
        """Record messages that go straight to a consumer, as the queue does, and note them."""
        seq_ids = super().publish_delivered(
            messages, ack_required=ack_required, persistent=persistent, expires=expires
        )
        if ack_required:
            self.book.deliver(seq_ids)
        return seq_ids

    def _journaled(self, messages: Collection[Message], seq_id: int, expires: int) -> list[Item]:
        items = super()._journaled(messages, seq_id, expires)
        for item in items:
            if type(item) is Entry:
                self.book.publish(item)
        return items

    def fetch(self, count: int, *, ack_required: bool) -> Fetched:
        """Take messages from the head, as the queue does, and note the deliveries."""
        fetched = super().fetch(count, ack_required=ack_required)
        if ack_required:
            self.book.deliver(fetched.seq_ids)
        return fetched

    def ack(self, seq_ids: Collection[int], *, moved: bool = False) -> None:
        """Remove fetched messages, from the tables first."""
        self.book.returned(seq_ids)
        super().ack(seq_ids, moved=moved)

    def requeue(self, seq_ids: Collection[int]) -> None:
        """Put fetched messages back; they are no longer deliveries."""
        seq_ids = list(seq_ids)
        self.book.returned(seq_ids)
        super().requeue(seq_ids)

    def _forget(self, items: Iterable[Item], *, moved: bool = False) -> None:
        items = list(items)
        self.book.forget(items)
        super()._forget(items, moved=moved)

    def delete(self) -> None:
        """Delete the queue with its tables."""
        super().delete()
        self.book = QueueBook(self.qid)


class BookedStore(DataStore):
    """A data directory whose queues keep the tables."""

    queue_class = BookedQueue


def main() -> None:
    """Run the command `leveret` with such a data directory."""
    program.DataStore = BookedStore  # type: ignore[misc]
    program.main(prog_name="leveret")


if __name__ == "__main__":
    main()

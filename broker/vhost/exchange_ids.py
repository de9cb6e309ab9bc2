"""Exchanges that take each message once: an id is answered once, whatever queues its message is routed to.

Theory. An exchange with `x-deduplicate` keeps ids as a queue does (`broker.queue.deduplication`), for a time from the
publish, and does not follow what becomes of the messages. It is asked before a message goes to any queue; a repeat
goes to none. The first one is known once all its queues have it: one that a queue refuses, or that has no queue, leaves
no id. No commit begins before all of them have run (`Turn.is_split`): so an id is on disk if and only if all copies of
its message, or their ends, are. If the publisher waits for consumers of one queue, a kill loses the copy there: the id
is in memory until they ack, though other queues have written theirs, and these get the repeat again unless they know
the id themselves.

Only publishes to the exchange itself count: not what it gets by bindings, as an alternate or dead letter exchange.
"""

from collections.abc import Callable, Sequence
from functools import partial

from leveret.broker.queue.deduplication import Deduplication
from leveret.broker.queue.id_notes import Verdict
from leveret.broker.queue.interfaces import DelayDisk
from leveret.broker.queue.queue import Queue
from leveret.broker.queue.settings import NO_SETTINGS, QueueSettings
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.vhost.copies import Copies, is_stored_by
from leveret.confirm.channel_confirms import ChannelConfirms
from leveret.confirm.promise import Promise
from leveret.exchanges.base import Exchange
from leveret.storage.message import Message, Persistent, Promised


class ExchangeIds(Deduplication):
    """The ids that one exchange knows."""

    durable = True  # its ids wait for the commits of messages, even if it is transient
    saves_all = awaits_consumers = False

    def __init__(self, exchange: Exchange, vhost: str, context: NodeContext, disk: DelayDisk | None) -> None:
        self.exchange = exchange
        self.name = exchange.name
        self.vhost = vhost
        self.qid = exchange.ids_line or exchange.number
        self.tally = exchange
        super().__init__(self, context, disk, kind="exchange")

    def identify(self) -> int:
        """Take over the number that the exchange of an earlier run has, and return it."""
        self._ids.log.line = self.exchange.number
        return self.exchange.number

    def configure(self, settings: QueueSettings) -> None:
        """Apply changed settings; commits may still sweep the rows of earlier lines: no ids return to one of them."""
        super().configure(settings)
        self.exchange.ids_line = self._ids.log.line

    # -- publishes ----------------------------------------------------------------------------------------------------

    def drops(
        self,
        mark: bytes,
        message: Message,
        queues: Sequence[Queue],
        confirms: ChannelConfirms | None,
        *,
        persistent: bool,
    ) -> bool:
        """Return whether a message for these queues is a repeat; its channel's `confirms` have just numbered it."""
        content = message.address, message.content, message.channel_id
        if self.stores(queues, persistent=persistent, awaits=confirms is not None):
            message = Persistent(*content, confirms, 0 if confirms is None else confirms.seq_no, 1)
        elif confirms is not None:
            message = Promised(*content, Promise(confirms, confirms.seq_no, 1))
        if not self.answers(mark, is_stored=self._stores(message)):
            return False
        if confirms is not None:
            confirms.hold(confirms.seq_no)
        return self.is_repeat(mark, message)

    def stores(self, queues: Sequence[Queue], *, persistent: bool, awaits: bool) -> bool:
        """Return whether a commit has all copies of a message; `awaits`: its publisher waits for a confirm."""
        waits = awaits and any(queue.awaits_consumers for queue in queues)
        return self._disk is not None and not waits and is_stored_by(queues, persistent=persistent)

    def _join(self, mark: bytes, message: Message) -> None:
        """Have the publisher of a repeat, of which no queue has a copy, wait for the first message."""
        if isinstance(message, Persistent):
            message.copies = message.open_copies = 1
        super()._join(mark, message)
        self.note()

    def taken(self, mark: bytes, copies: Copies, queues: Sequence[Queue], *, persistent: bool) -> None:
        """Know the id of a message that its queues have taken, or are taking."""
        if not copies.is_taken:
            return
        message, promise = copies.message, copies.promise
        if promise is not None and any(queue.awaits_consumers for queue in queues):
            message = Message(message.address, message.content, message.channel_id)
        else:
            promise = None
        self.take(mark, message)
        copies.on_refused = partial(self.free, mark)
        if promise is not None and promise.publisher is not None:
            self._await(mark, promise).is_saved = is_stored_by(queues, persistent=persistent)

    def take(self, mark: bytes, message: Message) -> None:
        """Know the id of a message, which is noted with it."""
        super().take(mark, message)
        self.note()
        self._replaced.clear()  # nothing tells when the first of the two is gone

    def heard(self, verdict: Verdict, seq_no: int, is_accepted: bool) -> None:
        """Tell what consumers have answered; see `Deduplication.heard`."""
        if not is_accepted and self._open.get(verdict.mark) is verdict:
            self.free(verdict.mark)
        super().heard(verdict, seq_no, is_accepted)

    def save(self) -> None:
        """Have the next commit write the ids of messages that wait for consumers, and that a stop has written."""
        for mark, verdict in self._open.items():
            if verdict.is_saved:
                self._ids.keep(mark)

    # -- in place of a queue ------------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Do nothing: no run notes the ids."""

    def end_first(self) -> None:
        """Do nothing: no message ends here."""


def configure_ids(
    known: dict[str, ExchangeIds], name: str, settings: QueueSettings, make: Callable[[], ExchangeIds]
) -> bool:
    """Make, change or remove the ids that an exchange knows, among those of others; return whether they changed."""
    ids = known.get(name)
    if settings == (NO_SETTINGS if ids is None else ids.settings):
        return False
    if ids is None:
        ids = known[name] = make()
    ids.configure(settings)
    if settings.deduplicate is None:
        del known[name]
    return True

"""Dead-lettering: publishes messages that queues discard to their dead letter exchanges.

Theory. The dead letter enters its queues' inboxes in the same turn in which its original is removed, so one commit
covers both. Two cases need more care. If the original is not on disk yet, its publisher still waits for a confirm: the
dead letter takes over that promise, so the publish is confirmed when both are safe (`joined`). And a body that goes to
a file of its own takes longer than a commit: its original stays until the file is written, even if its queue is deleted
meanwhile, and is removed by the commit that has the dead letter's record (`storage.message.Moved`).

A full queue may dead-letter a dead letter that arrives, and so on through any number of queues: to avoid recursion
dead letters wait in one FIFO (`broker.vhost.fan_out.Deliveries`), which the outermost call drains.

A message is dropped where RabbitMQ drops it: its dead letter exchange does not exist or has no queue for it, the queue
refuses it, or it would cycle without a reject (`broker.vhost.x_death`).
"""

from collections.abc import Callable, Sequence
from functools import partial

from leveret.broker.amqp.properties import delivery_mode
from leveret.broker.amqp.publishes import PERSISTENT_MODE
from leveret.broker.queue.limits import REJECTED
from leveret.broker.queue.queue import Queue
from leveret.broker.scheduling.node_context import NodeContext
from leveret.broker.scheduling.turn import Turn
from leveret.broker.vhost.copies import Copies, is_stored_by
from leveret.broker.vhost.fan_out import Deliveries
from leveret.broker.vhost.tail import Tail
from leveret.broker.vhost.x_death import MOST_DEATHS, Cycles, DeadLetter, dead_letter
from leveret.confirm.promise import joined
from leveret.exchanges.base import Exchange, Headers
from leveret.exchanges.errors import TooManyHopsError
from leveret.storage.message import Message


class DeadLettering:
    """Publishes the dead letters of one vhost.

    Args:
        find_exchange: returns the exchange of a name, or None.
        route: returns the queues for an exchange, routing keys and headers.
        turn: the server's work lists.
        context: clock and counters of the node.
        blob_threshold: content size in bytes from which a body is written to a file of its own.
        most_deaths: maximum number of x-death entries in a dead letter.

    """

    def __init__(
        self,
        find_exchange: Callable[[str], Exchange | None],
        route: Callable[[Exchange, Sequence[str], Headers], Sequence[Queue]],
        turn: Turn,
        context: NodeContext,
        blob_threshold: int,
        most_deaths: int = MOST_DEATHS,
    ) -> None:
        self._find_exchange = find_exchange
        self._route = route
        self._turn = turn
        self._context = context
        self._blob_threshold = blob_threshold
        self._most_deaths = most_deaths
        self._cycles = Cycles()
        self._deliveries = Deliveries(turn)
        self.tails_on: Callable[[Exchange], Sequence[Tail]] = lambda _exchange: ()
        """Returns the tails that are told of dead letters to an exchange."""

    def publish(
        self, queue: Queue, letters: Sequence[tuple[int, Message]], reason: str
    ) -> tuple[int, Sequence[int]]:
        """Publish unacked messages of a queue; see `broker.queue.dead_letter_line.Publisher.dead_letter`."""
        name = queue.settings.dead_letter_exchange
        exchange = None if name is None else self._find_exchange(name)
        if exchange is None:
            if reason != REJECTED:
                for _, message in letters:
                    if message.promise is not None:
                        message.promise.refused()
            return len(letters), [seq_id for seq_id, _ in letters]
        now = self._context.clock() // 1000
        is_over = self._turn.slices.is_over
        moved = []
        count = 0
        tails = self.tails_on(exchange)
        for seq_id, message in letters:
            if count and is_over():
                break
            count += 1
            letter = dead_letter(
                message,
                queue=queue.name,
                reason=reason,
                exchange=exchange.name,
                routing_key=queue.settings.dead_letter_routing_key,
                now=now,
                most_deaths=self._most_deaths,
            )
            exchange.lookups += 1
            reached = self._targets(exchange, letter.routing_keys, letter.rewritten.headers)
            targets = self._cycles.remove_cycling(reached, letter.deaths)
            queue.tally.cycled += len(reached) - len(targets)
            exchange.tally(len(targets), letter.routing_keys[0]).published += 1
            for tail in tails:
                tail.dead_lettered(exchange, letter.routing_keys, letter.message, targets)
            if self._send(queue, seq_id, message, letter, targets, is_rejected=reason == REJECTED):
                moved.append(seq_id)
        self._context.totals.dead_lettered(queue.type, reason, count)
        return count, moved

    def _targets(self, exchange: Exchange, routing_keys: Sequence[str], headers: Headers) -> Sequence[Queue]:
        try:
            return self._route(exchange, routing_keys, headers)
        except TooManyHopsError as error:  # no publisher to report to: use the queues reached so far
            return error.reached  # type: ignore[return-value]

    def _send(
        self,
        queue: Queue,
        seq_id: int,
        original: Message,
        letter: DeadLetter,
        targets: Sequence[Queue],
        *,
        is_rejected: bool,
    ) -> bool:
        """Send a dead letter on its way; False if the original has to stay until the dead letter is safe."""
        persistent = delivery_mode(letter.message.header) == PERSISTENT_MODE
        copies = Copies(
            letter.message,
            targets,
            persistent=persistent,
            promise=joined(original),
            awaits=False,
            nacks=original.promise is not None and not is_rejected,
            on_safe=partial(queue.remove_moved, seq_id) if seq_id >= 0 else None,
            blob_threshold=self._blob_threshold,
        )
        if not targets:
            copies.refuse()
        # a target may refuse it, which puts it into other queues
        is_stored = copies.is_stored or is_stored_by((queue,), persistent=persistent)
        self._deliveries.add(targets, copies.forward, copies, is_stored=is_stored)
        return not copies.stays

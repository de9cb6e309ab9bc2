"""A random walk through a broker whose steps of the event loop end early, killed at any moment or left to come to rest.

Publishers, a consumer and an administrator do what they like, while commits begin, are held and end, and bodies go to
files. After each step the bookkeeping of deferred queues must be exact; in the end the ledger judges where each message
is. Everything is drawn from one seed; nothing depends on time.
"""

import logging
import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from deferred.hurried import HurriedNode, PacedClient, small_pieces
from deferred.ledger import (
    AFTER,
    AWAITING,
    CHAIN,
    CHAINED,
    DELAYED,
    EXPIRING,
    ONE,
    REFUSING,
    REJECTED,
    WIDE,
    Ledger,
    Publisher,
    Queues,
    ViolationError,
)
from doubles.fakes import Client, DiskNode, hurry, publish_frames, queue_declare

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig

MEMORY = Path("/dev/shm")
TTL = 500
DELAYS = (1, 300, 300, 1000)
SIZES = (0, 0, 0, 0, 5000, 5000, 25_000)
IN_FILE = 20_000
"""Size of a body in bytes from which it goes to a file of its own."""
MOST_STEPS = 300_000
"""Steps until a walk must have come to rest; it needs some thousand."""
PARTIAL = "PRECONDITION_FAILED - partial tx completion"
LEAST_TARGETS = 3
"""Target queues that are neither purged nor deleted."""


class _Errors(logging.Handler):
    """Keeps the errors that the broker logs, but for those of clients that are expected."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        if not text.endswith(PARTIAL):
            self.texts.append(text)


def _arguments(**arguments: str | int) -> Table:
    return {
        "x-" + name.replace("_", "-"): ("longstr", value) if isinstance(value, str) else ("long", value)
        for name, value in arguments.items()
    }


class Walk:
    """A random walk.

    Args:
        data_dir: an empty folder for the broker.
        seed: of everything that is drawn.

    """

    def __init__(self, data_dir: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        """Counts of events, for the report."""
        storage = StorageConfig(
            sync=False,
            check_invariants=True,
            blob_threshold=IN_FILE,
            segment=16,
            io_batch=4,
            target_ram_count=self.random.choice((None, None, 8)),
        )
        self.node = HurriedNode(data_dir, storage=storage)
        self.admin = PacedClient(self.node)
        self.ways = [WIDE, WIDE, WIDE, REJECTED, EXPIRING, ONE, DELAYED, REFUSING, AWAITING, CHAIN]
        self.ledger = Ledger(self._declare())
        self.clients: dict[PacedClient, Publisher] = {}
        for number in range(self.random.choice((1, 2, 4))):
            self._connect(number)
        self.consumer = PacedClient(self.node, port=50100)
        for way in (REJECTED, AWAITING):
            self._ask(make(Basic.Consume, 0, way, way, False, False, False, False, {}), self.consumer)
        for client in (self.admin, self.consumer, *self.clients):
            client.take()
        self.asked = ""
        """Way that the administrator is purging or deleting the queue of."""
        self.is_slow = False
        hurry(self.node, looks=self.random.choice((4, 5, 7, 12, 30)))

    # -- the beginning ------------------------------------------------------------------------------------------------

    def _ask(self, method: Any, client: Client | None = None) -> None:
        """Send a method while the steps of the loop are long, and let the disk do what its answer waits for."""
        (client or self.admin).send(method)
        self.node.commit()
        self.node.clock.run()

    def _declare_one(
        self, name: str, exchange: str = "", *, durable: bool = True, **arguments: str | int
    ) -> str:
        self._ask(queue_declare(name, durable=durable, arguments=_arguments(**arguments)))
        if exchange:
            self._ask(make(Queue.Bind, 0, name, exchange, "", False, {}))
        return name

    def _declare_exchange(self, name: str, kind: str, arguments: Table) -> None:
        self._ask(make(Exchange.Declare, 0, name, kind, False, True, False, False, False, arguments))

    def _declare(self) -> Queues:
        """Declare the queue or exchange of each way, and the target queues."""
        draw = self.random
        all_targets = "amq.fanout"
        delayed: Table = {"x-delayed-type": ("longstr", "fanout")}
        self._declare_exchange(DELAYED, "x-delayed-message", delayed)
        self._declare_exchange(REFUSING, "fanout", {})
        self._declare_exchange(AWAITING, "fanout", {})
        self._declare_one(REJECTED, dead_letter_exchange=all_targets)
        self._declare_one(EXPIRING, dead_letter_exchange=all_targets, message_ttl=TTL)
        self._declare_one(AFTER)
        self._declare_one(
            AWAITING,
            AWAITING,
            confirm_mode="consumer-ack",
            dead_letter_exchange="",
            dead_letter_routing_key=AFTER,
        )
        small_is_durable = draw.random() < 0.5
        refusing = {"max_length": draw.choice((1, 3, 10)), "overflow": "reject-publish"}
        small = self._declare_one("small", REFUSING, durable=small_is_durable, **refusing)
        chain, full, end = CHAINED
        refused = draw.choice(("drop-head", "reject-publish", "reject-publish-dlx"))
        chain_refuses = draw.random() < 0.3
        self._declare_one(end)
        self._declare_one(
            full,
            durable=False,
            dead_letter_exchange="",
            dead_letter_routing_key=end,
            max_length=1,
            overflow=refused,
        )
        self._declare_one(
            chain,
            dead_letter_exchange="",
            dead_letter_routing_key=full,
            max_length=2,
            overflow="reject-publish-dlx" if chain_refuses else "drop-head",
        )
        queues = Queues(
            [], [], [], small, small_is_durable, chain_refuses, chain_drops=refused == "reject-publish"
        )
        has_quorum, durable_share = draw.random() < 0.3, draw.choice((0.5, 0.9, 1.0))
        for number in range(draw.choice((3, 6, 12, 30))):
            name = f"q{number}"
            if has_quorum and draw.random() < 0.2:
                queues.quorum.append(self._declare_one(name, queue_type="quorum"))
            elif draw.random() < durable_share:
                queues.durable.append(self._declare_one(name))
            else:
                queues.transient.append(self._declare_one(name, durable=False))
            for exchange in (all_targets, DELAYED, REFUSING, AWAITING):
                self._ask(make(Queue.Bind, 0, name, exchange, "", False, {}))
        return queues

    def _connect(self, number: int) -> None:
        publisher = Publisher(number, is_transactional=self.random.random() < 0.15)
        client = PacedClient(self.node, port=50001 + number)
        client.send(Tx.Select() if publisher.is_transactional else make(Confirm.Select, False))
        self.clients[client] = publisher
        self.ledger.publishers.append(publisher)

    # -- what is done -------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Do something at random, again and again, with some steps of the loop in between."""
        draw = self.random
        acts = (
            (55, self._publish),
            (10, self._settle),
            (7, self._pass_time),
            (8, self.node.committer.begin_commit),
            (8, self.node.committer.end_commit),
            (3, self.node.committer.end_file),
            (3, self.node.end_reads),
            (4, self._change_backlog),
            (4, self._bind),
            (2, self._empty),
        )
        weights = [weight for weight, _ in acts]
        most = draw.choice((1, 3, 3, 15))  # the fewer steps in between, the more is deferred at once
        for _ in range(draw.choice((20, 60, 150))):
            draw.choices(acts, weights)[0][1]()
            self._look()
            for _ in range(draw.randint(0, most)):
                self._step()

    def _publish(self) -> None:
        """Publish some messages in one read, with the commit of a transaction."""
        draw = self.random
        client = draw.choice(list(self.clients))
        publisher = self.clients[client]
        if client.is_waiting:
            return
        octets = [self._one(publisher) for _ in range(draw.choice((1, 1, 2, 5, 10)))]
        if publisher.is_transactional:
            octets.append(encode_method(1, Tx.Commit()))
        client.receive(b"".join(octets))

    def _one(self, publisher: Publisher) -> bytes:
        draw, queues = self.random, self.ledger.queues
        refusing = {REFUSING} | ({CHAIN} if queues.chain_refuses else set())
        way = draw.choice([way for way in self.ways if not (publisher.is_transactional and way in refusing)])
        target = draw.choice(queues.judged(queues.targets))
        size, persistent = draw.choice(SIZES), draw.random() < 0.6
        message = self.ledger.published(
            publisher, way, target, persistent=persistent, in_file=size >= IN_FILE
        )
        self.counts["published"] += 1
        headers: Table = {"CC": ("array", [])} if draw.random() < 0.1 else {}
        if way == DELAYED:
            headers["x-delay"] = ("signedint", draw.choice(DELAYS))
        properties: dict[str, Any] = {"headers": headers} if headers else {}
        if persistent:
            properties["delivery_mode"] = 2
        exchange = {WIDE: "amq.fanout", DELAYED: DELAYED, REFUSING: REFUSING, AWAITING: AWAITING}.get(way, "")
        key = target if way == ONE else "" if exchange else way
        return publish_frames(key, message.body + b"." * size, exchange=exchange, **properties)

    def _settle(self) -> None:
        """Ack, reject or requeue one delivery, or all up to it."""
        draw, held = self.random, self.ledger.held
        if held and not self.consumer.is_waiting:
            tag = draw.choice(list(held))
            multiple, is_requeued = draw.random() < 0.5, draw.random() < 0.2
            share_of_acks = 0.7 if held[tag][0] == AWAITING else 0.1
            if draw.random() < share_of_acks:
                self._settled(make(Basic.Ack, tag, multiple), self.ledger.acked)
            else:
                to = None if is_requeued else self.ledger.rejected
                self._settled(make(Basic.Nack, tag, multiple, is_requeued), to)

    def _settled(self, method: Any, to: set[bytes] | None) -> None:
        self.ledger.settled(method.delivery_tag, multiple=method.multiple, to=to)
        self.consumer.send(method)

    def _pass_time(self) -> None:
        self.node.loop.run_step("timer", lambda: self.node.pass_time(self.random.choice((1, 100, 400))), "")

    def _change_backlog(self) -> None:
        self.is_slow = not self.is_slow
        self.node.committer.set_slow(is_slow=self.is_slow)

    def _bind(self) -> None:
        """Bind a queue without waiting for answers: its rows wait for the disk."""
        draw, queues = self.random, self.ledger.queues
        if not self.admin.is_waiting:
            name = draw.choice(queues.judged(queues.targets))
            bind = make(Queue.Bind, 0, name, "amq.direct", f"k{draw.randrange(5)}", True, {})
            self.admin.receive(encode_method(1, bind) * draw.choice((1, 3)))

    def _empty(self) -> None:
        """Purge or delete a queue: that of a way, or a target queue."""
        draw, queues = self.random, self.ledger.queues
        targets = queues.judged(queues.targets)
        if self.admin.is_waiting or self.asked:
            return
        is_purge = draw.random() < 0.5
        name = draw.choice((REJECTED, EXPIRING, AWAITING, CHAIN, *[draw.choice(targets)] * 2))
        if name in targets:
            if len(targets) <= LEAST_TARGETS:
                return
            queues.unjudged.add(name)
        elif name not in self.ways or name in self.ledger.emptied:
            return
        else:
            self.asked = name
            self.ledger.emptying(name)
            if not is_purge and name != AWAITING:
                self.ways.remove(name)  # those published on the way `AWAITING` go to the others
        self.counts["purged" if is_purge else "deleted"] += 1
        self.admin.send(
            make(Queue.Purge, 0, name, False)
            if is_purge
            else make(Queue.Delete, 0, name, False, False, False)
        )

    # -- what is seen -------------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.node.step()
        self._look()

    def _look(self) -> None:
        """Note everything that was sent, and judge the bookkeeping of deferred queues."""
        for client, publisher in self.clients.items():
            for item in client.take():
                self._received(client, publisher, item.method)
        for item in self.consumer.take():
            if item.method.name == "Basic.Deliver":
                tag, method = item.method.consumer_tag, item.method
                self.ledger.delivered(tag, method.delivery_tag, item.body.rstrip(b"."))
            self._check_open(item.method)
        for item in self.admin.take():
            if self.asked and item.method.name in {"Queue.PurgeOk", "Queue.DeleteOk"}:
                self._emptied(is_purge=item.method.name == "Queue.PurgeOk")
            self._check_open(item.method)
        self._check_deferred()

    def _received(self, client: PacedClient, publisher: Publisher, method: Any) -> None:
        if method.name in {"Basic.Ack", "Basic.Nack"}:
            self.counts["acks" if method.name == "Basic.Ack" else "nacks"] += 1
            publisher.confirmed(method.delivery_tag, multiple=method.multiple, ack=method.name == "Basic.Ack")
        elif method.name == "Tx.CommitOk":
            publisher.committed()
        elif method.name == "Channel.Close" and publisher.is_transactional and self.counts["deleted"]:
            assert method.reply_text == PARTIAL
            self.counts["partial"] += 1
            publisher.committed_in_part()
            again = (Channel.CloseOk(), Channel.Open(), Tx.Select())
            client.receive(b"".join([encode_method(1, each) for each in again]))
            return
        self._check_open(method)

    def _emptied(self, *, is_purge: bool) -> None:
        """Note the end of a purge or a deletion of a way's queue."""
        self.ledger.emptying(self.asked)
        if is_purge or self.asked != AWAITING:
            self.ledger.emptied.discard(self.asked)
        self.asked = ""

    @staticmethod
    def _check_open(method: Any) -> None:
        if method.name in {"Channel.Close", "Connection.Close"}:
            raise ViolationError(f"broker: {method.name}: {method.reply_text}")

    def _check_deferred(self) -> None:
        """Check that each deferred queue is deferred once, and that commits wait for the durable ones."""
        turn = self.node.turn
        deferred = list(turn._deferred_input)
        self.counts["longest line"] = max(self.counts["longest line"], len(deferred))
        if len(set(deferred)) < len(deferred):
            raise ViolationError(f"deferred: a queue twice in {deferred}")
        if {queue for queue in deferred if queue.durable} != turn._stored | turn._not_stored:
            raise ViolationError(
                f"deferred: {deferred}, but {turn._stored} and {turn._not_stored} are counted"
            )
        self.counts["steps"] += 1
        self.counts["held"] += self.node.committer.is_held

    # -- the end ------------------------------------------------------------------------------------------------------

    def come_to_rest(self) -> None:
        """Let everything happen that waits: what is on its way arrives, and the consumer settles its deliveries."""
        node, committer = self.node, self.node.committer
        self.is_slow = False
        committer.set_slow(is_slow=False)
        seconds = 3  # longer than any delay
        for _ in range(MOST_STEPS):
            if node.is_waiting:
                node.advance()
            elif self.ledger.held:
                self._settle_all()
            elif seconds:
                seconds -= 1
                node.loop.run_step("timer", lambda: node.pass_time(1001), "")
                self._step()
            else:
                break
            self._look()
        else:
            raise ViolationError(f"deferred: never at rest; {node.turn._deferred_input} is left")
        self._check_rest()

    def _settle_all(self) -> None:
        if self.consumer.is_waiting:
            raise ViolationError("deferred: the consumer waits for ever")
        tags = iter(self.ledger.held.items())
        tag, (way, _) = next(tags)
        if way == AWAITING:
            self._settled(make(Basic.Ack, tag, False), self.ledger.acked)
        else:
            self._settled(make(Basic.Nack, tag, False, False), self.ledger.rejected)

    def _check_rest(self) -> None:
        """Check that nothing is deferred, held or paused when nothing is left to do."""
        node, turn = self.node, self.node.turn
        vhost = node.vhosts["/"]
        if turn._deferred_input or turn._stored or turn._not_stored or turn._deferred_others:
            raise ViolationError(f"deferred: stuck with {turn._deferred_input}, {turn._deferred_others}")
        if (
            node.committer.is_held
            or turn.waiting_for_disk
            or turn.has_paused_jobs
            or node.loop.waiting_for_disk
        ):
            raise ViolationError("deferred: something waits for the disk for ever")
        for deliveries in (
            vhost._dead_lettering._deliveries,
            *(line._deliveries for line in vhost.delay_lines()),
        ):
            if deliveries.has_input or deliveries.stores_input:
                raise ViolationError(f"deferred: {deliveries} for ever")
        for client in (self.admin, self.consumer, *self.clients):
            driver, connection = client.driver, client.connection
            if driver._pauses or connection.stalled or connection.pending_reply or connection._chunks:
                raise ViolationError(f"deferred: {connection} is paused {driver._pauses} times for ever")

    def kill(self) -> DiskNode:
        """Kill the broker, with the commit in flight on disk or not; returns the next one on the same disk."""
        if self.random.random() < 0.5:
            self.node.committer.write_batch()
        return self.node.killed()

    def judge(self, node: DiskNode, *, is_at_rest: bool) -> None:
        """Judge verdicts, and what is in the queues of this broker or the next one."""
        self.ledger.judge_verdicts(is_at_rest=is_at_rest)
        self.ledger.judge_contents(
            {name: _bodies(node, name) for name in node.vhosts["/"].queues},
            is_live=node is self.node,
            is_at_rest=is_at_rest,
        )


def _bodies(node: DiskNode, name: str) -> list[bytes]:
    """Take all messages of a queue; returns their bodies without what they are filled with."""
    queue = node.vhosts["/"].queues[name]
    found: list[bytes] = []
    for _ in range(MOST_STEPS):
        batch = queue.get(no_ack=True)
        if batch is None:
            return found
        found += [bytes(message.body).rstrip(b".") for message in batch.messages]
        if not batch.messages:  # they are on disk, or have to be discarded first
            node.read()
            node.commit()
            node.clock.run()
    raise ViolationError(f"delivery: {queue} gives nothing for ever")


def _let_arrive(node: DiskNode) -> None:
    """Let everything arrive in a broker that has just started: what expires, what is delayed, what is on disk."""
    for _ in range(4):
        for _ in range(20):
            node.read()
            for msg_id, (message, _) in node.disk.journal.files.items():
                node.disk.environment.bodies.write(msg_id, message.content)
            node.write_files()
            node.clock.run()
        node.pass_time(1001)


def walk(seed: int) -> Counter[str]:
    """Take one walk; returns what happened in it. Raises ViolationError, with the seed in a note."""
    home = Path(tempfile.mkdtemp(prefix="leveret-deferred-", dir=MEMORY if MEMORY.is_dir() else None))
    log, errors = logging.getLogger("leveret"), _Errors()
    log.addHandler(errors)
    try:
        with small_pieces():
            return _walk(home, seed, errors)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise
    finally:
        log.removeHandler(errors)
        shutil.rmtree(home, ignore_errors=True)


def _walk(home: Path, seed: int, errors: _Errors) -> Counter[str]:
    taken = Walk(home, seed)
    node: DiskNode = taken.node
    try:
        taken.run()
        end = taken.random.choice(("killed", "killed", "killed at rest", "at rest"))
        taken.counts[end] += 1
        if end != "killed":
            taken.come_to_rest()
        if end == "at rest":
            hurry(taken.node, looks=1_000_000)
        else:
            node = taken.kill()
            _let_arrive(node)
        taken.judge(node, is_at_rest=end != "killed")
    finally:
        node.disk.close()
    if errors.texts:
        raise ViolationError(f"broker: {errors.texts[0]}")
    return taken.counts

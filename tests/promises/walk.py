"""A random walk through a broker: publishers, consumers and administrators who do what they like, and a ledger that watches.

The broker is real but for sockets, threads and time; its memory is small, so that queues page. Everything is drawn from
one seed.
"""

import gc
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from doubles.fakes import Client, DiskNode, Sent, basic_consume, publish_frames, queue_declare, set_policy
from promises.ledger import Book, Channel, Copy, Ledger, make_body

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel as Wire, Confirm, Exchange, Queue, Tx, make
from leveret.broker.amqp.properties import Properties
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig
from leveret.broker.persistence.data_store import paging
from leveret.confirm.channel_confirms import MARKS
from leveret.confirm.promise import Promise

STANDARD, CONSUMER_ACK, LIGHT = "standard", "consumer-ack", "consumer-ack-light"
MODES = (STANDARD, CONSUMER_ACK, LIGHT)
CONFIRMS, PLAIN, TRANSACTIONAL = "confirms", "plain", "transactional"
SIZES = (0, 10, 10, 50, 50, 200, 1000, 5000)
DEAD = "dead"
CHECK_EVERY = 40
"""Steps between two looks at who waits for nothing."""
CONFIRM_WAIT = 1 << 62
"""Nanoseconds: confirms wait for the next look."""
BACKLOG = 4000
"""Ready messages above which publishing pauses."""


class Kind(NamedTuple):
    """A kind of queue. There is always one of each."""

    arguments: Table
    exchanges: tuple[str, ...] = ()
    durable: bool = True
    auto_delete: bool = False
    drops: bool = False
    dies: bool = False
    refuses: bool = False
    ordered: bool = True
    keeps_bodies: bool = False
    """True if it cannot be light."""
    vanishes: bool = False
    """True if it goes when it is unused."""


def _limit(**limits: int | str) -> Table:
    return {
        "x-" + name.replace("_", "-"): ("longstr" if isinstance(value, str) else "signedint", value)
        for name, value in limits.items()
    }


_DIES: Table = _limit(dead_letter_exchange="", dead_letter_routing_key=DEAD)
KINDS = {
    "plain": Kind({}, ("both", "all", "main")),
    "pair": Kind({}, ("both", "all")),
    "transient": Kind({}, ("all",), durable=False),
    "urgent": Kind(_limit(max_priority=4), ("both", "all"), ordered=False),
    "lazy": Kind(_limit(queue_mode="lazy"), ("all",)),
    "single": Kind({"x-single-active-consumer": ("bool", True)}, ("both",)),
    "quorum": Kind(_limit(queue_type="quorum", delivery_limit=3) | _DIES, ("all",), dies=True),
    "short": Kind(_limit(max_length=15), ("all",), drops=True),
    "small": Kind(_limit(max_length_bytes=3000), ("all",), drops=True, keeps_bodies=True),
    "brief": Kind(_limit(message_ttl=60), ("all",), drops=True),
    "rejected": Kind(_DIES, ("both",), dies=True, keeps_bodies=True),
    "dying": Kind(_limit(message_ttl=80) | _DIES, ("all",), dies=True, keeps_bodies=True),
    "narrow": Kind(_limit(max_length=20) | _DIES, ("all",), dies=True, keeps_bodies=True),
    "full": Kind(_limit(max_length=40, overflow="reject-publish"), ("refusing",), refuses=True),
    "overfull": Kind(
        _limit(max_length=30, overflow="reject-publish-dlx") | _DIES,
        ("refusing",),
        dies=True,
        refuses=True,
        keeps_bodies=True,
    ),
    "passing": Kind({}, ("both",), auto_delete=True),
    "unused": Kind(_limit(expires=100), ("all",), vanishes=True),
    "stray": Kind({}, ("stray",)),
}
EXCHANGES = ("both", "all", "refusing", "stray", "main")
"""`main` is a direct exchange whose alternate is `stray`; the others are fan-outs."""


class Publisher:
    def __init__(self, client: Client, number: int, what: str, channel: Channel) -> None:
        self.client, self.number, self.what, self.channel = client, number, what, channel
        self.uncommitted: list[Copy] = []


class Consumer:
    def __init__(self, client: Client, number: int) -> None:
        self.client, self.number = client, number
        self.held: dict[int, Copy] = {}
        self.books: dict[str, Book] = {}
        """Queues it consumes from, by consumer tag."""
        self.got: tuple[Book, bool] | None = None
        self.is_open = True


class Walk:
    """A random walk.

    Args:
        data_dir: an empty folder for the broker.
        mode: the mode of most queues most of the time.
        seed: of everything that is drawn.
        timeout: seconds after which the broker nacks what is open; 0 for never, and only then nothing is forgotten.
        checked: have the broker check the invariants of its queues, which takes time.

    """

    def __init__(
        self, data_dir: Path, mode: str, seed: int, *, timeout: float = 0.0, checked: bool = False
    ) -> None:
        self.mode = mode
        self.random = random.Random(seed)
        self.ledger = Ledger(timeout, timeout / MARKS + 0.15) if timeout else Ledger()
        storage = StorageConfig(
            sync=False, target_ram_count=8, segment=16, io_batch=4, check_invariants=checked
        )
        self.node = DiskNode(data_dir, confirm_mode=mode, confirm_timeout=timeout, storage=storage)
        self.books: dict[str, Book] = {}
        """Books by kind of queue."""
        self.names: dict[str, Book] = {}
        """Books by name, including deleted queues."""
        self.clients: dict[Client, dict[int, Publisher | Consumer]] = {}
        self.partial: Publisher | None = None
        """The publisher whose transaction has messages for a deleted queue, until its commit is refused."""
        self.ledger.now = self.node.now()
        self.steps = 0
        self.admin = self.connect()
        self.admin.send(Wire.Open(), 2)
        for exchange in EXCHANGES:
            alternate: Table = {"alternate-exchange": ("longstr", "stray")} if exchange == "main" else {}
            kind = "direct" if exchange == "main" else "fanout"
            self.ask(make(Exchange.Declare, 0, exchange, kind, False, True, False, False, False, alternate))
        only_standard: Table = {"x-confirm-mode": ("longstr", STANDARD)}
        self.ask(queue_declare(DEAD, durable=True, arguments=only_standard))
        self.reads_dead_letters = False
        self.leave_dead_letters()
        for kind in KINDS:
            self.declare(kind)
        self.publishers: list[Publisher] = []
        self.consumers: list[Consumer] = []
        for whats in ((CONFIRMS, CONFIRMS), (CONFIRMS, PLAIN), (TRANSACTIONAL, CONFIRMS)):
            self.add_publishers(whats)
        for _ in range(5):
            self.add_consumers()

    # -- wire ---------------------------------------------------------------------------------------------------------

    def connect(self) -> Client:
        client = Client(self.node)
        self.clients[client] = {}
        return client

    def ask(self, method: Any, client: Client | None = None, number: int = 1) -> None:
        """Send a method, and let the disk do what its answer waits for."""
        client = client or self.admin
        client.send(method, number)
        self.wait(client)

    def wait(self, client: Client) -> None:
        while client.connection.pending_reply is not None:
            self.commit()
            self.node.read()
        self.look()

    def commit(self) -> None:
        self.ledger.commits += 1
        self.node.commit()

    def look(self) -> None:
        """Note in the ledger all methods sent to anybody."""
        self.node.clock.run()
        for kind, book in list(self.books.items()):
            if KINDS[kind].vanishes and book.name not in self.node.vhosts["/"].queues:
                self.gone(kind)
        to_publishers = []
        for client, channels in list(self.clients.items()):
            if client.driver.octets:
                for item in client.take():
                    who = channels.get(item.channel)
                    if isinstance(who, Publisher):
                        to_publishers.append((who, item))
                    else:
                        self.received(who, item)
        for who, item in to_publishers:  # what is handed over for good may be confirmed in the same turn
            self.received(who, item)

    def received(self, who: Publisher | Consumer | None, item: Sent) -> None:
        method, name = item.method, item.method.name
        if name == "Channel.Close" and who is not None and who is self.partial:
            self.partial = None
        elif name in {"Channel.Close", "Connection.Close"}:
            self.ledger.violate("broker", f"{name}: {method.reply_text}")
        elif isinstance(who, Publisher):
            if name in {"Basic.Ack", "Basic.Nack"}:
                ack = name == "Basic.Ack"
                self.ledger.verdict(who.channel, method.delivery_tag, multiple=method.multiple, ack=ack)
            elif name == "Basic.Return":
                self.ledger.returned(who.channel, item.body)
        elif isinstance(who, Consumer):
            if name == "Basic.Deliver":
                book = who.books.get(method.consumer_tag)
                if book is None:
                    self.ledger.violate("delivery", f"for {method.consumer_tag}, which is no consumer")
                    return
                self.took(who, book, item, no_ack=method.consumer_tag.startswith("no-ack"))
            elif name == "Basic.GetOk" and who.got is not None:
                self.took(who, who.got[0], item, no_ack=who.got[1])
        elif name == "Basic.Deliver":
            self.ledger.dead(self._first_death(item), item.body)

    @staticmethod
    def _first_death(item: Sent) -> str:
        headers = Properties(item.header).headers or {}
        return str(headers["x-first-death-queue"][1])

    def took(self, who: Consumer, book: Book, item: Sent, *, no_ack: bool) -> None:
        tag, redelivered = item.method.delivery_tag, item.method.redelivered
        copy = self.ledger.delivered(
            book, (who, item.method.name, no_ack), item.body, redelivered=redelivered
        )
        if copy is None:
            return
        if no_ack:
            self.ledger.settled(copy)
        elif who.is_open:
            who.held[tag] = copy
        else:
            self.ledger.given_back(copy)

    # -- topology -----------------------------------------------------------------------------------------------------

    def declare(self, kind: str) -> None:
        """A queue of that kind, in the place of one that is gone."""
        what = KINDS[kind]
        name = f"{kind}.{len(self.names)}"
        book = Book(
            name,
            durable=what.durable,
            saves_all=kind == "quorum",
            drops=what.drops,
            dies=what.dies,
            refuses=what.refuses,
            ordered=what.ordered,
            mode=self.effective(kind, self.mode),
        )
        self.books[kind] = self.names[name] = book
        self.ask(
            queue_declare(name, durable=what.durable, auto_delete=what.auto_delete, arguments=what.arguments)
        )
        for exchange in what.exchanges:
            self.ask(make(Queue.Bind, 0, name, exchange, "known", False, {}))

    @staticmethod
    def effective(kind: str, mode: str) -> str:
        if kind == "quorum":
            return STANDARD
        return CONSUMER_ACK if mode == LIGHT and KINDS[kind].keeps_bodies else mode

    def gone(self, kind: str) -> None:
        """A queue is gone by itself; another takes its place later."""
        book = self.books.pop(kind)
        self.ledger.deleted(book)
        self.forget_consumers(book)

    def forget_consumers(self, book: Book) -> None:
        for consumer in self.consumers:
            for tag in [tag for tag, other in consumer.books.items() if other is book]:
                del consumer.books[tag]

    def leaving(self, books: list[Book]) -> None:
        """Consumers of these queues are about to leave: one that is to go with its last consumer goes."""
        passing = self.books.get("passing")
        if passing is not None and passing in books and not self.is_consumed(passing):
            del self.books["passing"]
            self.ledger.deleted(passing)

    def is_consumed(self, book: Book) -> bool:
        return any(book is other for consumer in self.consumers for other in consumer.books.values())

    def targets(self, exchange: str, key: str) -> list[Book]:
        if not exchange:
            return [self.names[key]] if key in self.names and self.names[key] in self.books.values() else []
        bound = [book for kind, book in self.books.items() if exchange in KINDS[kind].exchanges]
        if exchange == "main" and (key != "known" or not bound):
            return self.targets("stray", key)
        return bound

    # -- actors -------------------------------------------------------------------------------------------------------

    def add_publishers(self, whats: tuple[str, ...]) -> None:
        client = self.connect()
        for number, what in enumerate(whats, 1):
            channel = self.ledger.open_channel(confirms=what == CONFIRMS)
            publisher = Publisher(client, number, what, channel)
            self.clients[client][number] = publisher
            self.publishers.append(publisher)
            if number > 1:
                client.send(Wire.Open(), number)
            if what == CONFIRMS:
                client.send(make(Confirm.Select, False), number)
            elif what == TRANSACTIONAL:
                client.send(Tx.Select(), number)
        self.look()

    def add_consumers(self) -> None:
        client = self.connect()
        for number in (1, 2):
            self.open_consumer(client, number)

    def open_consumer(self, client: Client, number: int) -> None:
        consumer = Consumer(client, number)
        self.clients[client][number] = consumer
        self.consumers.append(consumer)
        if number > 1 or client.connection.channels.get(1) is None:
            client.send(Wire.Open(), number)
        client.send(make(Basic.Qos, 0, self.random.choice((1, 2, 5, 20, 20, 100)), False), number)
        self.look()

    # -- steps --------------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """A run of messages in one read, mostly to one address."""
        rng = self.random
        publisher = rng.choice(self.publishers)
        frames = []
        plain_keys = [book.name for kind, book in self.books.items() if not KINDS[kind].refuses]
        exchanges = ["", "", "both", "all", "main"]
        keys = plain_keys
        if publisher.what != TRANSACTIONAL:  # a commit that is refused in part closes its channel
            exchanges.append("refusing")
            keys = [book.name for book in self.books.values()]
        changes = rng.random() < 0.3
        properties: dict[str, Any] = {}
        for number in range(rng.choice((1, 1, 2, 5, 10, 30))):
            if changes or not number:
                exchange = rng.choice(exchanges)
                key = rng.choice(keys) if not exchange else rng.choice(("known", "known", "unknown"))
                if rng.random() < 0.03:
                    key = "nowhere"
                mandatory = rng.random() < 0.2
                size = rng.choice(SIZES)
                properties = {"delivery_mode": 2} if rng.random() < 0.7 else {}
                if rng.random() < 0.3:
                    properties["priority"] = rng.randrange(6)
                if rng.random() < 0.05:
                    properties["expiration"] = str(rng.choice((0, 20, 100)))
            books = self.targets(exchange, key)
            cc: list[str] = []
            if rng.random() < 0.05 and not exchange:
                cc = [rng.choice(plain_keys)]
                books = list(dict.fromkeys([*books, *self.targets("", cc[0])]))
            persistent = "delivery_mode" in properties
            message = self.ledger.published(
                publisher.channel,
                books,
                persistent=persistent,
                mandatory=mandatory,
                expires="expiration" in properties,
            )
            if publisher.what == TRANSACTIONAL:
                publisher.uncommitted += message.copies.values()
            else:
                self.ledger.sent(message.copies.values())
            headers: Any = {"headers": {"CC": ("array", [("longstr", each) for each in cc])}} if cc else {}
            frames.append(
                publish_frames(
                    key,
                    make_body(publisher.channel, message.seq, size),
                    exchange=exchange,
                    channel=publisher.number,
                    mandatory=mandatory,
                    **properties,
                    **headers,
                )
            )
        publisher.client.receive(b"".join(frames))
        self.wait(publisher.client)
        if publisher.what == TRANSACTIONAL and rng.random() < 0.5:
            self.end_transaction(publisher)

    def end_transaction(self, publisher: Publisher) -> None:
        is_kept = self.random.random() < 0.8
        if is_kept and any(copy.book.deleted for copy in publisher.uncommitted):
            self.partial = publisher
        for copy in publisher.uncommitted:
            if is_kept and not copy.book.deleted:
                self.ledger.sent([copy])
            else:
                self.ledger.withdrawn([copy])
        publisher.uncommitted = []
        client, number, is_partial = publisher.client, publisher.number, self.partial is not None
        self.ask(Tx.Commit() if is_kept else Tx.Rollback(), client, number)
        if self.partial is not None:
            self.ledger.violate("broker", "a transaction with messages for a deleted queue was committed")
        if is_partial:
            for method in (Wire.CloseOk(), Wire.Open(), Tx.Select()):
                client.send(method, number)
            self.look()

    def consume(self) -> None:
        consumer = self.random.choice(self.consumers)
        book = self.random.choice(list(self.books.values()))
        no_ack = self.random.random() < 0.1
        tag = f"{'no-ack' if no_ack else 'ack'} {book.name}"
        if tag not in consumer.books and len(consumer.books) < 6:
            consumer.books[tag] = book
            self.ask(basic_consume(book.name, tag, no_ack=no_ack), consumer.client, consumer.number)

    def cancel(self) -> None:
        consumer = self.random.choice(self.consumers)
        if consumer.books:
            tag = self.random.choice(list(consumer.books))
            book = consumer.books.pop(tag)
            self.leaving([book])
            consumer.books[tag] = book  # deliveries of this very turn
            self.ask(make(Basic.Cancel, tag, False), consumer.client, consumer.number)
            del consumer.books[tag]

    def settle(self) -> None:
        holding = [consumer for consumer in self.consumers if consumer.held]
        if not holding:
            return
        rng = self.random
        for consumer in rng.sample(holding, min(len(holding), 3)):
            self.settle_some(consumer, rng.random())
        self.look()

    def settle_some(self, consumer: Consumer, dice: float) -> None:
        rng, held, ledger = self.random, consumer.held, self.ledger
        tags = list(held)
        if dice < 0.5:
            last = rng.choice((tags[-1], rng.choice(tags)))
            for tag in tags[: tags.index(last) + 1]:
                ledger.settled(held.pop(tag))
            method: Any = make(Basic.Ack, last, True)
        elif dice < 0.8:
            chosen = rng.sample(tags, rng.randint(1, min(len(tags), 20)))
            octets = b""
            for tag in chosen:
                ledger.settled(held.pop(tag))
                octets += encode_method(consumer.number, make(Basic.Ack, tag, False))
            consumer.client.receive(octets)
            return
        else:
            multiple = rng.random() < 0.3
            requeue = rng.random() < 0.6
            last = rng.choice(tags)
            for tag in tags[: tags.index(last) + 1] if multiple else [last]:
                copy = held.pop(tag)
                if requeue:
                    ledger.given_back(copy)
                else:
                    ledger.settled(copy, rejected=True)
            method = make(Basic.Nack, last, multiple, requeue)
        consumer.client.send(method, consumer.number)

    def get(self) -> None:
        consumer = self.random.choice(self.consumers)
        book = self.random.choice(list(self.books.values()))
        no_ack = self.random.random() < 0.3
        consumer.got = book, no_ack
        self.ask(make(Basic.Get, 0, book.name, no_ack), consumer.client, consumer.number)

    def close_consumer(self) -> None:
        """A consumer's channel is closed; deliveries that are under way come back."""
        consumer = self.random.choice(self.consumers)
        self.leave([consumer])
        self.ask(make(Wire.Close, 200, "", 0, 0), consumer.client, consumer.number)
        self.open_consumer(consumer.client, consumer.number)

    def lose_consumers(self) -> None:
        client = self.random.choice(self.consumers).client
        self.leave([consumer for consumer in self.consumers if consumer.client is client])
        client.connection.lost()
        self.node.run_turn()
        self.look()
        del self.clients[client]
        self.add_consumers()

    def leave(self, consumers: list[Consumer]) -> None:
        """Consumers are about to be gone, with all they hold."""
        books = [book for consumer in consumers for book in consumer.books.values()]
        for consumer in consumers:
            consumer.is_open = False
            self.consumers.remove(consumer)
            for copy in consumer.held.values():
                self.ledger.given_back(copy)
            consumer.held.clear()
        self.leaving(books)

    def lose_publishers(self) -> None:
        client = self.random.choice(self.publishers).client
        lost = [publisher for publisher in self.publishers if publisher.client is client]
        for publisher in lost:
            self.publishers.remove(publisher)
            self.ledger.closed(publisher.channel)
            self.ledger.withdrawn(publisher.uncommitted)
        del self.clients[client]
        client.connection.lost()
        self.node.run_turn()
        self.look()
        self.add_publishers(tuple(publisher.what for publisher in lost))

    def purge(self) -> None:
        book = self.random.choice(list(self.books.values()))
        self.ledger.purging(book)
        self.ask(make(Queue.Purge, 0, book.name, False))
        self.ledger.purged(book)

    def delete(self) -> None:
        kind = self.random.choice(list(self.books))
        book = self.books.pop(kind)
        self.ledger.deleting(book)
        self.ask(make(Queue.Delete, 0, book.name, False, False, False))
        self.ledger.purged(book)
        self.forget_consumers(book)
        self.declare(kind)

    def redeclare(self) -> None:
        """Kinds that went by themselves come again."""
        for kind in KINDS:
            if kind not in self.books:
                self.declare(kind)

    def change_mode(self) -> None:
        """A policy gives a queue another mode, or the one that all have again."""
        kind = self.random.choice(list(self.books))
        book = self.books[kind]
        policies = self.node.vhosts["/"].policies
        if kind == "quorum":
            return
        mode = self.random.choice((self.mode, *MODES))
        set_policy(policies, f"mode of {kind}", f"^{book.name}$", {"confirm-mode": mode})
        self.ledger.changed(book, self.effective(kind, mode))
        self.node.run_turn()
        self.look()

    def wait_a_little(self) -> None:
        self.pass_time(self.random.choice((5, 20, 50)))

    def leave_dead_letters(self) -> None:
        """Pause reading dead letters, or resume it."""
        self.reads_dead_letters = not self.reads_dead_letters
        if self.reads_dead_letters:
            self.ask(basic_consume(DEAD, DEAD, no_ack=True))
        else:
            self.ask(make(Basic.Cancel, DEAD, False))

    def pass_time(self, milliseconds: int) -> None:
        self.node.pass_time(milliseconds)
        self.ledger.now = now = self.node.now()
        for client in self.clients:
            client.connection.close_overdue(now)
        self.node.run_turn()
        self.look()

    def limit_memory(self) -> None:
        """A queue may keep only little in memory, or all."""
        book = self.random.choice(list(self.books.values()))
        messages = self.random.choice((0, 2, 8, 8, 100))
        for queue in self.stores(book):
            queue.set_ram_target(messages, self.random.choice((0, 1000, 1 << 40)))
            queue.reduce_memory_use()

    def stores(self, book: Book) -> Iterator[Any]:
        queue = self.node.vhosts["/"].queues[book.name]
        return paging([queue.store])

    STEPS = (
        (publish, 30), (settle, 30), (consume, 5), (cancel, 1), (get, 4), (close_consumer, 1), (lose_consumers, 0.4),
        (lose_publishers, 0.05), (purge, 0.5), (delete, 0.4), (redeclare, 2), (change_mode, 1), (wait_a_little, 4),
        (limit_memory, 1), (leave_dead_letters, 0.5),
    )  # fmt: skip

    # -- the whole ------------------------------------------------------------------------------------------------------

    def run(self, messages: int) -> None:
        """Walk until so many messages were published, then let everything drain."""
        rng = self.random
        steps = [step for step, _ in self.STEPS]
        calm = [weight for _, weight in self.STEPS]
        weights = calm
        while self.ledger.counts["published"] < messages and not self.ledger.violations:
            self.steps += 1
            if self.steps % 100 == 1:
                weather = rng.choice(((1.0, 1.0), (2.0, 0.3), (0.5, 2.0)))
                weights = [calm[0] * weather[0], calm[1] * weather[1], *calm[2:]]
            step = rng.choices(steps, weights)[0]
            if step is Walk.publish and self.backlog > BACKLOG:
                step = Walk.settle
            step(self)
            if rng.random() < 0.3:
                self.commit()
                if rng.random() < 0.5:
                    self.node.read()
                self.look()
            if not self.steps % CHECK_EVERY:
                self.commit()
                self.node.read()
                self.node.loop.send_withheld()
                self.look()
                self.ledger.check_open()
                self.node.turn.confirm_wait = rng.choice((0, CONFIRM_WAIT))
        self.node.turn.confirm_wait = 0
        self.node.loop.send_withheld()
        self.look()
        self.drain()

    @property
    def backlog(self) -> int:
        queues = self.node.vhosts["/"].queues
        return sum(queues[book.name].backing.ready_count for book in self.books.values())

    def drain(self) -> None:
        """End publishing; consumers take everything, or queues go."""
        for publisher in self.publishers:
            if publisher.what == TRANSACTIONAL:
                self.end_transaction(publisher)
        for consumer in list(self.consumers):
            self.leave([consumer])
            self.ask(make(Wire.Close, 200, "", 0, 0), consumer.client, consumer.number)
        self.redeclare()
        if not self.reads_dead_letters:
            self.leave_dead_letters()
        last = self.connect()
        self.open_consumer(last, 1)
        (consumer,) = self.consumers
        for kind, book in list(self.books.items()):
            if self.random.random() < 0.2:
                self.ledger.deleted(self.books.pop(kind))
                self.ask(make(Queue.Delete, 0, book.name, False, False, False))
                continue
            tag = f"ack {book.name}"
            consumer.books[tag] = book
            self.ask(basic_consume(book.name, tag), last)
        quiet = 0
        while quiet < 3:
            quiet += 1
            self.commit()
            self.node.read()
            self.look()
            if self.node.disk.loads:
                quiet = 0
            if consumer.held:
                quiet = 0
                for copy in consumer.held.values():
                    self.ledger.settled(copy)
                consumer.held.clear()
                last.send(make(Basic.Ack, 0, True))
                self.look()
            self.pass_time(50)
        self.check_end()

    def check_end(self) -> None:
        """Check that all queues are empty, all numbers have their verdicts, and nothing of a promise is left."""
        ledger = self.ledger
        ledger.check_open()
        ledger.check_end()
        for book in self.books.values():
            queue = self.node.vhosts["/"].queues[book.name]
            if (0, 0) != (queue.ready_count, queue.unacked_count):
                ledger.violate("end", f"{book.name} has {queue.ready_count} and {queue.unacked_count}")
            if queue.awaiting is not None and queue.awaiting.promised_count + queue.awaiting.light_count:
                ledger.violate("end", f"{book.name} has promises")
            ledger.check_empty(book)
        for publisher in self.publishers:
            confirms = publisher.client.connection.channels[publisher.number].confirms
            if confirms is not None and (confirms.unconfirmed_count or confirms.held):
                ledger.violate("end", f"{publisher.channel.number} has {confirms.unconfirmed_count} numbers")
        gc.collect()
        left = sum(type(thing) is Promise for thing in gc.get_objects())
        if left:
            ledger.violate("end", f"{left} promises are left")

    def close(self) -> None:
        self.node.disk.close()


def run(
    data_dir: Path, mode: str, seed: int, messages: int, *, timeout: float = 0.0, checked: bool = False
) -> Ledger:
    """Walk once; returns what was seen."""
    walk = Walk(data_dir, mode, seed, timeout=timeout, checked=checked)
    try:
        walk.run(messages)
    finally:
        walk.close()
    return walk.ledger

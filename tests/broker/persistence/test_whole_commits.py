"""Commits while queues are deferred: each is complete, however the loop's steps fall."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doubles.fakes import Client, Clock, DiskNode, hurry, publish_frames

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Confirm, Exchange, Queue as Wire, make
from leveret.broker.persistence import committer
from leveret.broker.persistence.committer import Committer
from leveret.storage.journal.blocks import read_bitmap, read_header, read_records
from leveret.storage.store.lmdb_environment import LmdbEnvironment

QUEUES = ("got", "acked", "purged", "dying", "dead")
"""Durable queues that all get each message, except the last: messages rejected in `dying` go there."""
ACTS = 300
SIZES = (10, 900, 3000)
"""Bytes of bodies: within their records, apart if four queues have them, and apart if two have."""


class Handle:
    def __init__(self, callback: Callable[..., object], *arguments: object) -> None:
        self._callback: Callable[[], object] | None = lambda: callback(*arguments)

    def cancel(self) -> None:
        self._callback = None

    def __call__(self) -> None:
        if self._callback is not None:
            self._callback()


class Loop(Clock):
    """An event loop that makes one call at a time, when a test says so."""

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> Handle:  # type: ignore[override]
        handle = Handle(callback, *arguments)
        self.soon.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, seconds: float, callback: Callable[..., object], *arguments: object
    ) -> Handle:
        handle = Handle(callback, *arguments)
        self.later.append((self.now + seconds, handle))
        return handle

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.soon += [callback for due, callback in self.later if due <= self.now]
        self.later = [each for each in self.later if each[0] > self.now]

    def step(self) -> bool:
        """Do the next thing; returns false if there is none."""
        if self.soon:
            self.soon.pop(0)()
            return True
        return False


class Writer:
    """A writer thread whose commits are done when a test says so."""

    def __init__(self, *_: object) -> None:
        self._jobs: list[tuple[Callable[[], Any], Callable[[Any, None], None]]] = []

    def submit(self, job: Callable[[], Any], done: Callable[[Any, None], None]) -> None:
        self._jobs.append((job, done))

    def stop(self) -> None:
        """Do nothing: there is no thread."""

    def work(self) -> bool:
        """Do the oldest job; returns false if there is none."""
        if not self._jobs:
            return False
        job, done = self._jobs.pop(0)
        done(job(), None)
        return True


class Broker:
    """A broker on a loop and a disk driven by a test, and some clients."""

    def __init__(self, path: Path, clients: int) -> None:
        self.node = DiskNode(path)
        self.loop = self.node.clock = Loop()
        self.node.loop.attach(self.loop)  # type: ignore[arg-type]
        disk = self.node.disk
        report_full = self.node.resource_monitor.report_full
        disk.commits = Committer(disk.environment, disk.journal, self.node.loop, self.loop, report_full)  # type: ignore[arg-type]
        self.commits = disk.commits
        self.node.loop.commit = disk.commits.wake
        self.writer: Writer = disk.commits._writer
        self.store = disk.environment.store
        self.clients = [Client(self.node) for _ in range(clients)]

    def declare(self, name: str, letters: str = "") -> None:
        """Declare a durable queue, whose dead letters go to another one."""
        arguments = {}
        if letters:
            arguments = {
                "x-dead-letter-exchange": ("longstr", ""),
                "x-dead-letter-routing-key": ("longstr", letters),
            }
        self.tell(make(Wire.Declare, 0, name, False, True, False, False, False, arguments))

    def tell(self, method: Any, number: int = 0) -> None:
        """Send a method, and do all pending work."""
        self.receive(encode_method(1, method), number)
        self.settle()

    def receive(self, octets: bytes, number: int = 0) -> None:
        """Receive one read of a client's connection, if it is read, and do nothing else."""
        client, node = self.clients[number], self.node
        if not client.driver.reading:
            return
        node.context.now = node.turn.slices.begin()
        client.connection.receive(octets)
        node.finish_turn()
        if client.connection.stalled:
            client.driver.pause_reading()
            client.driver.wait()

    def settle(self) -> None:
        """Do all pending work."""
        waits = 0
        while waits < 3:
            if not self.loop.step() | self.writer.work():
                self.loop.wait(0.2)
                waits += 1


class Model(Broker):
    """A broker with short steps and random operations on it."""

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__(path, 4)
        self.rng = random.Random(seed)
        self.tell(make(Exchange.Declare, 0, "all", "fanout", False, True, False, False, False, {}))
        for name in QUEUES:
            self.declare(name, "dead" if name == "dying" else "")
            if name != "dead":
                self.tell(make(Wire.Bind, 0, name, "all", "", False, {}))
        self.tell(make(Confirm.Select, False))
        for number, name in enumerate(("got", "acked", "dying"), 1):
            self.tell(make(Basic.Consume, 0, name, "it", False, name == "got", False, False, {}), number)
        hurry(self.node, looks=self.rng.choice((2, 3, 7)))

    def act(self) -> None:
        """Do one random operation."""
        rng = self.rng
        roll = rng.random()
        if roll < 0.3:
            frames = publish_frames("", bytes(rng.choice(SIZES)), exchange="all", delivery_mode=2)
            self.receive(frames * rng.randint(1, 3))
        elif roll < 0.4:
            self.receive(encode_method(1, make(Basic.Ack, 0, True)), 2)
        elif roll < 0.5:
            self.receive(encode_method(1, make(Basic.Nack, 0, True, rng.random() < 0.3)), 3)
        elif roll < 0.55:
            self.receive(encode_method(1, make(Wire.Purge, 0, rng.choice(QUEUES), False)))
        elif roll < 0.75:
            self.loop.step()
        elif roll < 0.9:
            if self.writer.work():
                self.check()
        else:
            self.loop.wait(rng.choice((0.001, 0.01, 0.2)))

    def check(self) -> None:
        """Check that the reference count of each body on disk is the number of its records."""
        assert references(self.store) == counted(self.store)


def references(table: LmdbEnvironment) -> Counter[int]:
    """Return how many records refer to each body."""
    found: Counter[int] = Counter()
    with table.env.begin() as txn:
        for key, value in txn.cursor(table.db["blocks"]):
            header = read_header(key, value)
            dead = read_bitmap(txn.get(key, db=table.db["acks"]), header).dead
            for record in read_records(value, header, dead):
                assert not isinstance(record, int)
                if record.msg_id:
                    found[record.msg_id] += 1
    return found


def records(table: LmdbEnvironment) -> int:
    """Return the number of records that are not acked."""
    found = 0
    with table.env.begin() as txn:
        for key, value in txn.cursor(table.db["blocks"]):
            header = read_header(key, value)
            found += header.records - read_bitmap(txn.get(key, db=table.db["acks"]), header).dead.bit_count()
    return found


def counted(table: LmdbEnvironment) -> Counter[int]:
    """Return the stored reference count of each body."""
    with table.env.begin() as txn:
        counts = {key: int.from_bytes(value, "big") for key, value in txn.cursor(table.db["refs"])}
        found = Counter(
            {int.from_bytes(key, "big"): counts.pop(key, 1) for key, _ in txn.cursor(table.db["bodies"])}
        )
    assert {} == counts
    return found


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the test make commits by hand."""
    monkeypatch.setattr(committer, "WorkerThread", Writer)


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("seed", range(20))
def test_every_commit_has_exactly_the_bodies_that_its_records_refer_to(tmp_path: Path, seed: int) -> None:
    """A body's count is right and it is removed with its last record, whatever is published, settled and deferred."""
    model = Model(tmp_path, seed)
    for _ in range(ACTS):
        model.act()
    model.settle()
    model.check()
    for number in (2, 3):
        model.tell(make(Basic.Ack, 0, True), number)
    for name in QUEUES:
        model.tell(make(Wire.Delete, 0, name, False, False, False))

    store = model.store
    with store.env.begin() as txn:
        left = [
            txn.stat(store.db[name])["entries"] for name in ("blocks", "acks", "bodies", "refs", "sweeps")
        ]
    assert [0] * 5 == left
    model.node.disk.close()


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("looks", [2, 3, 5])
def test_a_commit_never_finds_a_letter_gone_from_one_place_and_not_in_the_other(tmp_path, looks):
    """A persistent dead letter is in one of the two queues whenever the broker is killed."""
    broker = Broker(tmp_path, 1)
    broker.declare("dead")
    broker.declare("q", "dead")
    broker.receive(publish_frames("q", b"1", delivery_mode=2) * 50)
    broker.settle()
    broker.tell(make(Basic.Consume, 0, "q", "it", False, False, False, False, {}))
    hurry(broker.node, looks=looks)
    broker.receive(encode_method(1, make(Basic.Nack, 0, True, False)))
    found = [records(broker.store)]
    while broker.node.disk.journal.has_work or broker.loop.soon:
        broker.loop.wait(0.1)
        broker.loop.step()
        if broker.writer.work():
            found.append(records(broker.store))

    assert [50] * len(found) == found
    assert 50 == broker.node.vhosts["/"].queues["dead"].ready_count
    broker.node.disk.close()


class Waiting:
    """A paused driver that records how many records are being written when it resumes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.seen: list[int] = []

    def disk_caught_up(self) -> None:
        self._broker.loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        batch = self._broker.node.disk.journal.in_flight
        self.seen.append(0 if batch is None else sum(len(entries) for _, entries in batch.entries))


@pytest.mark.usefixtures("by_hand")
def test_a_commit_waits_for_queues_that_are_deferred_and_others_wait_for_it(tmp_path: Path) -> None:
    """No commit is cut before deferred queues have run; a connection read last waits too, and resumes after it."""
    broker = Broker(tmp_path, 1)
    for name in QUEUES:
        broker.declare(name)
        broker.tell(make(Wire.Bind, 0, name, "amq.fanout", "", False, {}))
    node, journal = broker.node, broker.node.disk.journal
    driver = Waiting(broker)
    hurry(node, looks=2)
    broker.receive(publish_frames("", b"1", exchange="amq.fanout", delivery_mode=2))
    was_split = node.turn.is_split
    broker.commits._commit()

    assert (True, None, True) == (was_split, journal.in_flight, broker.commits.backlogged)
    assert node.wait_for_disk(driver.disk_caught_up, publishes=False)
    while node.turn.is_split:
        broker.loop.step()
    assert not broker.commits.is_held
    while broker.loop.step():
        pass
    assert [len(QUEUES)] == driver.seen
    assert not node.wait_for_disk(driver.disk_caught_up, publishes=False)
    broker.settle()
    node.disk.close()

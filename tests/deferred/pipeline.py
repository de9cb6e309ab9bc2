"""A random walk of transactions that end their inputs and publish outputs, killed at any moment.

A publisher with confirms fills `in`; consumers settle what they get, and publish as much to `out` and its copy, in
transactions of any size, with bodies that go to files, while steps of the event loop end early, and commits and files
begin, end and find the disk full when the seed says so. After the kill each input is in one place: confirmed ones are
there, each transaction is whole, and those that were answered have taken effect.
"""

import random
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from deferred.hurried import HurriedNode, ManualCommitter, PacedClient, small_pieces
from doubles.fakes import Client, DiskNode, hurry, publish_frames, queue_declare

from leveret.broker.amqp.codec import encode_method
from leveret.broker.amqp.commands import Basic, Channel, Confirm, Exchange, Queue, Tx, make
from leveret.broker.amqp.tables import Table
from leveret.broker.config.config import StorageConfig
from leveret.confirm.modes import CONSUMER_ACK, CONSUMER_ACK_LIGHT, STANDARD
from leveret.storage.errors import DiskFullError, Done

IN, OUT, COPY, OUTS = "in", "out", "copy", "outs"
IN_FILE = 5000
SIZES = (0, 0, 0, 300, 3000, 9000)
KINDS: tuple[Table, ...] = (
    {},
    {},
    {"x-max-priority": ("long", 2)},
    {"x-queue-type": ("longstr", "quorum")},
    {"x-dead-letter-exchange": ("longstr", "missing")},
    {"x-max-length-bytes": ("long", 10_000_000)},
)
LIMITED: Table = {"x-queue-type": ("longstr", "quorum"), "x-delivery-limit": ("long", 0)}
"""Of a queue that ends what is requeued, as if it were rejected; also when a channel closes, as after a full disk."""
ACTS = 150
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
MODES = (STANDARD, CONSUMER_ACK, CONSUMER_ACK_LIGHT)


class FullCommitter(ManualCommitter):
    """A committer that may find the disk full."""

    def fail_commit(self) -> None:
        """Have the commit in flight find no space for more than its deletions."""
        if self._batch is not None:
            self._node.loop.run_step("commit", self._fail_commit, "")

    def _fail_commit(self) -> None:
        batch, self._batch = self._batch, None
        disk, environment = self._node.disk, self._node.disk.environment
        environment._commit_paged(batch.paged)  # type: ignore[union-attr]
        done = environment._commit_deletions(environment.store, batch.durable)  # type: ignore[union-attr]
        disk.journal.settled(DiskFullError("no room", durable=done, paged=Done.ALL))
        self._node.run_turn()

    def fail_file(self) -> None:
        """Have the first file find no space."""
        if self._files:
            self._node.loop.run_step("file of a body", self._fail_file, "")

    def _fail_file(self) -> None:
        msg_id = next(iter(self._files))
        self._files.pop(msg_id)
        self._node.disk.journal.file_failed(msg_id)
        self._node.run_turn()


class Worker:
    """A consumer of `in` that publishes an output for each input."""

    def __init__(self, client: PacedClient) -> None:
        self.client = client
        self.held: list[tuple[int, int]] = []
        """Delivery tags and inputs that are not settled."""
        self.inputs: list[int] = []
        """Inputs of the transaction that is being committed."""


class Pipeline:
    """A walk.

    Args:
        data_dir: an empty folder for the broker.
        seed: of everything that is drawn.
        has_full_disks: whether commits and files find the disk full at times.

    """

    def __init__(self, data_dir: Path, seed: int, *, has_full_disks: bool) -> None:
        self.random = draw = random.Random(seed)
        self.counts: Counter[str] = Counter()
        storage = StorageConfig(
            sync=False,
            check_invariants=True,
            blob_threshold=IN_FILE,
            segment=16,
            io_batch=4,
            target_ram_count=draw.choice((None, None, 8)),
            early_confirm=draw.random() < 0.8,
        )
        self.node = node = HurriedNode(data_dir, storage=storage, confirm_mode=draw.choice(MODES))
        self.committer = node.committer = node.disk.commits = FullCommitter(node)
        node.loop.commit = self.committer.wake
        self.has_full_disks = has_full_disks
        admin = PacedClient(node)
        standard: Table = {"x-confirm-mode": ("longstr", STANDARD)}
        arguments = draw.choice(KINDS if has_full_disks else (*KINDS, LIMITED))
        self.is_limited = arguments is LIMITED
        self.has_dead_letters = "x-dead-letter-exchange" in arguments
        self._ask(admin, queue_declare(IN, durable=True, arguments=arguments))
        self._ask(admin, make(Exchange.Declare, 0, OUTS, "fanout", False, True, False, False, False, {}))
        self.outputs = draw.choice(((OUT,), (OUT, COPY)))
        for name in self.outputs:
            self._ask(admin, queue_declare(name, durable=True, arguments=standard))
            self._ask(admin, make(Queue.Bind, 0, name, OUTS, "", False, {}))
        self.publisher = PacedClient(node)
        self._ask(self.publisher, make(Confirm.Select, False))
        self.published = 0
        self.verdicts: dict[int, bool] = {}
        self.transactions: list[tuple[int, ...]] = []
        self.answered: set[int] = set()
        self.dead_lettered: set[int] = set()
        """Inputs that were rejected in a queue with a dead letter exchange: their ends may follow their transactions."""
        self.workers = []
        for number in range(2):
            worker = Worker(PacedClient(node, port=50100 + number))
            self._open(worker)
            self.workers.append(worker)
        hurry(node, looks=draw.choice((3, 5, 12, 40)))

    def _ask(self, client: Client, method: Any) -> None:
        client.send(method)
        self.node.commit()
        self.node.clock.run()
        client.take()

    def _open(self, worker: Worker) -> None:
        worker.client.send(Tx.Select())
        worker.client.send(make(Basic.Consume, 0, IN, "", False, False, False, False, {}))

    # -- acts ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Take the steps of the walk."""
        draw, committer = self.random, self.committer
        acts = [
            (12, self._publish),
            (16, self._transact),
            (8, committer.begin_commit),
            (8, committer.end_commit),
            (4, committer.end_file),
        ]
        if self.has_full_disks:
            acts += [(3, committer.fail_commit), (1, committer.fail_file)]
        most = draw.choice((1, 3, 8))
        for _ in range(draw.randint(10, ACTS)):
            draw.choices([act for _, act in acts], [weight for weight, _ in acts])[0]()
            self._look()
            self._step(draw.randint(0, most))
        self._rest()
        is_written = draw.random() < 0.5
        """False if the inputs of the last transaction are not on disk, nor on their way."""
        self._publish(draw.choice((10, 100)))
        self._rest(commits=is_written)
        self._transact(200, commits=is_written)  # it is killed amid this one
        self._step(draw.randint(0, 12 if is_written else 40), commits=0.9 if is_written else 0.0)

    def _rest(self, *, commits: bool = True) -> None:
        node = self.node
        for _ in range(1000):
            if node.is_waiting if commits else node.clock.soon:
                node.advance()
                self._look()

    def _step(self, count: int, *, commits: float = 0.3) -> None:
        for _ in range(count):
            self.node.step()
            self._look()
            if self.random.random() < commits:
                self.committer.begin_commit()
                self.committer.end_commit()

    def _publish(self, count: int = 0) -> None:
        if self.publisher.is_waiting:
            return
        frames = b""
        for _ in range(count or self.random.choice((1, 1, 3, 10))):
            self.published += 1
            body = b"%d" % self.published + b"." * self.random.choice(SIZES)
            frames += publish_frames(IN, body, delivery_mode=2)
        self.publisher.receive(frames)

    def _transact(self, most: int = 0, *, commits: bool = True) -> None:
        draw, worker = self.random, self.random.choice(self.workers)
        if worker.client.is_waiting or worker.inputs or not worker.held:
            return
        count = most or draw.choice((1, 1, 2, 5, 30))
        taken, worker.held = worker.held[:count], worker.held[count:]
        parts = []
        for tag, number in taken:
            body = b"%d" % number + b"." * (0 if most else draw.choice(SIZES))
            parts.append(publish_frames("", body, exchange=OUTS, delivery_mode=2))
            end = make(Basic.Ack, tag, False)
            if draw.random() < 0.3:
                end = make(Basic.Nack, tag, False, self.is_limited)
                if self.has_dead_letters:
                    self.dead_lettered.add(number)
            parts.append(encode_method(1, end))
        draw.shuffle(parts)
        worker.inputs = [number for _, number in taken]
        self.transactions.append(tuple(worker.inputs))
        frames, commit = b"".join(parts), encode_method(1, Tx.Commit())
        if most:
            worker.client.receive(frames)
            self._rest(commits=commits)
            frames = b""
        worker.client.receive(frames + commit)
        self.counts["transactions"] += 1

    def _look(self) -> None:
        for item in self.publisher.take():
            method = item.method
            assert method.name in {"Basic.Ack", "Basic.Nack"}
            last = method.delivery_tag
            for tag in range(1 if method.multiple else last, last + 1):
                self.verdicts.setdefault(tag, method.name == "Basic.Ack")
        for worker in self.workers:
            for item in worker.client.take():
                method = item.method
                if method.name == "Basic.Deliver":
                    worker.held.append((method.delivery_tag, int(item.body.rstrip(b"."))))
                elif method.name == "Tx.CommitOk":
                    self.answered.update(worker.inputs)
                    worker.inputs = []
                elif method.name == "Channel.Close":
                    assert self.has_full_disks, method.reply_text
                    assert 506 == method.reply_code, method.reply_text
                    self.counts["refused"] += 1
                    worker.held, worker.inputs = [], []
                    worker.client.send(Channel.CloseOk())
                    worker.client.send(Channel.Open())
                    self._open(worker)

    # -- the end ------------------------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Kill the broker, with the commit in flight on disk or not, and judge what is in the queues of the next one."""
        if self.random.random() < 0.5:
            self.committer.write_batch()
        node = self.node.killed()
        found = {name: _bodies(node, name) for name in (IN, *self.outputs)}
        node.disk.close()
        for name, bodies in found.items():
            assert len(bodies) == len(set(bodies)), f"twice in {name}"
        left, done = set(found[IN]), set(found[OUT])
        assert done == set(found[self.outputs[-1]]), "a message is in one of its queues only"
        both = (left & done) - self.dead_lettered
        assert not both, f"in both: {both}"
        confirmed = {number for number, is_ack in self.verdicts.items() if is_ack}
        lost = confirmed - left - done
        assert not lost, f"confirmed and lost: {lost}"
        assert self.answered <= done, f"answered and not there: {self.answered - done}"
        repeated = Counter(number for inputs in self.transactions for number in inputs)
        for inputs in self.transactions:
            if all(repeated[number] == 1 for number in inputs):
                assert done.intersection(inputs) in (set(), set(inputs)), f"in part: {inputs}"
        self.counts.update(confirmed=len(confirmed), done=len(done), left=len(left))


def _bodies(node: DiskNode, name: str) -> list[int]:
    queue = node.vhosts["/"].queues[name]
    found: list[int] = []
    while (batch := queue.get(no_ack=True)) is not None:
        found += [int(bytes(message.body).rstrip(b".")) for message in batch.messages]
        if not batch.messages:
            node.read()
    return found


def walk_pipeline(seed: int) -> Counter[str]:
    """Take one walk; returns what happened in it. Raises AssertionError, with the seed in a note."""
    with small_pieces(), TemporaryDirectory(prefix="leveret-pipeline-", dir=MEMORY) as home:
        taken = Pipeline(Path(home), seed, has_full_disks=bool(seed % 2))
        try:
            taken.run()
            taken.judge()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    return taken.counts
